"""Messages about parameters: each names the parameter and its value, as Python spells them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from types import MappingProxyType
from typing import Any


def about(name: str, *value: Any) -> str:
    """Return how a message names a parameter, and the value that was or may be given to it."""
    return "".join([name, *(f"={each!r}" for each in value)])


def one_of(name: str, value: Any, known: Collection[Any]) -> Any:
    """Return a parameter's value, which is one of those that are known.

    Raises:
        ValueError: it is another.
    """
    if value not in list(known):
        raise ValueError(about(name, value) + f" is not one of {list(known)}")
    return value


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Return a parameter's value, which is a whole number, at least so large.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, Integral) or value < least:
        raise ValueError(about(name, value) + f" is not a whole number from {least} on")
    return int(value)


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return names for a message: of many the first ones, and how many there are."""
    more = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@contextmanager
def plainly(what: str, meanings: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Turn what a library raises on files that cannot be read into one sentence.

    `meanings`: words of its messages, and what they mean here.

    Raises:
        ValueError: whatever it was.
    """
    try:
        yield
    except Exception as error:  # each format has a class of errors of its own
        message = f"{type(error).__name__}: {error}"
        known = next((means for word, means in meanings.items() if word in message), None)
        raise ValueError(f"{what} cannot be loaded: {known or message.splitlines()[0]}") from error
