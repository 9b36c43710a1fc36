"""Each kind of recording, measured again on three of its texts, gives the committed rows."""

from pkgutil import resolve_name

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from experiments.recordings.__main__ import KINDS, rounded
from lrputils.book.layout import find_book
from lrputils.runs import results

HOME = find_book().root / "results"
# Kind → options with which its rows were recorded; "texts" are recorded as `sst`.
OPTIONS = {
    "baselines": {"run": "minilm-sst2"},
    "factorial": {"run": "minilm-sst2"},
    "texts": {"methods": ["attnlrp", "cp-lrp", "mask-gradient", "rollout", "grad-x-input"]},
    "maps": {"removals": ["attention-mask", "delete", "zero"]},
    "yardstick": {"permutations": 64},
    "refactored": {"controls": False},
    "curves": {"families": [], "removals": ["attention-mask", "mask"]},
    "patching": {"patches": 8},
    "routes": {"readouts": ["word"]},
}
KEYS = ["id", "method", "readout", "family", "layer", "rules", "removal", "setting", "form"]
KEYS += ["norm", "activation", "halving", "softmax", "degree"]
KEYS += ["variant", "epsilon", "k", "randomised", "edit", "route", "part", "i", "j"]
KEYS += ["site", "token", "source", "units", "leaning", "triple"]
# What moves with the last bits of float32 on another processor, or with time.
LOOSE = {"morf": 0.03, "lerf": 0.03, "delta": 0.05, "seconds": np.inf}
LEFT_OUT = {"lerf_curve", "morf_curve", "content"}


# Where rows are kept, of which kind, and the classifier's texts.
RUNS = [("sst", "texts"), ("imdb", "texts")]
RUNS += [(kind, kind) for kind in KINDS if (HOME / kind / "minilm-sst2").is_dir()]


@pytest.mark.parametrize(("experiment", "kind"), RUNS)
def test_three_texts_give_their_rows_again(experiment, kind, data_dir, models_dir):
    name, file, drawn = "minilm-sst2", "sst2/validation.parquet", {}
    if experiment == "imdb":
        name, file, drawn = "minilm-imdb", "imdb/test.parquet", {"limit": 100, "seed": 0}
    clf = lrp.load_classifier(models_dir / name, device="cpu")
    texts, run = lrp.load_texts(data_dir / file, **drawn), results.load(experiment, name, HOME)
    assert clf.identity == run.provenance["model"]["identity"]
    kept, options = run.rows.astype({"id": str}), OPTIONS.get(kind, {})
    if experiment == "imdb":
        options = options | {"chunk": 16, "max_length": 256, "methods": ["attnlrp", "cp-lrp"]}
        options |= {"ablation_curves": False, "curves": ["cp-lrp"]}
    if kind == "factorial":  # without the norm's rule a map at the sum is what rounding leaves
        kept = kept[kept.norm | (kept.readout != "sum")]
    lengths = {i: len(texts[texts.ids.index(i)].split()) for i in kept.id.unique()}
    few = sorted(lengths, key=lengths.get)[1:4]
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
