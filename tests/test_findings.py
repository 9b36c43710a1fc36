"""What chapters say of their tables and figures holds for the values that these show."""

from __future__ import annotations

from functools import cache

import nbformat

from lrputils.book.layout import find_book
from lrputils.book.results_page import read_tables
from lrputils.runs import frame
from lrputils.study.agreement import COEFFICIENTS, agreement, compare

BOOK = find_book()
MINI, SIX, FULL = frame.MINILM, frame.MPNET6, frame.MPNET


@cache
def tables(chapter):
    """The values that a committed chapter shows, by the name of the table or figure."""
    return read_tables(nbformat.read(BOOK.chapter(chapter).with_suffix(".ipynb"), 4))


class TestSpecifications:
    shown = staticmethod(lambda name: tables("06_specifications")[name])

    def test_over_own_tokens_attnlrp_leads_at_every_readout(self):
        leads = self.shown("fig-leads").lead
        assert len(leads.xs("neither", level=2)) == 12
        assert (leads.xs("neither", level=2) == 1).all()

    def test_cp_lrp_leads_only_where_cls_counts_and_behind_the_positions(self):
        cells = self.shown("fig-leads").reset_index(names=["panel", "readout", "tokens"])
        cp = cells[cells.lead == -1]
        assert {*cp.tokens} == {"all", "no [SEP]"}
        assert {*cp.readout} == {"sum", "post-norm"}
        assert {*cp.panel} == {f"{MINI}: raw", f"{FULL}: raw", f"{FULL}: sum to one"}
        assert cp.loc[cp.value.idxmin()].panel == f"{FULL}: sum to one"
        assert cells.groupby("panel").value.min()[f"{FULL}: raw"] > -0.1

    def test_the_class_turns_the_order_most_often_and_a_division_never(self):
        turned = self.shown("tab-turns").turned.loc["both models"]
        assert [*turned.index] == [
            *("class", "tokens", "read-out", "removal", "coefficient", "normalisation")
        ]
        assert turned["normalisation"] == 0

    def test_the_halves_differ_by_model_and_the_identity_costs_agreement(self):
        shares = self.shown("tab-claims")
        half, identity, closed = dict.fromkeys(shares.index.get_level_values(0))
        lead = shares["first"] - shares["second"]
        assert lead[half, MINI] < 0 < lead[half, FULL]
        assert shares.second[identity].drop(frame.THIS_RUN).min() > 95
        assert (lead[closed].drop(frame.THIS_RUN) < 0).all()

    def test_mpnet_reaches_the_paper_s_attnlrp_and_not_its_cp_lrp(self):
        levels = self.shown("tab-paper").loc[FULL]
        behind = levels.loc["AttnLRP"].loc[["sum", "LayerNorm"]]
        assert (behind.low < behind.paper).all()
        assert (behind.paper < behind.high).all()
        assert (levels.loc["CP-LRP"].high < levels.loc["CP-LRP"].paper).all()

    def test_the_class_acts_through_the_vectors_of_cls(self):
        """Moved into its word's vector, they give at the words the difference at the sum."""
        moved = frame.read_rows("moved")
        moved = moved[moved.method.isin(["attnlrp", "cp-lrp"])]
        text = ["model", "target", "id"]

        def gap(readout, column):
            wide = moved[moved.readout == readout].pivot(
                index=text, columns="method", values=column
            )
            return (wide["attnlrp"] - wide["cp-lrp"]).groupby(text[:2]).mean()

        assert (gap("word", "r_moved") - gap("sum", "r")).abs().max() < 0.03
        assert (gap("word", "r") - gap("sum", "r")).abs().max() > 0.1

    def test_ranks_put_attnlrp_ahead_where_pearson_puts_cp_lrp_ahead(self):
        """On MiniLM's raw maps at the sum, all tokens."""
        maps = frame.read_maps("maps", runs=["minilm-sst2"])
        maps = maps[(maps.rules == "") & maps.readout.isin(["", "sum"])]
        maps = maps[maps.method.isin(["loo", "attnlrp", "cp-lrp"])]
        maps = maps[(maps.method != "loo") | (maps.removal == "attention-mask")]
        rows = agreement(maps, coefficients=[*COEFFICIENTS])
        lead = compare(rows, "attnlrp", "cp-lrp", ["coefficient"])
        assert lead.high["Pearson"] < 0
        assert (lead.low[["Spearman", "Kendall"]] > 0).all()
