from __future__ import annotations

import numpy as np
import pytest

from lrputils.display import TABLE
from lrputils.heatmap import Heatmap


def html(tokens, maps) -> str:
    return Heatmap(tokens, maps)._repr_mimebundle_()["text/html"]


def test_markup_among_the_tokens_and_names_is_escaped():
    page = html(["<script>", '"&'], {"<b>": np.array([1.0, -1.0])})
    assert "<script>" not in page
    assert "<b><b>" not in page
    assert "&lt;script&gt;" in page


def test_the_sign_chooses_the_colour_and_the_size_its_strength():
    page = html(["up", "down", "none"], {"m": np.array([2.0, -1.0, 0.0])})
    up, down, none = page.split("<span")[1:]
    assert "178,24,43,0.75" in up
    assert "33,102,172,0.38" in down
    assert ",0.00)" in none


def test_a_map_of_zeros_has_no_colour():
    assert html(["a", "b"], {"m": np.zeros(2)}).count(",0.00)") == 2


def test_the_scores_travel_in_full_precision():
    bundle = Heatmap(["a"], {"m": np.array([1 / 3])})._repr_mimebundle_()
    assert bundle[TABLE] == {"index": ["a"], "columns": {"m": [1 / 3]}}


def test_a_map_of_another_length_is_refused():
    with pytest.raises(ValueError, match="shape"):
        Heatmap(["a", "b"], {"m": np.zeros(3)})


def test_a_score_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        Heatmap(["a"], {"m": np.array([np.nan])})
