"""The table of families: as a trial finds them now, and every covered family is among them."""

import pandas as pd
import pytest

from experiments import families, zoo


@pytest.fixture(scope="module")
def kept():
    return pd.read_csv(families.OUT, keep_default_na=False).set_index("family")


@pytest.mark.parametrize("kind", ["bert", "opt", "bloom", "fnet", "canine"])
def test_a_family_is_as_the_table_says(kept, kind):
    found, said = families.table([kind]).set_index("family").loc[kind], kept.loc[kind]
    assert dict(found.drop("gap")) == dict(said.drop("gap"))
    assert float(found.gap or 0) <= 1e-4  # its power of ten depends on how a processor rounds


def test_the_table_has_every_covered_family_and_what_is_answered_is_plain_torch(kept):
    texts = {name.replace("_", "-") for name in zoo.FAMILIES if name != "vit"}
    texts = {{"gemma3": "gemma3_text"}.get(name, name) for name in texts}
    by_rules = kept[kept.covered == "by rules"]
    assert texts <= set(by_rules.index)
    assert len(by_rules) >= 85
    assert (by_rules.gap.astype(float) <= 1e-4).all()
    assert (kept.gap == "")[kept.covered != "by rules"].all()
    assert not kept.removals.str.contains("differs").any()
    assert (kept.covered != "not tried").sum() >= 60
    assert (kept.reason != "")[kept.covered != "by rules"].all()
