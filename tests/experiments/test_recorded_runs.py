"""The committed recordings: small, without local traces, and what a new measurement gives again."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pkgutil import resolve_name

import nbformat
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import lrputils as lrp
from experiments.recordings.__main__ import KINDS, rounded
from lrputils.book.layout import find_book
from lrputils.report.display import ANSWER
from lrputils.runs import results

HOME = find_book().root / "results"
# What made them: the same program, under three names.
COMMANDS = (
    "lrputils record ",
    "python -m recipes.recordings",
    "python -m experiments.recordings",
)
RUNS = sorted(path.parent for path in HOME.glob("*/*/provenance.json"))


def test_there_are_recordings_and_they_are_small():
    assert {path.parent.name for path in RUNS} >= {"sst", "imdb", "mnist"}
    assert sum(path.stat().st_size for path in HOME.rglob("*") if path.is_file()) <= 20e6


@pytest.mark.parametrize("run", RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
class TestRun:
    def test_its_rows_are_those_described_and_it_says_what_was_run_on_what(self, run):
        facts = results.read(run).provenance
        assert facts["command"].startswith(COMMANDS)
        assert re.fullmatch(r"sha256 [0-9a-f]{64}|commit [0-9a-f]{40}", facts["data"]["identity"])
        assert re.match(r"[0-9a-f]{40}", facts["revision"])
        assert facts["seconds"] > 0
        assert {"python", "torch", "lrputils"} <= set(facts["versions"])

    def test_it_shows_no_local_path(self, run):
        text = (run / results.PROVENANCE).read_text()
        assert not re.search(r"(?<!\w)/(?:home|root|tmp|work|Users|mnt)/", text)


# Kind → options with which its rows were recorded; "texts" are recorded as `sst`.
OPTIONS = {
    "baselines": {"run": "minilm-sst2"},
    "factorial": {"run": "minilm-sst2"},
    "texts": {"methods": ["attnlrp", "cp-lrp", "mask-gradient", "rollout", "grad-x-input"]},
    "maps": {"removals": ["attention-mask", "delete", "zero"]},
    "yardstick": {"permutations": 64},
    "curves": {"families": [], "removals": ["attention-mask", "mask"]},
    "patching": {"patches": 8},
}
KEYS = ["id", "method", "options", "readout", "family", "layer", "removal", "units", "form"]
KEYS += ["norm", "activation", "halving", "softmax", "degree"]
KEYS += ["epsilon", "randomised", "part", "i", "j", "site", "token", "source"]
# What moves with the last bits of float32 on another processor, or with time.
LOOSE = {"morf": 0.03, "lerf": 0.03, "delta": 0.05, "seconds": np.inf}
LEFT_OUT = {"lerf_curve", "morf_curve", "content"}


# Where rows are kept, of which kind, and the classifier's texts.
AGAIN = [("sst", "texts"), ("reviews", "texts")]
AGAIN += [(kind, kind) for kind in KINDS if (HOME / kind / "minilm-sst2").is_dir()]


@pytest.mark.parametrize(("experiment", "kind"), AGAIN)
def test_two_texts_give_their_rows_again(experiment, kind, data_dir, models_dir):
    name, file, drawn = "minilm-sst2", "sst2/validation.parquet", {}
    if experiment == "reviews":
        name, file, drawn = "minilm-imdb", "imdb/test.parquet", {"limit": 200, "seed": 0}
    clf = lrp.load_classifier(models_dir / name, device="cpu")
    texts, run = lrp.load_texts(data_dir / file, **drawn), results.load(experiment, name, HOME)
    assert clf.identity == run.provenance["model"]["identity"]
    kept, options = run.rows.astype({"id": str}), OPTIONS.get(kind, {})
    if experiment == "reviews":
        options = options | {"chunk": 16, "max_length": 512, "methods": ["attnlrp", "cp-lrp"]}
        options |= {"ablation_curves": False, "curves": ["cp-lrp"]}
    if kind == "factorial":  # without the norm's rule a map at the sum is what rounding leaves
        kept = kept[kept.norm | (kept.readout != "sum")]
    lengths = {i: len(texts[texts.ids.index(i)].split()) for i in kept.id.unique()}
    few = sorted(lengths, key=lengths.get)[1:3]
    chosen = texts.take([texts.ids.index(i) for i in few])
    again = rounded(resolve_name(KINDS[kind])(clf, chosen, **options))
    keys = [name for name in KEYS if name in kept]
    assert set(again) == set(kept)
    again, kept = (rows.assign(n=rows.groupby(keys).cumcount()) for rows in (again, kept))
    keys.append("n")  # a patch may be drawn twice
    both = again.merge(kept, on=keys, suffixes=("", "_kept"), validate="one_to_one")
    assert set(both.id) == set(few)
    assert len(both) > 0.5 * len(again)
    for name in set(kept) - {*keys} - LEFT_OUT:
        ours, theirs = both[name], both[f"{name}_kept"]
        if name == "scores":
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one, other, atol=2e-3 * max(1, np.abs(other).max()))
        elif pd.api.types.is_float_dtype(ours):
            difference = (ours - theirs).abs()
            assert (difference.fillna(0) <= LOOSE.get(name, 2e-3)).all(), name
            # ablations have curves on the first texts alone
            assert name in LOOSE or (ours.isna() == theirs.isna()).all(), name
        else:
            assert (ours == theirs).all(), name


BOOK = find_book()
README = (BOOK.root / "results/README.md").read_text(encoding="utf-8")


def test_every_column_is_explained():
    explained = set(re.findall(r"`([\w-]+)`", README.split("## Columns")[1]))
    for path in BOOK.root.glob("results/*/*/rows.parquet"):
        assert set(pq.read_schema(path).names) <= explained, path


def test_a_number_is_computed_again_without_the_package(monkeypatch):
    monkeypatch.chdir(BOOK.root)
    with redirect_stdout(StringIO()) as said:
        exec(re.search(r"```python\n(.*?)```", README, re.DOTALL)[1], {})
    cells = nbformat.read(BOOK.chapter("05_layer_ablation").with_suffix(".ipynb"), 4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    (answer,) = (o.data[ANSWER] for o in outputs if ANSWER in o.get("data", {}))
    assert said.getvalue().startswith(f"{answer['facts']['sum_mini']:+.4f} [0.05")
