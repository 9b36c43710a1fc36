"""What a chapter shows: tables, rounded, and facts bound for the prose."""

import myst_nb
import numpy as np
import pandas as pd
import pytest

from lrputils.report.display import TABLE, bind, show, side_by_side
from lrputils.stats import estimate, paired_difference, table

FRAME = pd.DataFrame(
    {"r": [0.51234, float("nan")], "low": [0.4, None], "high": [0.6, None], "n": [3, 4]},
    index=["a", "<b>"],
)


def test_floats_are_rounded_and_intervals_stand_behind_their_value():
    shown = show(FRAME, digits=2, intervals={"r": ("low", "high")}).rounded()
    assert list(shown.columns) == ["r", "n"]
    assert shown.loc["a", "r"] == "0.51 [0.40, 0.60]"
    assert shown.loc["<b>", "r"] == ""


def test_full_precision_travels_beside_the_html():
    bundle = show(FRAME)._repr_mimebundle_()
    assert bundle[TABLE]["columns"]["r"] == [0.51234, "nan"]
    assert "0.512" in bundle["text/html"]
    assert "0.51234" not in bundle["text/html"]


def test_markup_in_a_table_is_escaped():
    assert "<b>" not in show(FRAME)._repr_mimebundle_()["text/html"]


def test_an_unknown_column_is_named():
    with pytest.raises(ValueError, match="no column"):
        show(FRAME, intervals={"q": ("low", "high")})


def test_in_html_an_interval_has_a_line_of_its_own_and_the_rows_name_the_corner():
    named = FRAME.rename_axis("this <run>")
    page = show(named, intervals={"r": ("low", "high")})._repr_mimebundle_()["text/html"]
    assert "<td>0.512<br><small>[0.400, 0.600]</small></td>" in page
    assert page.index("this &lt;run&gt;") < page.index("<th>r</th>")
    assert page.count("<tr") == 3


def test_estimates_stand_side_by_side_with_their_intervals():
    parts = {"a": table({"x": estimate([1, 2])}), "b": table({"x": estimate([3, 4])})}
    shown = show(side_by_side(parts), digits=1).rounded()
    assert shown.loc["x"].tolist() == ["1.5 [-4.9, 7.9]", "3.5 [-2.9, 9.9]"]


def test_a_difference_shows_its_share_and_keeps_the_rest():
    gap = paired_difference([0.5, 0.4, 0.6, 0.1], [0.1, 0.2, 0.1, 0.3])
    both = show(side_by_side({"r": table({"a": gap}), "level": table({"a": estimate([0.1, 0.2])})}))
    assert list(both.rounded().columns) == ["r", "r share", "level"]
    assert both.rounded().loc["a", "r share"] == "0.750"
    alone = show(table({"a": gap}), intervals={"value": ("low", "high")})
    assert list(alone.rounded().columns) == ["value", "used", "dropped", "share"]
    assert alone._repr_mimebundle_()[TABLE]["columns"]["share_high"][0] > 0.99


def test_facts_are_bound_as_plain_values_by_name_end_and_key(monkeypatch):
    bound, found = {}, estimate([0.1, 0.2, 0.4])
    monkeypatch.setattr(myst_nb, "glue", lambda name, value, display: bound.update({name: value}))
    gaps = pd.Series({"word": 0.1, "post-norm": 0.2})
    bind(count=np.int64(3), name="IMDB", gap=found, sst={"share": np.float32(0.5), "gap": gaps})
    numbers = {"gap": found.value, "gap_low": found.low, "gap_high": found.high}
    of_sst = {"sst_share": 0.5, "sst_gap_word": 0.1, "sst_gap_post-norm": 0.2}
    assert bound == {"count": 3, "name": "IMDB", **numbers, **of_sst}
    assert {type(value) for value in bound.values()} == {int, float, str}


def test_what_rounds_to_zero_has_no_sign():
    shown = show(pd.DataFrame({"r": [-0.001, -0.01]}), digits=2).rounded()
    assert shown.r.to_list() == ["0.00", "-0.01"]


def test_a_lead_is_bold_and_in_plain_text_has_a_star():
    names = ["value", "low", "high", "lead"]
    gaps = pd.DataFrame([[0.2, 0.1, 0.3, 1], [-0.2, -0.4, 0.1, 0]], ["a", "b"], names)
    for shown, column in ((show(side_by_side({"r": gaps})), "r"), (show(gaps), "value")):
        assert shown.rounded()[column].str.split().str[0].tolist() == ["0.200*", "-0.200"]
        assert not any("lead" in name for name in shown.rounded())
    page = show(side_by_side({"r": gaps}))._repr_mimebundle_()["text/html"]
    assert page.count("<b>") == 1
    assert "<td><b>0.200</b><br><small>[0.100, 0.300]</small></td>" in page
