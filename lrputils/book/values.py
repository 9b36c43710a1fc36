"""What the chapters' parameters may be, by name: known before a kernel starts.

The lists repeat what the package itself refuses, so that nothing heavy need be imported to
check them; `tests/book/test_parameters.py` holds the two together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_PROMPTS = "as 'Review: {text} It was', and verbalizers, as ' bad, good'"
_Rule = tuple[Callable[[Any], bool], str]  # what a value must be: a test, and the same in words


def _from(least: float, most: float = float("inf")) -> _Rule:
    words = f"{least} or more" if most == float("inf") else f"{least} to {most}"
    return lambda value: least <= value <= most, words


def _one_of(*choices: str) -> _Rule:
    return lambda value: value in choices, f"one of {', '.join(choices)}"


_ASSIGNED = re.compile(r"^(\w+) = ", re.M)
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")
WANTED: dict[str, _Rule] = {
    "values": (lambda value: 2 <= len(value) <= 8, "two to eight whole numbers"),
    "max_factors": _from(3),
    "embedding": _one_of("learned", "none"),
    "pooling": _one_of("mean", "flattened"),
    "scaling": _one_of("unit", "standard", "signed"),
    "removal": _one_of("zero", "black", "delete"),
    "seeds": _from(1),
    "images": _from(1),
    "text": (lambda value: bool(value.strip()), "a text with words"),
    "limit": _from(1),
    "permutations": (lambda n: n >= 4 and n % 2 == 0, "an even number from 4 on"),
    "max_tokens": _from(3),
    "chunk": _from(1),
    "template": (lambda value: value.count("{text}") == 1, "a prompt with {text} in it, once"),
    "readout": _one_of("word", "sum", "post-norm"),
    "rate": _from(0.001),
    "utilisation": _from(0.01, 1),
    "price": _from(0),
    "device": (lambda value: bool(_DEVICE.fullmatch(value)), "auto, cpu, cuda, cuda:N or mps"),
}


def check_model(given: Mapping[str, Any]) -> None:
    """Refuse a language model in a chapter that takes a template, and has none.

    Raises:
        ValueError: it is one.
    """
    if given.get("model") is None:
        return
    from lrputils.data.files import find_model

    _, folder, _ = find_model(given["model"])
    config = json.loads((folder / "config.json").read_text("utf-8"))
    speaks = any(
        name.endswith(("ForCausalLM", "LMHeadModel")) for name in config.get("architectures") or ()
    )
    if speaks and "text" not in given and given.get("template", "") is None:
        raise ValueError(
            f"model={given['model']!r} is a language model, and a classifier only by a template, "
            + _PROMPTS
        )


def check_value(name: str, value: Any) -> None:
    """Refuse a value that no chapter's parameter of this name can take; say what it must be."""
    holds, words = WANTED.get(name, (bool, ""))
    if words and value is not None and not holds(value):
        raise ValueError(f"{name}={value!r} must be {words}")


def check_parameters() -> None:
    """Refuse what Papermill put into the running notebook if it is no parameter or no value of it.

    Papermill itself only warns about a name that the notebook does not have. Without a cell of its
    making, as in a notebook run by hand, the model alone is checked.
    """
    from IPython import get_ipython

    variables = get_ipython().user_ns
    check_model(variables)
    cells = variables.get("In", [])
    injected = [i for i, cell in enumerate(cells) if cell.startswith("# Parameters\n")]
    if not injected:
        return
    known, given = map(_ASSIGNED.findall, cells[injected[-1] - 1 : injected[-1] + 1])
    for name in given:
        if name not in known:
            has = ", ".join(known) or "none"
            raise ValueError(f"this chapter has no parameter {name!r}; it has: {has}")
        check_value(name, variables[name])
