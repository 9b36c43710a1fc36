"""The named methods: what each is called, how it is drawn, and the options it takes.

A method is one function, entered where it is written:

    @method("half-value", "Half of V", colour="#F0E442")
    def half_value(model, inputs, *, target, readout="word"): ...

Its options are its keyword-only arguments, and their documentation is that of the docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pandas as pd
import yaml
from docstring_parser import google
from torch import Tensor

from lrputils.removal.mask_gradient import BOTH

Function = Callable[..., Tensor]
_Price = Callable[..., float]


@dataclass(frozen=True)
class Option:
    """A named option of a method: its default, and what it chooses."""

    default: Any
    doc: str


@dataclass(frozen=True)
class Method:
    """An attribution method, as `attribute`, tables and figures know it.

    Attributes:
        colour: how figures draw it, any of matplotlib's; None where one that is left will do.
        function: `(model, inputs, *, target, **options)` → scores `(batch, tokens)`.
        options: name → default and documentation.
        rules: whether it needs a model whose operations are known.
        price: `(tokens, **options)` → forward passes of a text of so many tokens; a backward one
            counts as two, and the one that finds the predicted class is left out.
        told: what it is, in a few words.
    """

    name: str
    label: str
    colour: str | None
    function: Function
    options: Mapping[str, Option]
    rules: bool = True
    price: _Price = lambda tokens, **_: BOTH
    told: str = ""

    def passes(self, tokens: int, options: Mapping[str, Any] | None = None) -> float:
        """Return its `price` of a text of so many tokens with these options."""
        return self.price(tokens, **self.with_defaults(options or {}))

    @property
    def formula(self) -> str:
        """Its price of a text of n tokens, as "n + 1"; that of long ones."""
        many = self.passes(20_000)
        each = (many - self.passes(10_000)) / 10_000
        whole = round(many - 20_000 * each, 6)
        of_tokens = ["n" if each == 1 else f"{each:g} · n"] * bool(each)
        return " + ".join([*of_tokens, *[f"{whole:g}"] * bool(whole)])

    def with_defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options, those that are not given at their defaults.

        Raises:
            ValueError: an option that this method does not have; the message lists its own.
        """
        for name in options:
            if name not in self.options:
                known = ", ".join(f"{k}={v.default!r}" for k, v in self.options.items()) or "none"
                raise ValueError(f"{self.name!r} has no option {name!r}; its options: {known}")
        return {name: option.default for name, option in self.options.items()} | dict(options)


class Methods(dict[str, Method]):
    """The methods by name; shown as a table."""

    def find(self, name: str) -> Method:
        """Return a method by its name or its label, whatever the case of their letters.

        ValueError for another name; the message has a close one, if there is one, and all.
        """
        known = {each.label.lower(): each for each in self.values()}
        known |= {each.name.lower(): each for each in self.values()}
        plain = str(name).strip().lower()
        if plain not in known:
            close = [known[one].name for one in get_close_matches(plain, known, 1)]
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(f"unknown method {name!r}{hint}; there are {', '.join(sorted(self))}")
        return known[plain]

    def setting(self, text: str) -> tuple[Method, dict[str, Any]]:
        """Return the method and the options that a text names, as "mask-gradient:groups=2".

        Several options are NAME:FIRST=1:SECOND=2, values as in YAML.

        Raises:
            ValueError: an unknown method, or what is no option of it with a value.
        """
        name, *parts = str(text).split(":")
        found, given = self.find(name), {}
        for part in parts:
            option, equals, value = part.partition("=")
            if not equals or option not in found.options:
                known = ", ".join(f"{name}=…" for name in found.options) or "none"
                raise ValueError(f"{part!r} is no option of {found.name!r}; there are {known}")
            given[option] = yaml.safe_load(value)
        return found, given

    def to_frame(self) -> pd.DataFrame:
        """Return a row a method: what it is called, costs, needs and is."""
        rows = {
            name: (each.label, each.formula, "rules" if each.rules else "any", each.told)
            for name, each in self.items()
        }
        columns = ["label", "passes", "model", "what it is"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns)

    def __repr__(self) -> str:
        table = self.to_frame().reset_index(names="name")
        rows = [table.columns, *table.itertuples(index=False)]
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, wide)).rstrip() for row in rows)
        return "\n".join([*lines, _LEGEND])

    def _repr_html_(self) -> str:
        return f"{self.to_frame().to_html()}<p>{_LEGEND}</p>"


_LEGEND = (
    "n: tokens of the text; passes read it once, a backward one counts as two. Model: any that is "
    "loaded, or one of a family whose rules are known."
)
METHODS = Methods()


def method(
    name: str,
    label: str,
    colour: str | None = None,
    *,
    options_of: Function | None = None,
    rules: bool = True,
    price: _Price = lambda tokens, **_: BOTH,
    told: str = "",
) -> Callable[[Function], Function]:
    """Enter the function below into `METHODS`.

    `label` and `colour` are for tables and figures; `options_of` is the function whose signature
    and docstring say the options, where it is another; `rules`, `price` and `told`, by default the
    docstring's first lines: see `Method`.

    Raises:
        ValueError: another method has the name, or it is none: letters, digits and hyphens.
    """
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(
            f"{name!r} cannot name a method: a name is words of small letters and digits with "
            "hyphens between them, as 'my-way'"
        )

    def _enter(function: Function) -> Function:
        if name in METHODS:
            raise ValueError(f"there is a method {name!r} already: {METHODS[name]}")
        documented = options_of or function
        options, first = options_in(documented), inspect.getdoc(documented) or ""
        first = " ".join(first.partition("\n\n")[0].replace(", `(batch, tokens)`", "").split())
        what = told or first.removesuffix(".")
        METHODS[name] = Method(name, label, colour, function, options, rules, price, what)
        return function

    return _enter


def options_in(function: Function) -> dict[str, Option]:
    """A function's keyword-only arguments but `target`, and what its docstring says of each."""
    said = google.parse(inspect.getdoc(function) or "").params
    docs = {each.arg_name: " ".join((each.description or "").split()) for each in said}
    return {
        parameter.name: Option(parameter.default, docs.get(parameter.name, ""))
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "target"
    }
