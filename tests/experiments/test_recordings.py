"""The recordings beside the package, against the package's own verbs and slow twins."""

import numpy as np
import pandas as pd
import pytest
import torch

import lrputils as lrp
from experiments.recordings import __main__, layers
from lrputils.data.texts import load_texts
from lrputils.removal.perturbation import curve_mean, perturbation_curves
from lrputils.runs.options import run_alone

TEXTS = load_texts(["a film that is never dull", "a slow and empty evening"])


@pytest.fixture(scope="module")
def clf():
    return lrp.load_classifier()


def test_pairs_hidden_everywhere_are_leave_two_out(clf):
    rows = layers.layer_pairs(clf, TEXTS)
    inputs = clf.encode([TEXTS[0]])
    pairs = lrp.leave_two_out(clf, inputs).interactions[0].numpy()
    first = rows[(rows.id == TEXTS.ids[0]) & (rows.layer == 1)]
    assert np.allclose(first.interaction, pairs[first.i, first.j], atol=1e-4)


def test_replaced_tokens_are_replaced_in_the_order_of_the_scores(clf):
    inputs = clf.encode([TEXTS[0]])
    scores = lrp.attribute(clf, inputs, "attnlrp")
    how = {"target": torch.tensor([1]), "removal": "mask"}
    found = curve_mean(perturbation_curves(clf, inputs, scores, **how).morf)
    ids, values = inputs["input_ids"].clone(), []
    own = inputs.content_mask[0].nonzero()[:, 0]
    with torch.no_grad():
        for token in [None, *own[scores[0, own].argsort(descending=True, stable=True)]]:
            if token is not None:
                ids[0, token] = inputs.replacements["mask"]
            values.append(float(clf.model(input_ids=ids).logits[0, 1]))
    assert float(found) == pytest.approx(np.mean(values), abs=1e-5)


def test_the_command_line_records_and_goes_on(tmp_path):
    said = ["uniform", "--limit", "3", "--seed", "0", "--part-size", "2", "--quiet", "--out"]
    folder = run_alone(__main__.record, [*said, str(tmp_path / "a")], prog="recordings")
    assert len(pd.read_parquet(folder / "rows.parquet")) == 12
