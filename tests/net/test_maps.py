"""Maps of three tiny models, compared with those that `maps.npz` keeps."""

from __future__ import annotations

import numpy as np
import pytest

from tests.net import maps

# float64 as computed; what the package rounds to float32 may round the other way.
CLOSE = {np.dtype("float64"): 1e-9, np.dtype("float32"): 1e-6}
# Llama's own norm rounds to float32 in a float64 model, too, and rules follow what it computes; the
# softmax taken as the identity divides by scores near zero.
ROUNDS = {"llama": 1e-6, "llama rule attention=identity": 1e-4}


@pytest.fixture(scope="module")
def kept():
    with np.load(maps.FILE) as file:
        return dict(file)


@pytest.fixture(scope="module")
def found():
    return dict(maps.computed())


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_maps_are_those_that_were_kept(name, kept, found):
    ours, theirs = (
        {what: values for what, values in some.items() if what.split()[0] == name}
        for some in (found, kept)
    )
    assert sorted(ours) == sorted(theirs), "a map appeared or is gone"
    differ = {}
    for what, values in theirs.items():
        assert (ours[what].shape, ours[what].dtype) == (values.shape, values.dtype), what
        rounds = ROUNDS.get(name, 0.0), ROUNDS.get(what.rpartition(" ")[0], 0.0)
        close = max(CLOSE[values.dtype], *rounds)
        off = np.abs(ours[what] - values) / max(1.0, np.nanmax(np.abs(values)))
        if not ((off <= close) | (np.isnan(ours[what]) & np.isnan(values))).all():
            differ[what] = float(np.nanmax(off))
    assert not differ
