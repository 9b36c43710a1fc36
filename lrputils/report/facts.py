"""Facts that a chapter's sentences quote: values of the run, bound to names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd


def bind(**facts: Any) -> None:
    """Bind facts to names, for ``{glue:text}`NAME` `` in the prose; nothing is shown.

    A fact is a number or a text; an `Estimate`, or any tuple that begins with value, low and high,
    which binds NAME, NAME_low and NAME_high; or a mapping or a Series, which binds NAME_KEY for
    each of its keys.
    """
    from myst_nb import glue

    for name, value in facts.items():
        if isinstance(value, tuple):
            names = name, f"{name}_low", f"{name}_high"
            bind(**dict(zip(names, value[:3], strict=True)))
        elif isinstance(value, (Mapping, pd.Series)):
            bind(**{f"{name}_{key}": part for key, part in value.items()})
        else:
            glue(name, value.item() if hasattr(value, "item") else value, display=False)
