import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from lrputils import stats
from lrputils.report.answers import about_run, ahead
from lrputils.report.audit_answers import CANNOT_TELL, Verdict


@pytest.mark.parametrize(
    ("shift", "texts", "said"),
    [
        (1, 40, "A is ahead"),
        (-1, 40, "B is ahead"),
        (0, 40, "neither is ahead"),
        (1, 19, "too few"),
    ],
)
def test_a_direction_is_said_only_where_the_verdict_and_the_texts_carry_it(shift, texts, said):
    values = shift + np.tile([-0.1, 0.1], 20)[:texts]
    told = ahead("A", "B", stats.paired_difference(values, np.zeros(texts)))
    assert told.startswith(f"A less B is {values.mean():+.2f} [")
    assert told.partition("], ")[2].startswith(said)


def test_an_answer_is_of_a_reader_s_run_alone():
    assert about_run("mine", 20, "A", "B", own=True) == "On mine, 20 texts: A; B."
    assert about_run("mine", 6, "A", own=True).endswith("20 texts are the least that decide.")
    assert about_run("mine", 872, "A", own=False) == ""


def test_one_text_is_one_and_has_no_interval():
    assert about_run("mine", 1, "A", own=True).startswith("On mine, 1 text: A.")
    one = lrp.evaluate(lrp.load_classifier(device="cpu"), ["a film"], ["loo", "attnlrp"])
    assert repr(one).startswith("1 text: mean r")
    r = stats.estimate(np.array([0.9]))
    told = str(Verdict(CANNOT_TELL, "attnlrp", "word", r, np.inf, "", 0.0, pd.DataFrame()))
    assert "mean r 0.90, n = 1." in told
