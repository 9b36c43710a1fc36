"""The words of a text as they are shown: made safe, and in which colours."""

from __future__ import annotations

import re

import regex

FOR, AGAINST = "#b2182b", "#2166ac"  # as in assets/heatmap.css
_HIDDEN = regex.compile(r"(?!(?<=[^\x00-\x7f])[\u200c\u200d])\p{C}")
_ENDLESS = re.compile(r"(\S{29})\S{3,}(\S{30})")


def visible(text: str) -> str:
    """Return `text` with the characters that nobody sees, or that rearrange others, written out.

    Controls (ESC among them), characters that turn the direction of writing, zero-width ones,
    lone surrogates and unassigned codes become ⟨200B⟩ and the like; white space becomes a blank. A
    joiner stays behind a character that is not ASCII: emoji and several scripts need it. What is
    longer than any word loses its middle.
    """
    plain = re.sub(r"\s", " ", _ENDLESS.sub("\\1…\\2", text))
    return _HIDDEN.sub(lambda found: f"⟨{ord(found[0]):04X}⟩", plain)
