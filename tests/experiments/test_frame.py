"""The frame holds every recorded map once, under the names of all kinds."""

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from experiments import frame
from experiments.by_text import MAP
from lrputils.runs.datasets import Settings, evaluate_dataset


def test_no_map_stands_twice():
    rows = frame.read_maps("maps", "canon", "controls", "remedy")
    assert not rows.duplicated(["model", "data", "id", *MAP]).any()
    assert rows[[*MAP]].notna().all().all()
    assert set(rows.model) == {frame.MINILM, frame.MPNET6, frame.MPNET}


@pytest.fixture(scope="module")
def own_run(classifier, tmp_path_factory):
    """A run as `lrputils evaluate` writes it, and the same rows as `lrp.evaluate` returns them."""
    out, texts = tmp_path_factory.mktemp("run"), lrp.load_texts(limit=3)
    evaluate_dataset(classifier, texts, out, Settings(methods=("ig", "attnlrp")), quiet=True)
    found = lrp.evaluate(classifier, texts, ["ig", "attnlrp"], progress=False)
    return out, found.rows.assign(model=classifier.name, data=texts.name)


def test_a_run_of_evaluate_is_read_as_its_rows(own_run):
    out, rows = own_run
    read = frame.read_run(out, methods=["attnlrp"])
    shown = ["model", "data", "id", "method", "readout", "target", "tokens"]
    assert [*read][:2] == ["model", "data"]
    pd.testing.assert_frame_equal(read[shown], rows[shown], check_dtype=False)
    np.testing.assert_allclose(read.r, rows.r, atol=1e-3)


@pytest.mark.parametrize(
    ("own", "place", "name"), [(True, 0, "untrained"), (False, -1, "this run")]
)
def test_a_reader_s_run_stands_first_and_the_book_s_last(own_run, own, place, name):
    recorded = frame.read_rows("sst", ["minilm-sst2"])
    rows = frame.with_run(recorded, own_run[1], own=own)
    assert len(rows) == len(recorded) + len(own_run[1])
    models = list(rows.model.unique())
    assert sorted(models) == sorted([frame.MINILM, name])
    assert models[place] == name
    here = rows[rows.model == name]
    assert list(here.r) == list(own_run[1].r)


def test_what_a_run_lacks_is_named_with_the_command_that_writes_it(own_run, tmp_path):
    said = r"without the methods that are shown here: `lrputils evaluate .* --methods ig,cp-lrp"
    with pytest.raises(ValueError, match=said):
        frame.read_run(own_run[0], methods=["ig", "cp-lrp"])
    with pytest.raises(
        ValueError, match=r"the layers, curves that .* --layers --curves 16 --units"
    ):
        frame.read_run(own_run[0], methods=["ig"], layers=True, curves=16)
    with pytest.raises(FileNotFoundError, match="holds no run: `lrputils evaluate"):
        frame.read_run(tmp_path / "none", methods=["ig"])


def test_a_sum_is_that_of_the_method(clf):
    inputs = clf.encode(["a film that is never dull", "dull"])
    rows = []
    for groups in (None, 2):
        scores = lrp.attribute(clf, inputs, "mask-gradient", groups=groups)
        for text, length in enumerate(inputs.lengths.tolist()):
            told = {"model": "m", "data": "d", "id": str(text), "method": "mask-gradient"}
            told |= {"options": f"groups={groups}" if groups else "", "passes": 3 * (groups or 1)}
            content = inputs.content_mask[text, :length].numpy()
            rows.append({**told, "scores": scores[text, :length].numpy(), "content": content})
    found = frame.add_sums(pd.DataFrame(rows)).query("options == 'groups=2, with_open=True'")
    expected = lrp.attribute(clf, inputs, "mask-gradient", groups=2, with_open=True)
    for text, row in enumerate(found.itertuples()):
        np.testing.assert_allclose(row.scores, expected[text, : len(row.scores)], atol=1e-5)
        assert row.passes == 9
