from __future__ import annotations

import pytest

from lrputils.report.answers import ahead, answer
from lrputils.stats import Estimate


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        (Estimate(0.12, 0.1, 0.14, 872, 0), "A is ahead of B by +0.12 [+0.10, +0.14]"),
        (Estimate(-0.12, -0.14, -0.1, 872, 0), "B is ahead of A by +0.12 [+0.10, +0.14]"),
        (Estimate(0.12, -0.1, 0.34, 872, 0), "A less B is +0.12 [-0.10, +0.34], neither"),
        (Estimate(0.12, 0.1, 0.14, 19, 0), "A less B is +0.12 [+0.10, +0.14], too few texts"),
    ],
)
def test_a_direction_is_said_only_where_the_interval_and_the_texts_carry_it(gap, said):
    assert ahead("A", "B", gap).startswith(said)


def test_an_answer_is_of_a_reader_s_run_alone():
    assert answer("mine", 20, "A", "B", own=True) == "On mine, 20 texts: A; B."
    assert answer("mine", 6, "A", own=True).endswith("20 texts are the least that decide.")
    assert "mine" not in answer("mine", 872, "A", own=False)
