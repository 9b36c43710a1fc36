"""Messages about parameters, which a caller of Python and the command line spell differently.

    raise ValueError(about("limit", 0) + " leaves no text")

reads "limit=0 leaves no text" in Python, and `as_options` says "--limit 0 leaves no text" of it.
What else stands in a message, a user's own paths among it, is never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from types import MappingProxyType
from typing import Any


class Message(str):
    """A message in Python's spelling; `options` is the same in that of the command line."""

    options: str

    def __new__(cls, text: str, options: str) -> Message:
        """Return both spellings as one text."""
        message = super().__new__(cls, text)
        message.options = options
        return message

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        """What pickle makes it of again: it comes from other processes too."""
        return str(self), self.options

    def __add__(self, other: str) -> Message:
        return Message(f"{self}{other}", self.options + getattr(other, "options", other))

    def __radd__(self, other: str) -> Message:
        return Message(f"{other}{self}", other + self.options)


def about(name: str, *value: Any) -> Message:
    """Return how a message names a parameter, and the value that was or may be given to it."""
    shown = "".join(f"{each!r}" for each in value)
    return Message(f"{name}={shown}" if value else name, f"{flag(name)} {shown}".rstrip())


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


def flag(name: str) -> str:
    """Return the option that sets a parameter."""
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"


def as_options(error: Exception) -> str:
    """Return an error's or a warning's message in the spelling of the command line."""
    return getattr(next(iter(error.args), ""), "options", str(error))
