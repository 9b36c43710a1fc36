"""What chapters say of their tables and figures holds for the values that these show."""

from functools import cache
from itertools import combinations, product

import nbformat
import numpy as np
import pandas as pd
import pytest

import experiments.linear_attention as la
import lrputils as lrp
from experiments import bench, frame, layers, paper, price, saturation, spoken, zoo
from experiments.attention import attention_matters
from lrputils import stats
from lrputils.book.layout import find_book
from lrputils.book.results_page import read_tables
from lrputils.removal.coalitions import REMOVALS
from lrputils.report import audit_answers as answers
from lrputils.runs import results
from lrputils.study.agreement import (
    COEFFICIENTS,
    COUNTED,
    EVERY,
    RAW,
    SUM_TO_ONE,
    WORDS,
    agreement,
    compare,
    over_texts,
)

BOOK = find_book()
MINI, SIX, FULL = frame.MINILM, frame.MPNET6, frame.MPNET


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    """Of what has no interval of a formula, as a rank correlation; the chapters draw 10,000."""
    monkeypatch.setattr(stats, "_RESAMPLES", 1_000)


@cache
def tables(chapter):
    """The values that a committed chapter shows, by the name of the table or figure."""
    return read_tables(nbformat.read(BOOK.chapter(chapter).with_suffix(".ipynb"), 4))


@cache
def prices():
    """Recorded maps of all that chapter 7 puts a price on."""
    return price.read_maps()


class TestSpecifications:
    shown = staticmethod(lambda name: tables("06_specifications")[name])

    @staticmethod
    @cache
    def r():
        """Of AttnLRP and CP-LRP with LOO, under every specification."""
        maps = frame.read_maps("maps", runs=["minilm-sst2", "mpnet-sst2"])
        maps = maps[(maps.options == "") & maps.method.isin(["loo", "attnlrp", "cp-lrp"])]
        return agreement(maps, COUNTED, [RAW, SUM_TO_ONE], [*COEFFICIENTS])

    def leads(self):
        """Of AttnLRP over CP-LRP, by model, normalisation, read-out and tokens."""
        rows = self.r().query("removal == 'attention-mask' and coefficient == 'Pearson'")
        by = ["model", "normalisation", "readout", "counted"]
        return compare(rows, "attnlrp", "cp-lrp", by).lead.sort_index()

    def test_over_own_tokens_attnlrp_leads_at_every_readout(self):
        higher = self.shown("fig-leads").higher
        assert len(higher.xs("neither", level=2)) == 12
        assert (higher.xs("neither", level=2) == 1).all()
        assert (self.leads().xs(WORDS, level="counted") == 1).all()

    def test_cp_lrp_is_higher_only_where_cls_counts_and_behind_the_positions(self):
        cells = self.shown("fig-leads").reset_index(names=["panel", "readout", "tokens"])
        cp = cells[cells.higher == -1]
        assert {*cp.tokens} == {"all", "no [SEP]"}
        assert {*cp.readout} == {"sum", "post-norm"}
        assert {*cp.panel} == {f"{MINI}: raw", f"{FULL}: raw", f"{FULL}: sum to one"}

    def test_the_caption_says_which_cells_of_cp_lrp_are_no_leads(self):
        cells = self.shown("fig-leads").reset_index(names=["panel", "readout", "tokens"])
        cells = cells[cells.higher == -1]
        leads = self.leads()
        lead = [leads[(*c.panel.split(": "), c.readout, c.tokens)] for c in cells.itertuples()]
        none = (cells.panel == f"{MINI}: raw") | (
            (cells.panel == f"{FULL}: raw") & (cells.tokens == EVERY)
        )
        assert lead == [*np.where(none, 0, -1)]

    def test_tokens_and_read_out_turn_cp_lrp_s_pairs_and_a_division_none(self):
        turned = self.shown("tab-turns")
        assert len(turned) == 5
        assert (turned.turned < 4).all()
        assert (turned.undecided > turned.turned).all()
        of_cp = turned["where CP-LRP is higher: turned"]
        assert [round(of_cp[choice], -1) for choice in ("tokens", "read-out")] == [70, 60]
        assert of_cp.drop(["tokens", "read-out"]).max() < 50
        assert turned.turned["normalisation"] == 0
        higher = self.shown("fig-leads").higher.rename_axis(["panel", "readout", "tokens"])
        at_sum = higher.xs(("sum", "all"), level=["readout", "tokens"])
        assert [at_sum[f"{m}: {n}"] for m in (FULL, MINI) for n in (RAW, SUM_TO_ONE)] == [
            *(0, -1),
            *(-1, 0),
        ]

    def test_cp_lrp_is_higher_by_less_than_half_of_what_the_paper_prints(self):
        by = ["model", "readout", "counted", "normalisation", "removal", "coefficient"]
        gaps = compare(self.r(), "cp-lrp", "attnlrp", by).value
        printed = paper.printed("table_2").r["sst"]
        assert 0 < gaps.max() < (printed["cp-lrp"] - printed["attnlrp"]) / 2

    def test_in_no_specification_over_own_tokens_is_cp_lrp_higher(self):
        """Where it is, [CLS] counts, after the words, by the attention mask or deletion."""
        choices = ["model", "removal", "readout", "counted", "normalisation", "coefficient"]
        wide = self.r().pivot(index=[*choices, "id"], columns="method", values="r")
        gap = (wide["attnlrp"] - wide["cp-lrp"]).groupby(choices)
        wide = gap.agg(["mean", "std", "count"])
        high = wide["mean"] + 1.9679 * wide["std"] / wide["count"] ** 0.5  # Student's, 299
        cp = wide[high < 0].reset_index()
        assert len(wide) == 864
        assert round(100 * len(cp) / len(wide), 1) == 2.7
        assert {*cp.counted} == {"all", "no [SEP]"}
        assert {*cp.readout} == {"sum", "post-norm"}
        assert {*map(tuple, cp[["model", "removal"]].drop_duplicates().to_numpy())} == {
            (MINI, "attention-mask"),
            (FULL, "attention-mask"),
            (MINI, "delete"),
        }

    def test_under_all_six_removals_the_mask_gradient_is_higher_by_most_under_the_mask(self):
        table = self.shown("tab-removals").rename_axis(["model", "removal"])
        assert len(table) == 12
        assert (table["AttnLRP − CP-LRP lead"] == 1).all()
        gap, lead = (table[f"mask gradient − AttnLRP{end}"] for end in ("", " lead"))
        assert (gap > 0).all()
        for model in (MINI, FULL):
            assert gap[model].idxmax() == "attention mask"
        led = {*lead[lead == 1].index}
        assert led == {*product((MINI, FULL), ("attention mask", "deletion")), (FULL, "[PAD]")}

    def test_the_halves_differ_by_model(self):
        shares = self.shown("tab-claims")
        half, identity, closed = dict.fromkeys(shares.index.get_level_values(0))
        lead = shares["first higher, %"] - shares["second higher, %"]
        assert lead[half, MINI] < 0 < lead[half, FULL]
        assert shares["first higher, %"][half, FULL] > 90
        assert (lead[closed] < 0).all()
        assert (shares.loc[identity, "second higher, %"] > 95).all()

    def test_mpnet_reaches_the_paper_s_attnlrp_and_not_its_cp_lrp(self):
        levels = self.shown("tab-paper").loc[FULL]
        behind = levels.loc["AttnLRP"].loc[["sum", "LayerNorm"]]
        assert (behind.low < behind.paper).all()
        assert (behind.paper < behind.high).all()
        assert (levels.loc["CP-LRP"].high < levels.loc["CP-LRP"].paper).all()

    def test_ranks_put_attnlrp_ahead_where_pearson_puts_cp_lrp_ahead(self):
        """On MiniLM's raw maps at the sum, all tokens."""
        usual = "removal == 'attention-mask' and normalisation == 'raw'"
        rows = self.r().query(
            f"{usual} and model == @MINI and readout == 'sum' and counted == 'all'"
        )
        lead = compare(rows, "attnlrp", "cp-lrp", ["coefficient"])
        assert lead.high["Pearson"] < 0
        assert (lead.low[["Spearman", "Kendall"]] > 0).all()


class TestIntroduction:
    """The running example."""

    def test_never_and_dull_are_the_reason_by_each_removal_and_maps_differ_about_dull(self, clf):
        """Of LRP and of the mask gradient chapters 3 and 7 assert it."""
        inputs = clf.encode("a film that is never dull")
        own = inputs.content_mask[0]
        words = np.array(inputs.tokens[0])[own.numpy()]

        for removal in REMOVALS:
            lost = lrp.leave_one_out(clf, inputs, removal=removal, progress=False)[0, own]
            assert [*words[lost.topk(2).indices]] == ["never", "dull"]
        shapley = lrp.attribute(clf, inputs, "shapley")[0, own]
        assert shapley[words == "dull"] < 0


class TestLayers:
    shown = staticmethod(lambda name: tables("05_layer_ablation")[name].sort_index())

    def gains(self, measure, model, texts="sentences", sets="layers 1 to k"):
        name = {"r": "fig-ablation", "Δ, %": "fig-ablation-delta"}[measure]
        return self.shown(name).loc[texts, f"gain in {measure},\n{sets}", model]

    def test_from_below_r_depends_on_the_model(self):
        printed = self.gains("r", "the paper").value.to_numpy()
        assert (np.diff(printed) >= 0).all()
        mpnet, six, mini = (self.gains("r", model) for model in (FULL, SIX, MINI))
        assert mpnet.low.iloc[-1] > 0
        assert mpnet.value.iloc[-1] < printed[-1] / 2
        assert mini.low.iloc[-1] < 0 < mini.high.iloc[-1]
        assert six.value.argmax() == 2  # of six layers the third

    def test_one_layer_at_a_time_two_models_gain_most_late_as_the_paper(self):
        best = {m: self.gains("r", m, sets="layer k").value.idxmax() for m in (MINI, FULL, SIX)}
        printed = self.gains("r", "the paper", sets="layer k").value.idxmax()
        assert min(best[MINI], best[FULL], printed) > 0.7
        assert best[SIX] < 0.5

    @pytest.mark.parametrize(("model", "falling"), [(MINI, 4), (FULL, 10)])
    def test_from_below_the_rule_costs_delta_in_every_set(self, model, falling):
        gains = self.gains("Δ, %", model)
        assert not (gains.low > 0).any()
        assert gains.value[:falling].is_monotonic_decreasing

    def test_where_the_rule_helps_differs_and_on_reviews_it_gains_next_to_nothing(self):
        for name in ("fig-ablation", "fig-ablation-delta"):
            for _, panel in self.shown(name).groupby(level=[0, 1]):
                assert len({*panel.value.groupby(level=2).idxmax().str[3]}) > 1
        reviews = self.shown("fig-ablation-delta").loc["reviews"]
        assert not (reviews.drop("the paper", level=1).low > 0).any()
        reviews = self.shown("fig-ablation").loc["reviews"].drop("the paper", level=1)
        assert reviews.value.max() < 0.03

    def test_delta_rests_on_as_many_texts_as_the_captions_say(self):
        counts = frame.read_rows("sst"), frame.read_rows("imdb"), frame.read_rows("curves")
        single = pd.concat(counts).query("family == 'single'").dropna(subset="delta")
        texts = single.groupby(["data", "model"]).id.nunique()
        said = {("SST-2", MINI): 208, ("SST-2", FULL): 100, ("IMDB", MINI): 60, ("IMDB", FULL): 12}
        assert texts.to_dict() == said

    def test_the_rule_in_mpnet_s_last_layer_raises_delta_and_the_halves_hold_zero_at_the_sum(self):
        curves = frame.read_rows("curves", ["mpnet-sst2"])
        curves = curves.query("removal == 'attention-mask' and readout == 'word'").set_index("id")
        last = curves[(curves.family == "single") & (curves.layer == 12)].delta
        plain = curves[(curves.family == "") & (curves.method == "attnlrp")].delta
        assert stats.estimate(last - plain, method="t").low > 0
        sets = layers.name_sets(frame.read_rows("sst")).query("readout == 'sum'")
        how = {"of": "part", "column": "r_normalised"}
        halves = compare(sets, "later", "earlier", "model", **how)
        assert halves.low[FULL] < 0 < halves.high[FULL]
        printed = {name: paper.ablations(name).r for name in ("SST-2", "IMDB")}
        printed = {name: r["back", 7] - r["front", 6] for name, r in printed.items()}
        assert halves.high.max() < printed["SST-2"] / 2
        assert halves.low[MINI] > 0 > halves.high[SIX]
        assert printed["IMDB"] < 0

    def test_over_own_tokens_either_half_costs_agreement(self):
        costs = self.shown("fig-halves").loc["own tokens, raw"]
        assert len(costs) == 10
        assert costs.high.max() < 0
        for kind in ("sst", "reviews"):
            rows = halves_of_layers(kind).query("readout == 'sum'")
            gap = compare(rows, "later", "earlier", "model", of="part")
            assert gap.value.abs().max() < 0.05

    def test_on_reviews_only_minilm_s_r_moves(self):
        rows = frame.read_rows("reviews")
        rows = rows[(rows.readout == "sum") & (rows.family == "front")]
        means = rows.groupby(["model", "layer"]).r_normalised.mean()
        printed = paper.ablations("IMDB").r["front"]
        for flat in (printed, means[FULL]):
            assert flat.max() - flat.min() < 0.06
        assert means[MINI].is_monotonic_decreasing

    @pytest.mark.parametrize(
        ("kind", "signs"),
        [("sst", {MINI: -1, SIX: -1, FULL: 1}), ("reviews", {MINI: -1, FULL: 0})],
    )
    def test_the_later_half_leads_only_on_mpnet_s_sentences(self, kind, signs):
        by = ["model", "readout"]
        gap = compare(halves_of_layers(kind), "later", "earlier", by, of="part")
        for model, sign in signs.items():
            assert (gap.loc[model].lead == sign).all()

    def test_with_special_tokens_the_sign_depends_on_readout_and_division(self):
        sets = layers.name_sets(frame.read_rows("sst"))
        by = ["model", "readout"]
        raw, divided = (
            compare(sets, "later", "earlier", by, of="part", column=column).value
            for column in ("r", "r_normalised")
        )
        for model, sign in {MINI: 1, FULL: -1}.items():
            assert sign * raw[model, "sum"] > 0 > sign * raw[model, "word"]
        assert divided[FULL, "sum"] > 0

    def test_attnlrp_leads_by_delta_on_sentences_everywhere_and_on_reviews_at_the_words(self):
        table = self.shown("tab-delta")
        leads = [column for column in table if column.endswith(" lead")]
        shown = table[leads].apply(pd.to_numeric, errors="coerce").stack().dropna()
        assert len(shown) == 7
        assert (shown == 1).all()

    def test_the_taylor_estimate_errs_less_in_the_later_half(self):
        rows = frame.read_rows("softmax")
        middle = rows.groupby("model").layer.transform("max") / 2
        rows["half"] = np.where(rows.layer > middle, "later", "earlier")
        by = ["model", "data", "id", "half"]
        means = rows.groupby(by).linearisation.mean().reset_index()
        gap = compare(means, "later", "earlier", by[:2], of="half", column="linearisation")
        assert len(gap) == 4
        assert (gap.high < 0).all()

    def test_the_path_follows_the_removal_best_late_and_dips_halfway_in_mpnet(self):
        gaps = self.shown("tab-errors")
        for zero in ("from the mean", "attended mean"):
            assert (gaps[f"softmax path, r, {zero} low"] > 0).all()
            label = f"softmax path, r,\n{zero}"
            shown = self.shown("fig-linearisation").xs(label, level=1)
            for _, curve in shown.value.groupby(level=[0, 1]):
                assert curve.idxmax()[2] > 0.8
            middle = shown.value["SST-2", FULL].to_numpy()
            assert middle[5] < min(middle[1:5])
        assert middle[5] < 0
        assert (gaps["flatness low"][MINI] > 0).all()
        assert (gaps["flatness high"][FULL] < 0).all()


def halves_of_layers(kind):
    """Recorded r over own tokens of AttnLRP, CP-LRP, and with CP-LRP's rule in one half."""
    rows = layers.name_sets(frame.read_rows(kind).drop(columns="r"))
    return rows[rows.part != ""].rename(columns={"r_content": "r"})


class TestTableA3:
    """What the page of claims says of the paper's own table."""

    @pytest.mark.parametrize(("data", "sign"), [("SST-2", 1), ("IMDB", -1)])
    def test_r_and_delta_do_not_rise_together_and_halves_differ_by_task(self, data, sign):
        full = paper.ablations(data)
        sets = full.drop(["attnlrp", "cp-lrp"], level=0)
        assert sets.r.corr(sets.delta) < 0
        later = sets.loc["back", 7] - sets.loc["front", 6]
        assert sign * later.r > 0 > sign * later.delta
        assert full.r.max() > full.r["cp-lrp", 0]
        assert full.lerf["cp-lrp", 0] > full.lerf["attnlrp", 0]

    @pytest.mark.parametrize(("data", "peaks"), [("SST-2", [2, 7, 10]), ("IMDB", [7, 9])])
    def test_where_single_layers_peak(self, data, peaks):
        alone = paper.ablations(data).r["single"]
        higher = (alone > alone.shift()) & (alone > alone.shift(-1))
        assert [*alone.index[higher]] == peaks


class TestBackward:
    """Chapter 7's second page: which backward pass predicts which removal."""

    shown = staticmethod(lambda name: tables("07b_backward")[name])

    def test_thirds_costs_little_path_more_and_the_mask_gradient_is_ahead_at_the_blocks(self):
        gains = self.shown("fig-canonised").rename_axis(["model", "rule", "readout"])
        thirds, path = (gains.xs(name, level="rule") for name in ("Canonised LRP, thirds", "path"))
        assert thirds.value.between(-0.02, 0).all()
        at_blocks = path.xs("blocks", level="readout")
        assert at_blocks.low[MINI] > 0 > at_blocks.high[FULL]
        assert (path.drop("blocks", level="readout").high < 0).all()
        best = gains.value.xs(("Mask gradient", "blocks"), level=["rule", "readout"])
        for rule in ("Canonised LRP, thirds", "path", "CP-LRP"):
            assert (best > gains.value.xs((rule, "blocks"), level=["rule", "readout"])).all()

    def test_thirds_costs_more_where_special_tokens_count(self):
        maps = frame.read_maps("canon", "maps", runs=["minilm-sst2", "mpnet-sst2"])
        maps = maps[(maps.options == "") & maps.removal.isin(["", "attention-mask"])]
        rows = agreement(maps[maps.readout.isin(["", "sum"])], [EVERY])
        special = compare(rows, "canonised-lrp", "attnlrp", "model")
        assert (special.high < 0).all()
        assert special.value.max() < -0.02

    def test_the_plain_gradient_suits_attention_and_lrp_states(self):
        table = self.shown("tab-patches").astype(float)
        passes = [name for name in table if not name.endswith((" low", " high", " lead"))]
        parts = [
            table[[n, f"{n} low", f"{n} high"]].set_axis(["value", "low", "high"], axis=1)
            for n in passes
        ]
        rows = pd.concat(parts, keys=passes, names=["passed back", "model", "patch"]).reset_index()
        rows[["site", "source"]] = rows.patch.str.split(": ", expand=True)
        attention = rows[rows.site == "attention"]
        assert (attention.value < 0).all()
        assert (attention.high >= 0).sum() == 1
        state = rows[rows.site == "state"].set_index(["model", "source"]).low
        assert (state[MINI] > 0).all()
        assert (state[FULL, "masked words"] > 0).all()
        ahead = rows.query("site == 'state' and source == 'zero' and low > 0")
        assert ahead[ahead.model == FULL]["passed back"].to_list() == ["CP-LRP"]
        fed = rows[rows.site == "feed-forward"]
        assert not (fed.low > 0).any()
        assert (fed[fed.source == "zero"].high < 0).all()


class TestSentences:
    shown = staticmethod(lambda name: tables("03_sst")[name])
    label = staticmethod(lambda name: lrp.METHODS[name].label)

    @staticmethod
    @cache
    def rows():
        """Recorded r and curves of every method, LRP read at the words."""
        rows = frame.read_rows("sst", ["minilm-sst2", "mpnet-sst2"])
        return rows[(rows.family == "") & (rows.readout == "word")]

    def test_estimates_of_removal_are_closest_and_mpnet_s_maps_further_off(self):
        r = self.shown("fig-sst-r").value.droplevel(0).unstack()
        nearest = {self.label("mask-gradient"), self.label("attention-x-grad")}
        for model in (MINI, FULL):
            assert {*r.loc[model].nlargest(2).index} == nearest
            assert r.loc[model].idxmax() == self.label("mask-gradient")
            assert r.loc[model, [self.label("rollout"), self.label("grad-x-input")]].max() < 0.1
        tracked = r.columns[r.loc[MINI] > 0.3]
        assert len(tracked) == 5
        assert (r.loc[FULL] < r.loc[MINI])[tracked].all()

    def test_the_same_method_copies_loo_and_contradicts_it(self):
        single = self.rows().groupby(["model", "method"]).r_content.agg(["min", "max"])
        for method in ("attnlrp", "cp-lrp", "mask-gradient"):
            ends = single.xs(method, level="method")
            assert (ends["min"] < -0.3).all()
            assert (ends["max"] > 0.9).all()

    def test_divided_by_sums_nothing_is_left_of_the_mask_gradient(self):
        table = self.shown("tab-sst-2")[[MINI, FULL]]
        name = self.label("mask-gradient")
        assert (table.loc["r, own tokens"].idxmax() == name).all()
        assert (table.loc[("r, sum to one", name)] < 0.1).all()
        of_lrp = table.loc["r, sum to one"].loc[[*map(self.label, ("attnlrp", "cp-lrp"))]]
        assert (of_lrp.diff().iloc[1] < 0).all()  # the reverse of the paper's order
        negative = self.rows().groupby(["model", "method"]).flipped.mean()
        assert negative.xs("mask-gradient", level="method").min() > 0.5

    def test_by_delta_attnlrp_leads_as_in_the_paper(self):
        def leads(first, second):
            return compare(self.rows(), first, second, ["model"], column="delta").lead

        assert (leads("attnlrp", "cp-lrp") == 1).all()
        assert leads("attnlrp", "loo")[[MINI, FULL]].to_list() == [1, -1]
        assert leads("mask-gradient", "attnlrp").to_dict() == {MINI: -1}
        published = paper.printed("table_2").loc["sst"].delta
        assert published["cp-lrp"] < published["attnlrp"]
        delta = self.shown("tab-sst-2").loc["Δ"][[MINI, FULL]]
        assert abs(delta.loc[self.label("ig")] - delta.loc["LOO"]).max() < 0.05
        assert published["ig"] < 0.2 * published["loo"]

    def test_own_tokens_put_attnlrp_ahead_and_all_tokens_only_at_the_words(self):
        by, rows = ["model", "readout"], recorded_lrp("sst")
        assert (compare(rows, "attnlrp", "cp-lrp", by, column="r_content").lead == 1).all()
        every = compare(rows, "attnlrp", "cp-lrp", by).lead.unstack()
        assert (every["word"] == 1).all()
        assert (every.drop(columns="word") == 0).all(axis=None)
        means = compare(rows, "attnlrp", "cp-lrp", by).value.unstack()
        assert (means.drop(columns="word") < 0).all(axis=None)

    @pytest.mark.parametrize("model", [MINI, FULL])
    def test_closing_the_keys_repairs_as_much_as_closing_the_softmax(self, model):
        change = self.shown("fig-sst-controls").xs(model, level=1)
        words, sums, without = (
            change.loc[panel] for panel in dict.fromkeys(change.index.unique(0))
        )
        for control in ("softmax closed", "keys closed"):
            assert words.high[control] < 0 < sums.low[control]
            assert without.high[control] < 0
        assert sums.low["keys closed"] < sums.value["softmax closed"] < sums.high["keys closed"]
        assert sums.value["queries closed"] < 0.02

    def test_attnlrp_scores_cls_below_zero_where_loo_mostly_does_not(self):
        maps = frame.read_maps("maps", runs=["minilm-sst2", "mpnet-sst2"])
        maps = maps[(maps.options == "") & maps.readout.isin(["", "sum"])]
        maps = maps[maps.removal.isin(["", "attention-mask"])]
        below = maps.assign(below=[scores[0] < 0 for scores in maps.scores])
        below = below.groupby(["method", "model"]).below.mean()
        assert below["attnlrp"].min() > 0.8
        assert below["loo"].max() < 0.5

    def test_closed_keys_leave_a_third_of_cls_s_wrong_signs_in_mpnet_and_most_in_minilm(self):
        shown = tables("03_sst")["tab-sst-below"].loc["sign not LOO's"]
        assert shown["AttnLRP"].min() > 0.5
        left = shown["keys closed"] / shown["AttnLRP"]
        assert 0.25 < left[FULL] < 0.4
        assert 0.75 < left[MINI] < 1


class TestReviews:
    shown = staticmethod(lambda name: tables("04_imdb")[name].sort_index())
    label = staticmethod(lambda name: lrp.METHODS[name].label)

    def test_minilm_tracks_loo_as_well_as_on_sentences_and_mpnet_less(self):
        r = self.shown("tab-imdb-r")
        for name in ("attnlrp", "cp-lrp"):
            small, large = r.loc[MINI, self.label(name)], r.loc[FULL, self.label(name)]
            assert abs(small["own tokens"] - small["on SST-2"]) < 0.03
            assert large["own tokens high"] < large["on SST-2"]
        assert r["own tokens high"][MINI, self.label("ig")] < r["on SST-2"][MINI, self.label("ig")]
        assert r["sum to one"][MINI, "AttnLRP"] > 2 * r.paper[MINI, "AttnLRP"]

    def test_over_own_tokens_attnlrp_leads_and_else_in_mpnet_at_the_word_embeddings(self):
        shown = self.shown("tab-imdb-order")
        for name in ("own tokens", "all tokens", "sum to one"):
            lead = shown[f"{name} lead"]
            assert (lead[MINI] == 1).all()
            leads = {"word embeddings"}
            leads |= {"sum", "LayerNorm"} if name == "own tokens" else set()
            assert {*lead[FULL].index[lead[FULL] == 1]} == leads
            assert (lead >= 0).all()

    def test_lrp_gains_on_loo_where_the_most_relevant_chunks_go_first(self):
        curves = self.shown("fig-imdb-curves").rename_axis(["panel", "map", "gone"])
        for model, name in product((MINI, FULL), ("AttnLRP", "CP-LRP")):
            least, most = (
                curves.loc[f"{model}\n{first} relevant first", name] for first in ("least", "most")
            )
            assert (most.high < 0).sum() > len(most) / 2
            assert -most.value.mean() > 3 * least.value.mean()
            if name == "AttnLRP":
                assert least.value.abs().mean() < 0.04
                assert not (least.high < 0).any()

    def test_lrp_is_a_little_ahead_of_loo_over_chunks(self):
        rows = frame.read_rows("reviews").query("family == '' and readout == 'word'")
        for name in ("attnlrp", "cp-lrp"):
            assert (compare(rows, name, "loo", ["model"], column="delta").lead == 1).all()
        logits = self.shown("tab-imdb-logits")
        low, high = logits["times LOO's low"], logits["times LOO's high"]
        for name in ("AttnLRP", "CP-LRP"):
            for model in (MINI, FULL):
                assert 1 < low[model, name] < high[model, name] < 1.3
        assert high[MINI, self.label("rollout")] < 0.5
        assert high[FULL, self.label("rollout")] < 0.5
        assert logits["times LOO's"]["paper"][["AttnLRP", "CP-LRP"]].between(2, 2.2).all()

    @pytest.mark.parametrize("model", [MINI, FULL])
    def test_a_chosen_chunk_loses_less_or_more_and_the_whole_text_more(self, model):
        gap = self.shown("tab-imdb-promised").loc[model]
        low, high = gap["loss − promise low"], gap["loss − promise high"]
        assert high["LOO's first chunk"] < 0 < low["LOO's last chunk"]
        assert low["AttnLRP's first chunk"] < 0 < high["AttnLRP's first chunk"]
        assert low["the whole text"] > 0
        lost = self.shown("tab-imdb-promised").loss[FULL]
        assert lost["LOO's first chunk"] > lost["AttnLRP's first chunk"]

    def test_cp_lrp_s_lead_falls_with_length_and_redundancy_is_not_why(self):
        """At the sum, maps divided by their sums."""
        leads = {kind: lead_of_cp_lrp(recorded_lrp(kind)) for kind in ("sst", "reviews")}
        for model, kind in ((MINI, "sst"), (MINI, "reviews"), (FULL, "reviews")):
            assert trend(leads[kind].loc[model], "lead", "tokens").high < 0
        unsure = trend(leads["sst"].loc[FULL], "lead", "tokens")
        assert unsure.low < 0 < unsure.high
        pairs = frame.read_rows("yardstick", ["minilm-sst2", "mpnet-sst2"])
        pairs = pairs[pairs.method == "interactions"].set_index(["model", "id"])
        share = [i[i > 0].sum() / np.abs(i).sum() for i in pairs.scores]
        pairs = leads["sst"].assign(share=pd.Series(share, pairs.index)).dropna()
        for model in (MINI, FULL):
            assert trend(pairs.loc[model], "lead", "share").low > 0


def recorded_lrp(kind):
    """Recorded r of the two LRP variants in all layers, of the two models."""
    rows = frame.read_rows(kind)
    rows = rows[(rows.family == "") & rows.method.isin(["attnlrp", "cp-lrp"])]
    return rows[rows.model != SIX]


def lead_of_cp_lrp(rows):
    """Each text's lead of CP-LRP, and its length."""
    wide = rows[rows.readout == "sum"].pivot(
        index=["model", "id", "tokens"], columns="method", values="r_normalised"
    )
    return (wide["cp-lrp"] - wide["attnlrp"]).rename("lead").dropna().reset_index("tokens")


def trend(rows, first, second):
    """Spearman's ρ of two columns, with its interval."""

    def spearman(one, other, axis):
        rho = lrp.spearman(np.atleast_2d(one), np.atleast_2d(other))
        return rho if np.ndim(one) > 1 else rho[0]

    pair = (rows[name].to_numpy(float) for name in (first, second))
    return lrp.estimate(*pair, statistic=spearman)


class TestLinearAttention:
    shown = staticmethod(lambda name: tables("02_linear_attention")[name])

    def test_raw_maps_track_loo_and_divided_ones_hold_zero(self):
        table = self.shown("tab-table1")
        with_loo = [f"{la.LEFT} vs LOO", f"{la.RIGHT} vs LOO"]
        assert (table.raw > 0.7).all()
        assert table.raw["IG vs LOO"] > 0.95
        divided = table.loc[with_loo]
        assert (divided["after sum-to-one low"] < 0).all()
        assert (divided["after sum-to-one high"] > 0).all()
        assert table["after sum-to-one low"]["IG vs LOO"] > 0.3

    def test_five_forms_change_nothing_two_little_and_three_much(self):
        by_form = self.shown("fig-forms").value.droplevel(0).unstack(0)
        by_form = by_form.min(axis=1).sort_values()
        assert (by_form > 0.9999).sum() == 5
        assert by_form.iloc[2] < 0.9 < 0.97 < by_form.iloc[3]
        assert len(by_form) == 10

    def test_normalising_last_lowers_r_with_loo(self):
        rows = frame.read_rows("refactored", ["minilm-sst2", "mpnet-sst2"])
        r = over_texts(rows, ["model", "form"], "r_loo")
        for model in (MINI, FULL):
            last = r.loc[model].filter(like="normalised last", axis=0)
            assert (last.high < r.low[model, "A·V, A = softmax(QKᵀ)"]).all()

    def test_table_1_is_nearer_and_has_its_signs_with_left_as_qk_first(self):
        near = settings_of_mnist()
        printed = paper.printed("table_1").drop_duplicates("pair").set_index("pair").r
        pair = [f"{la.LEFT} vs LOO", f"{la.RIGHT} vs LOO"]
        swapped = printed.rename(dict(zip(pair, pair[::-1], strict=True)))
        misses = [
            (near[[la.GRAPHS, *pair]] - p[[la.GRAPHS, *pair]]).abs().max(axis=1)
            for p in (printed, swapped)
        ]
        assert misses[1].min() < 0.55 * misses[0].min()
        best = near.loc[misses[1].idxmin()]
        assert best[pair[0]] > 0 > best[pair[1]]
        same_signs = (near[pair[0]] < 0) & (near[pair[1]] > 0)
        assert not same_signs.any()  # those of the paper under the labels of its Section 4.3
        of_ig = near[["IG vs LOO", "IG from white vs LOO"]] - printed["IG vs LOO"]
        both = pd.concat([misses[1], of_ig.abs().min(axis=1)], axis=1).max(axis=1)
        assert both.min() > 2 * misses[1].min()

    def test_the_stabiliser_moves_no_mean(self):
        """The page of claims: at the paper's 10⁻⁶, in a network of each setting."""
        kept = results.load("mnist", "epsilon").rows
        at = kept.pivot(
            index=["setting", "seed", "removal", "pair"], columns="epsilon", values="r_normalised"
        )
        at = at[~at.index.get_level_values("pair").str.endswith("ε = 0")]
        assert (at[1e-6] - at[0.0]).abs().max() < 0.005


def settings_of_mnist():
    """Mean r after sum-to-one of each recorded setting of 80% accuracy or more, by pair."""
    rows = [results.load("mnist", run).rows for run in ("linear-attention", "other-networks")]
    rows = pd.concat(rows).astype({"setting": str, "removal": str, "pair": str, "r": float})
    rows["r"] = rows.r.where(~rows.flipped, -rows.r)
    able = rows.groupby(["setting", "seed"]).accuracy.first().groupby("setting").median() >= 0.8
    means = rows[rows.setting.map(able)].groupby(["pair", "setting", "removal"]).r.mean()
    graphs = means[la.GRAPHS].droplevel("removal").rename(la.GRAPHS)
    return means.drop(la.GRAPHS).unstack("pair").join(graphs, on="setting")


class TestYardstick:
    """Chapter 8: by Shapley values other methods come first than by LOO."""

    shown = staticmethod(lambda name: tables("08_yardstick")[name])
    label = staticmethod(lambda name: lrp.METHODS[name].label)
    six, reviews, full = (
        "\n".join(frame.RUNS[run]) for run in ("minilm-sst2", "minilm-imdb", "mpnet-sst2")
    )

    @staticmethod
    def r(run, yardstick="shapley"):
        """Each text's r of its maps with a yardstick: (texts, methods)."""
        rows = frame.read_maps("yardstick", runs=[run])
        maps = rows.pivot(index="id", columns="method", values="scores")
        maps = maps[maps["loo"].map(len) > 2].dropna(subset=yardstick)
        names = ("attnlrp", "cp-lrp", "mask-gradient", "ig", "grad-x-input", "loo")
        return pd.DataFrame(
            {
                name: [float(np.corrcoef(a, b)[0, 1]) for a, b in zip(*pair, strict=True)]
                for name, pair in ((n, (maps[n], maps[yardstick])) for n in names)
            }
        )

    def test_the_mask_gradient_falls_from_loo_to_shapley_values_and_ig_rise(self):
        drawn = self.shown("fig-yardsticks").value
        by_loo, by_shapley = (drawn[f"r with {name}"] for name in ("LOO", "Shapley values"))
        for run in (self.six, self.reviews, self.full):
            rise = by_shapley.xs(run, level=1) - by_loo.xs(run, level=1)
            assert rise[self.label("mask-gradient")] < 0 < rise[self.label("ig")]
        for run in (self.six, self.full):
            assert by_loo.xs(run, level=1).idxmax() == self.label("mask-gradient")

    def test_on_minilm_attnlrp_leads_and_is_closer_than_loo(self):
        sentences, reviews = self.r("minilm-sst2"), self.r("minilm-imdb")
        for other in ("mask-gradient", "loo"):
            assert stats.leads(sentences["attnlrp"] - sentences[other]) == 1
            assert stats.estimate(reviews["attnlrp"] - reviews[other], method="t").low > 0

    def test_on_mpnet_ig_come_first_and_cannot_be_told_from_loo(self):
        r = self.r("mpnet-sst2")
        for other in ("attnlrp", "cp-lrp", "mask-gradient"):
            assert stats.leads(r["ig"] - r[other]) == 1
        assert stats.leads(r["ig"] - r["loo"]) == 0
        assert stats.estimate(r["attnlrp"] - r["loo"], method="t").high < 0

    @pytest.mark.parametrize("run", ["minilm-sst2", "minilm-imdb", "mpnet-sst2"])
    def test_of_one_backward_pass_attnlrp_is_closest_to_shapley_values(self, run):
        one_pass = ["attnlrp", "cp-lrp", "mask-gradient", "grad-x-input"]
        assert self.r(run)[one_pass].mean().idxmax() == "attnlrp"

    def test_exact_values_give_the_same_order(self):
        """On MiniLM, too: a headline of tests/net."""
        first = self.r("mpnet-sst2-exact", "shapley-exact")
        assert stats.estimate(first["ig"] - first["attnlrp"], method="t").low > 0

    def test_maps_depart_towards_pairs_of_tokens_and_shapley_values_most(self):
        drawn = self.shown("fig-departures").loc[""]
        assert drawn.low.min() > 0
        for run in (self.six, self.reviews, self.full):
            of_run = drawn.xs(run, level=1)
            assert of_run.value.idxmax() == self.label("shapley")
        attnlrp = drawn.loc["AttnLRP"].value
        assert attnlrp[self.full] < attnlrp[[self.six, self.reviews]].min()

    def test_a_planted_rule_is_found_by_shapley_values_and_missed_by_loo(self):
        found = self.shown("tab-planted")
        kinds = ["one token", "either of two", "both of two"]
        missing = found.loc[[self.label(m) for m in ("loo", "mask-gradient", "grad-x-input")]]
        assert (missing["either of two"] < 0.5).all()
        assert (missing["score, either of two"].abs() < 0.02).all()
        mask = found.loc[self.label("mask-gradient"), kinds]
        assert (mask < found.loc[self.label("loo"), kinds])[["one token", "both of two"]].all()
        assert (found.loc[self.label("loo"), ["one token", "both of two"]] == 1).all()
        assert (found.loc[self.label("shapley"), kinds] == 1).all()
        finding = [self.label(m) for m in ("attnlrp", "cp-lrp", "ig", "rollout")]
        assert found.loc[finding, kinds].min(axis=None) > 0.8


class TestCost:
    def test_loo_is_some_fifteen_lrp_maps_of_a_sentence(self):
        """And over 200 of the longest text."""
        maps = tables("09_cost")["tab-operations"]["LOO / LRP"]
        assert 14 < maps.iloc[1] < 16
        assert 200 < maps.iloc[-1] < 512 / 2

    def test_by_the_clock_it_is_a_few_on_a_gpu_fewest(self):
        times = tables("09_cost")["tab-in-maps"]
        maps = times.xs("LOO / AttnLRP", level=1)
        cpu, *gpus = maps.columns
        assert maps[cpu].lt([10, 30]).all()  # of 14 to 29, and of 128 tokens, by count up to 13, 58
        for gpu in gpus:
            assert maps[gpu].lt(maps[cpu]).all()
            assert maps[gpu].between(1, 3.2).all()
        gradient = times.xs("Mask gradient", level=1) / times.xs("AttnLRP", level=1)
        assert gradient.gt(0.85).all(axis=None)
        assert gradient.lt(1.15).all(axis=None)

    def test_a_test_set_takes_seconds_to_hours_and_a_crawl_years(self):
        loo = tables("09_cost")["tab-bill"].LOO
        assert [text.split()[1] for text in loo] == ["seconds", "hours", "days", "years"]

    def test_the_longer_the_text_the_closer_the_clock_is_to_the_count(self):
        drawn = tables("09_cost")["fig-cost-model"].value.loc["tokens"]
        slower = drawn["measured"] / drawn["operations / rate"]
        assert slower.is_monotonic_decreasing
        assert slower.iloc[0] > 2 > slower.iloc[-1] > 1
        drawn = tables("09_cost")["fig-cost-model"].value.loc["tokens a batch"]
        slower = drawn["measured"] / drawn["operations / rate"]
        assert slower.idxmax() == slower.index[0]
        assert slower.idxmin() == slower.index[-1]

    def test_a_plain_loop_is_further_behind_on_a_gpu(self):
        loops = []
        for run in ("untrained-6x384", "h200-6x384", "h200-12x768"):
            rows, _ = bench.load(run)
            rows = pd.concat([rows["loo-sentences"], rows["loo-review"]])
            loops.append(rows[rows.side == "plain loop"].ratio)
        assert loops[0].max() < min(loops[1].min(), loops[2].min())

    def test_python_takes_most_of_the_rest_on_sentences(self):
        rows, machine = bench.load("untrained-6x384")
        assert machine["processor"]["cores"] == 2
        parts = rows["time"].set_index(["part", "texts"]).seconds.unstack()
        share = parts / parts.sum()
        busy = share[share.loc["Python"].idxmax()].drop("matrix products")
        assert busy.idxmax() == "Python"
        assert share.loc["Python"].min() < 0.1


class TestPrice:
    """Chapter 7 and the introduction: what more passes buy."""

    r = staticmethod(cache(lambda: price.compare_with_loo(prices())))
    at = ("data", "model")

    @classmethod
    def gain(cls, first, second):
        return compare(cls.r(), first, second, cls.at, of="map")

    def test_attention_x_grad_is_ahead_of_attnlrp_in_classifiers_and_behind_on_sentences(self):
        classifiers = self.gain(price.ATTENTION, price.ATTN_LRP).loc[:, [MINI, FULL], :]
        assert (classifiers.low > 0).all()
        assert (self.gain(price.ATTENTION, price.ATTN_LRP).value > 0).all()
        near = self.gain(price.ONE, price.ATTENTION)
        assert (near.value > 0).all()
        assert (near.loc["SST-2"]["lead"] == 1).all()
        assert (near.loc["IMDB"].low > 0).all()
        assert (near.loc["IMDB"]["lead"] == 0).all()

    def test_more_passes_come_closer_and_attnlrp_is_ahead_of_cp_lrp(self):
        steps = [(price.ATTN_LRP, price.CP_LRP), (price.ONE, price.ATTN_LRP)]
        steps += [(price.BOTH, price.ONE), (price.THREE, price.ONE)]
        steps += [(price.SIX, price.THREE), (price.HALF, price.SIX)]
        for better, worse in steps:
            assert (self.gain(better, worse).low > 0).all()

    def test_exact_passes_are_nowhere_behind_half_removal_and_by_rank_behind_it_on_reviews(self):
        for exact, groups in ((price.THREE, price.HALVES), (price.SIX, price.BOTH)):
            gap = self.gain(exact, groups)
            gemma = gap.index.get_level_values("model") == spoken.MODELS["gemma3"]
            assert (gap.value[~gemma] > 0).all()
            assert (gap["lead"][gemma] == 0).all()
        assert (
            gap["lead"]["SST-2"][~gemma[gap.index.get_level_values("data") == "SST-2"]] == 1
        ).all()
        assert (gap["lead"]["IMDB"] == 0).all()
        worse = self.gain(price.HALVES, price.ONE).value < 0
        assert worse[worse].index.to_list() == [("IMDB", MINI)]
        named = prices().dropna(subset="map").query("readout in ('', 'word')")
        ranks = agreement(named, [WORDS], coefficients=["Spearman"])
        gap = compare(ranks, price.SIX, price.BOTH, self.at, of="map")
        assert (gap.high["IMDB"] < 0).all()

    def test_exact_passes_find_the_top_word_most_often(self):
        def finds(scores, loo):
            return {"top": float(abs(scores).argmax() == abs(loo).argmax())}

        ways = [price.ATTN_LRP, price.ONE, price.HALVES, price.THREE]
        found = price.by_text(prices(), ways, finds).groupby(["run", "map"]).top.mean()
        assert (found.unstack().idxmax(axis=1) == price.THREE).all()


class TestWords:
    """Chapter 7: one pass tracks the other words, half-removal finds the decisive one."""

    classifiers = (("SST-2", MINI), ("SST-2", FULL), ("IMDB", MINI), ("IMDB", FULL))
    spoken = tuple(("SST-2", model) for model in spoken.MODELS.values())

    @staticmethod
    @cache
    def rows():
        """By numpy alone: whether LOO's top word is found, and r over the other words."""
        named = prices().query("readout in ['', 'word']").dropna(subset="map")
        rows = []
        for text, part in named.groupby(price.TEXT):
            own = np.array(part.content.iloc[0])
            scores = {m: np.array(x)[own] for m, x in zip(part["map"], part.scores, strict=True)}
            loo = scores[price.LOO]
            top, row = np.abs(loo).argmax(), dict(zip(price.TEXT, text, strict=True))
            others = np.arange(len(loo)) != top
            for way in (price.ATTN_LRP, price.ONE, price.HALVES) if len(loo) > 3 else ():
                found = np.abs(scores[way]).argmax() == top
                r = np.corrcoef(scores[way][others], loo[others])[0, 1]
                rows.append(row | {"map": way, "top": float(found), "r": r})
        return pd.DataFrame(rows)

    @classmethod
    def lead(cls, first, second, column):
        return compare(cls.rows(), first, second, ["data", "model"], of="map", column=column)

    def test_one_pass_leads_over_the_other_words(self):
        lead = self.lead(price.ONE, price.ATTN_LRP, "r")
        assert (lead["lead"] == 1).all()
        assert lead.value.min() > 0.15

    def test_by_size_it_finds_the_top_word_more_often_in_language_models_only(self):
        lead = self.lead(price.ONE, price.ATTN_LRP, "top")["lead"]
        assert (lead[[*self.classifiers]] == 0).all()
        assert (lead[[*self.spoken]] == 1).all()

    def test_half_removal_finds_it_more_often_but_on_minilm_s_reviews(self):
        lead = self.lead(price.HALVES, price.ATTN_LRP, "top")["lead"]
        assert lead["IMDB", MINI] == 0
        assert (lead.drop(("IMDB", MINI)) == 1).all()

    def test_the_figure_shows_these_rows(self):
        shown = tables("07_remedy")["fig-words"].value
        means = self.rows().groupby(["data", "model", "map"])[["top", "r"]].mean()
        for way in (price.ATTN_LRP, price.ONE, price.HALVES):
            of_run = means.loc["SST-2", MINI, way]
            panels = "texts whose top word is found, share", "the words after the first, mean r"
            for panel, value in zip(panels, (of_run.top, of_run.r), strict=True):
                assert shown[panel, way, "MiniLM, sentences"] == pytest.approx(value, abs=1e-4)


class TestLanguageModels:
    shown = staticmethod(lambda name: tables("12_language_models")[name])
    smollm, gemma = spoken.MODELS.values()
    order = ("mask-gradient", "attnlrp", "cp-lrp")

    @staticmethod
    def wide(rows, counted=WORDS, column="r"):
        """Each sentence's r with LOO, by model and method."""
        r = agreement(rows, counted=(counted,)) if column == "r" else rows
        wide = frame.named(r).pivot(index=["model", "id"], columns="method", values=column)
        return wide.astype(float)

    @staticmethod
    def lead(wide, first, second):
        """Which of two methods leads, by model."""
        gap = (wide[first] - wide[second]).groupby("model", sort=False)
        return gap.agg(lambda some: int(stats.leads(some)))

    def test_over_own_tokens_both_models_have_one_order(self):
        pairs = self.shown("tab-language").filter(like=" lead")
        for name in (self.smollm, self.gemma):
            assert (pairs.loc[[(name, spoken.USUAL)]] == 1).all(axis=None)
            r = self.shown("fig-language").value.loc[""].loc[name]
            assert r.is_monotonic_decreasing
            assert (r.idxmax(), r.idxmin()) == (spoken.HALVES, "Gradient × input")

    def test_the_table_of_choices_has_these_leads(self):
        table = self.shown("tab-language")
        mask, lrps = "Mask gradient − AttnLRP lead", "AttnLRP − CP-LRP lead"
        assert [*table.index[table[mask] != 1]] == [
            (self.smollm, "all tokens of the prompt"),
            (self.gemma, spoken.CURVES),
        ]
        assert (table[mask] != 0).all()
        one = [
            name for name in table.index if name[1] in ("one label's logit", "its log-probability")
        ]
        assert table.loc[one, lrps].to_list() == [0, 1, 0, 0]

    def test_gemma_calls_every_sentence_positive(self):
        table = self.shown("tab-prompted")
        assert table["called positive"][self.gemma] == 1
        assert table["called positive"][self.smollm] < 0.6 < table.accuracy[self.smollm]

    def test_over_all_tokens_the_order_turns_and_not_by_the_first_token_alone(self):
        maps = spoken.read_prompted()
        turned = self.lead(self.wide(maps, EVERY), "mask-gradient", "attnlrp")
        assert turned.to_dict() == {self.smollm: -1, self.gemma: 1}
        without = maps.assign(
            scores=[x[1:] for x in maps.scores], content=[x[1:] for x in maps.content]
        )
        turned = self.lead(self.wide(without, EVERY), "mask-gradient", "attnlrp")
        assert turned.to_dict() == {self.smollm: -1, self.gemma: 1}
        share = maps.assign(first=[abs(x[0]) / np.abs(x).sum() for x in maps.scores])
        share = self.wide(share, column="first").groupby("model").mean()
        more = share[["mask-gradient", "attention-x-grad", "cp-lrp"]].gt(share["loo"], axis=0)
        assert more.all(axis=None)

    @pytest.mark.parametrize("output", ["logit", "log-probability"])
    def test_of_one_label_the_mask_gradient_leads_and_attnlrp_in_one_case(self, output):
        wide = self.wide(spoken.read_prompted("-outputs", output))
        assert (self.lead(wide, "mask-gradient", "attnlrp") == 1).all()
        told = {self.smollm: int(output == "log-probability"), self.gemma: 0}
        assert self.lead(wide, "attnlrp", "cp-lrp").to_dict() == told

    def test_by_deletion_the_mask_gradient_leads(self):
        maps, deleted = spoken.read_prompted(), spoken.read_prompted("-delete")
        exact = deleted[deleted.method == "loo"].assign(removal="attention-mask")
        wide = self.wide(pd.concat([exact, maps[maps.method.isin(self.order)]]))
        wide = wide.dropna()
        assert (self.lead(wide, "mask-gradient", "attnlrp") == 1).all()
        assert (wide.groupby("model").mean().eval("attnlrp - `cp-lrp`") > 0).all()
        told = {self.smollm: 1, self.gemma: 0}
        assert self.lead(wide, "attnlrp", "cp-lrp").to_dict() == told
        assert wide.groupby("model").size()[self.gemma] == 36

    def test_by_curves_attnlrp_leads_cp_lrp_and_in_gemma_the_mask_gradient(self):
        rows = spoken.read_prompted("-curves")
        wide = self.wide(rows.assign(delta=rows.lerf - rows.morf), column="delta")
        assert (self.lead(wide, "attnlrp", "cp-lrp") == 1).all()
        told = self.lead(wide, "attnlrp", "mask-gradient")
        assert told.to_dict() == {self.smollm: -1, self.gemma: 1}

    @pytest.mark.parametrize(
        ("unit", "more", "rank"), [("sentences", 1, 0), ("reviews", 0, 0), ("words", 1, -1)]
    )
    def test_behind_answers_no_one_pass_map_leads(self, unit, more, rank):
        r, ranks, first = self.answers(unit)
        gap = {n: x["AttnLRP"] - x["Mask gradient"] for n, x in (("r", r), ("rank", ranks))}
        ends = {name: lrp.estimate(values, method="t") for name, values in gap.items()}
        assert stats.leads(gap["r"]) == 0
        assert (ends["r"].low > 0) == bool(more)
        assert (ends["rank"].high < 0) == (rank == -1)
        assert stats.leads(first["AttnLRP"] - first["Mask gradient"]) == 0
        if unit == "sentences":
            assert np.sort(gap["r"])[-3:].sum() > 0.5 * gap["r"].sum()
            assert abs(r[spoken.ONLY_FIRST].mean() - r["AttnLRP"].mean()) < 0.05
            assert first[["AttnLRP", "Mask gradient"]].mean().min() > 0.7

    def test_on_reviews_other_references_find_loo_s_first_sentence(self):
        first, shorter = self.answers("reviews")[2].mean(), self.answers("sentences")[2].mean()
        assert round(10 * first["LOO by deletion"]) == 9
        assert round(10 * first["surrogate of 64 passes"]) == 8
        assert (first < shorter)[["AttnLRP", "Mask gradient"]].all()
        asked = spoken.read_answers("reviews").drop_duplicates("id")
        assert 9 < 64 / (asked.own.map(np.sum).mean() + 1) < 11

    def test_half_removal_finds_more_of_the_first_words(self):
        r, _, first = self.answers("words")
        assert stats.leads(r[spoken.HALVES] - r["Mask gradient"]) == 1
        for rival in ("AttnLRP", "Mask gradient"):
            assert stats.leads(first[spoken.HALVES] - first[rival]) == 1

    @staticmethod
    def answers(unit):
        """`r`, `rank` and `first` of each prompt, by map."""
        found = spoken.compare_answers(unit)
        return [found[column].unstack("map") for column in ("r", "rank", "first")]


class TestAudit:
    shown = staticmethod(lambda name: tables("10_audit")[name])

    def test_minilm_s_attnlrp_is_above_the_bound_and_all_of_mpnet_below(self):
        maps = self.shown("fig-audit-verdict")
        assert (maps.loc[f"{MINI} on SST-2"].loc["AttnLRP"].low > answers.TRACKS).all()
        assert (maps.loc[f"{FULL} on SST-2"].high < answers.TRACKS).all()
        assert (self.shown("tab-verdicts").below > 0.1).all()

    def test_at_three_passes_the_mask_gradient_leads_lrp_and_two_groups_pass_the_bound(self):
        maps = frame.read_maps("maps", "remedy", runs=["mpnet-sst2"])
        maps = frame.named(maps[maps.removal.isin(["", "attention-mask"])])
        maps = maps[maps.readout.isin(["", "word"])]
        names = ["loo", "attnlrp", "cp-lrp", "mask-gradient", spoken.IN_TWO]
        own = maps[maps.method.isin(names)]
        r = agreement(own, counted=[WORDS]).pivot(index="id", columns="method", values="r")
        r = r.dropna().astype(float)
        for lrp_map in ("attnlrp", "cp-lrp"):
            assert stats.leads(r["mask-gradient"] - r[lrp_map]) == 1
        assert stats.estimate(r["mask-gradient"]).low < answers.TRACKS
        assert stats.estimate(r[spoken.IN_TWO]).low > answers.TRACKS
        drawn = self.shown("fig-audit-methods").value.droplevel([0, 1])
        assert drawn.filter(like="(3)").idxmax() == "Mask gradient (3)"
        assert drawn.filter(like="(6)").idxmax() == "Budgeted LOO, 6 passes (6)"

    def test_the_appendix_says_the_package_s_numbers(self):
        page = (BOOK.root / "chapters/statistics.md").read_text("utf-8")
        assert f"from {answers.FEWEST} to {answers.MOST:,}" in page
        assert f"Fewer than {answers.FEWEST} texts" in page
        assert f"$m = {answers.MARGIN}$" in page
        draws = "Draw {}, {} or {} texts".format(*answers.FALSE_LEADS)
        assert draws in page
        assert {*answers.FALSE_LEADS.values()} <= {0.04, 0.05}


class TestArchitectures:
    shown = staticmethod(lambda name: tables("11_architectures")[name])

    def test_text_models_agree_and_digits_are_harder(self):
        r = self.shown("fig-families").droplevel(0)
        vit = r.index.get_level_values(1) == "ViT"
        assert r[~vit].low.min() > 0.9
        assert r[vit].high.max() < 0.75
        assert r[vit].value.idxmin()[0] == "Mask gradient"

    def test_small_text_models_use_attention_little(self):
        reviews = lrp.load_texts(limit=80, seed=0)
        for name in ("bert", "qwen3"):
            fall = attention_matters(zoo.load(name), reviews)["fall"]
            assert 0.05 < fall.value < 0.12

    @pytest.mark.parametrize("name", ["llama", "qwen3"])
    def test_brackets_of_a_gate_hardly_move_what_tokens_get(self, name):
        clf = zoo.load(name)
        texts = clf.encode([*lrp.load_texts(limit=20, seed=0)], truncate=True)
        first = lrp.attribute(clf, texts, lrp.ATTN_LRP)
        for rule in ("quarter-up", "third-up", "gate-held"):
            other = lrp.attribute(clf, texts, lrp.ATTN_LRP.but(product=rule))
            assert lrp.pearson(other, first, texts.content_mask).min() > 0.99
            assert (other - first).abs().max() > 0

    def test_most_of_the_error_stays_without_a_softmax(self):
        table = self.shown("tab-softmax")
        change, low, high = (table[name] for name in ("change", "change low", "change high"))
        for method in ("AttnLRP", "CP-LRP"):
            assert low["reviews", method] < 0 < high["reviews", method]
        assert high["digits", "AttnLRP"] < 0
        assert low["digits", "CP-LRP"] < 0
        assert low["digits", "Gate gradient"] > 0
        assert table["no softmax high"]["digits"].drop("Accuracy").max() < 0.8
        accuracy = table.xs("Accuracy", level=1)
        assert (accuracy["change low"] < 0).all()
        assert (accuracy["change high"] > 0).all()
        assert change["digits"].abs().max() < 0.4


class TestClaims:
    shown = staticmethod(lambda name: tables("claims")[name])

    def test_the_level_goes_with_depth_and_the_lead_with_family(self):
        table = self.shown("tab-three")
        for name in ("AttnLRP, own tokens", "mask gradient, own tokens"):
            mini, six, full = table.loc[name, [MINI, SIX, FULL]]
            assert abs(six - mini) < (mini - full) / 2
            assert table.loc[name, f"{FULL} high"] < table.loc[name, f"{SIX} low"]
        lead = table.loc["lead, own tokens"]
        assert lead[f"{MINI} high"] < min(lead[f"{SIX} low"], lead[f"{FULL} low"])
        assert lead[f"{MINI} low"] > 0
        assert abs(lead[SIX] - lead[FULL]) < 0.02
        paper_s = table.loc["lead, all tokens, sum to one, read at the sum"]
        assert paper_s[f"{FULL} high"] < 0 < min(paper_s[f"{m} high"] for m in (MINI, SIX))

    def test_no_baseline_comes_near_the_paper_and_a_residual_moves_one_delta(self):
        r = self.shown("tab-baselines").r.unstack()
        ig = r.xs("IG", level=1)[["padding", "zeros", "[MASK]"]]
        assert (ig.max(axis=1) - ig.min(axis=1)).max() < 0.1
        assert self.shown("tab-baselines")["r low"].xs("IG", level=1).min() > 0.3
        assert r.xs("Rollout", level=1)["with a residual"].max() < 0.1
        ends = self.shown("tab-baselines").xs("Rollout", level=1)
        low, high = (ends[f"delta {end}"].unstack() for end in ("low", "high"))
        more = low["with a residual"] > high["as the paper"]
        assert more.to_dict() == {MINI: True, FULL: False}

    def test_a_small_epsilon_moves_nothing_and_a_large_one_single_maps(self):
        table = self.shown("tab-epsilon")
        r = table["r with LOO"].unstack()
        moved = r.sub(r["ε = 0"], axis=0).abs().max()
        assert moved["ε = 1e-06"] < 0.001
        assert moved["ε = 0.01"] < 0.05
        lowest = table["lowest r with ε = 0"].unstack()
        assert lowest["ε = 1e-06"].min() > 0.998
        assert lowest["ε = 0.01"].max() < 0.8

    def test_the_earlier_half_adds_most_of_the_interaction(self):
        later = self.shown("tab-later-pairs")
        assert (later.high < 0).all()
        assert (later.share * later.used <= 1.001).all()

    def test_the_first_half_needs_its_attention_most(self):
        table = self.shown("tab-uniform")
        lost = table.rsub(table["none"], axis=0)
        frail = MINI, "IMDB"
        others = lost.drop(frail)
        assert (others["second half"] < 0.03).all()
        assert (others["first half"] > 2 * others["second half"]).all()
        assert (lost["first half"] > 0.08).all()
        assert table.loc[frail, "all low"] < 0.5 < table["all low"].drop(frail).min()

    def test_every_map_notices_random_weights(self):
        drawn = self.shown("tab-redrawn")
        assert (drawn["all layers"] < drawn["head"]).all()
        assert drawn["all layers"].max() < 0.35


@cache
def r_of_maps():
    """Each text's r over own tokens by (method, read-out), on five recorded runs."""
    wide = {}
    for run in frame.RUNS:
        rows = results.load(run.split("-")[1].rstrip("2"), run).rows
        own = rows.query("family == '' and method not in ['loo', 'smoothgrad']")
        wide[run] = own.pivot(index="id", columns=["method", "readout"], values=answers.R)
        wide[run] = wide[run].dropna(axis=1, how="all").astype(float)
    return wide


@pytest.mark.parametrize("n", answers.FALSE_LEADS)
class TestErrorRates:
    """What the appendix says of how a lead is decided."""

    def test_of_methods_that_tie_a_verdict_calls_one_ahead_seldom(self, n):
        random, verdicts, by_mean = np.random.default_rng(0), {}, {}
        for run, wide in r_of_maps().items():
            for one, other in combinations(wide, 2):
                gap = (wide[one] - wide[other]).dropna().to_numpy()
                for centre in (np.mean, np.median):
                    few = gap[random.integers(0, len(gap), (n, 400))] - centre(gap)
                    verdicts[run, one, other, centre] = np.mean(stats.leads(few) != 0)
                    low, high = stats.t_interval(few)
                    if centre is np.mean:
                        by_mean[run, one, other] = np.mean((low > 0) | (high < 0))
        assert max(verdicts.values()) <= answers.FALSE_LEADS[n] + 0.01
        assert max(by_mean.values()) > 2 * answers.FALSE_LEADS[n]
        assert "imdb" in max(by_mean, key=by_mean.get)[0]

    def test_of_maps_at_the_bound_a_verdict_says_yes_as_seldom(self, n):
        random = np.random.default_rng(0)
        for wide in r_of_maps().values():
            maps = wide[["attnlrp", "cp-lrp"]]
            maps = (maps - maps.mean() + answers.TRACKS).dropna().to_numpy()
            few = maps[random.integers(0, len(maps), (n, 400))]
            best = few.mean(axis=0).argmax(axis=1)[None, :, None]
            best = np.take_along_axis(few, best, 2)[..., 0] - answers.TRACKS
            said = stats.leads(best, 1 - 0.05 / maps.shape[1], doubt=answers.TRACKS)
            assert np.mean(said > 0) <= answers.FALSE_LEADS[n] + 0.01

    def test_no_interval_of_a_skewed_mean_covers_95_percent(self, n):
        wide = r_of_maps()["minilm-imdb"].xs("word", axis=1, level="readout")
        gap = (wide["mask-gradient"] - wide["attnlrp"]).dropna().to_numpy()
        draws = np.random.default_rng(0).choice(gap, (400, n))
        for method in ("t", "hall"):
            ends = [stats.estimate(few, method=method) for few in draws]
            covered = np.mean([e.low <= gap.mean() <= e.high for e in ends])
            assert covered < 0.93


class TestSaturation:
    """f bends on the way to leave-one-out: where the model is sure, the decisive word is small."""

    def test_where_the_model_is_sure_the_top_word_is_lost_later(self):
        lost = tables("07_remedy")["fig-saturation"].value.xs(0.5, level=2).unstack()
        assert (lost["top word, sure"] < lost["top word, unsure"] - 0.1).all()
        assert (lost["top word, unsure"] < 0.5).all()
        assert (lost["top word, sure"] < 1 / 3).all()
        assert (lost["top word, sure"] < lost["other words, sure"] - 0.1).all()

    @pytest.mark.parametrize("run", frame.RUNS)
    def test_more_exact_passes_for_confident_texts_buy_nothing(self, run):
        bought = saturation.buy_exact(run)
        gains = pd.DataFrame([saturation.move_passes(bought, passes) for passes in (1, 2, 3, 4, 6)])
        assert (gains.low < 0).all()
        assert (gains.value < 0.015).all()
        assert (gains.chance > 0.01).all()

    def test_along_the_curves_no_estimate_is_ahead_of_attnlrp(self):
        """By Δ half-removal comes closer than one pass on sentences."""
        curves = price.read_curves()
        found = {
            way: compare(curves, way, price.ATTN_LRP, ["data", "model"], of="map", column="delta")
            for way in (price.LOO, price.ATTENTION, price.ONE, price.HALVES, price.BOTH)
        }
        assert [len(of_way) for of_way in found.values()] == [4] * 5
        lead = pd.concat(found)["lead"]
        best = ("SST-2", FULL)
        assert lead[price.LOO].to_dict() == {
            run: 1 if run == best else -1 for run in lead[price.LOO].index
        }
        assert (lead[price.ATTENTION] == -1).all()
        assert lead[price.ONE].index[lead[price.ONE] != -1].to_list() == [("IMDB", MINI)]
        for way in (price.HALVES, price.BOTH):
            assert lead[way].index[lead[way] != 0].to_list() == [("SST-2", MINI)]
            assert (lead[way] <= 0).all()
            closer = found[way].value - found[price.ONE].value
            assert (closer["SST-2"] > 0.1).all()
