"""What an address asks for that cannot be done, in words that name the parameter.

Widgets that stand in the address drop what they do not know without a word, and the ends of the
window are mended; whoever followed a link would look at something else than was meant. What names
one thing (a node, a decision, an event) is looked up by its page, which says where it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from dashboard.overview.models import Notice, not_used, unused
from dashboard.parts.window import CHOICES, CUSTOM, SPAN_MAX, parse

ZONES = ("UTC", "local")
_TIME = "a time in UTC like `2026-03-01T12:00`"
_ON = frozenset({"true", "false"})
EVERYWHERE = frozenset({"range", "from", "to", "tz", "live", "embed", "embed_options"})
"""Parameters of the frame, and Streamlit's own."""


def complaints(given: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> Iterator[Notice]:
    """What of an address is not used. `known`: the page's parameters, each with the values that
    it takes, none for one that takes any text."""
    choices = {"range": CHOICES, "tz": ZONES, **{k: v for k, v in known.items() if v}}
    for name, value in given.items():
        if name not in EVERYWHERE and name not in known:
            takes = f"This page takes {', '.join(known)}." if known else "This page takes none."
            yield unused(name, value, takes)
        elif name in choices and value not in choices[name]:
            yield not_used(name, value, one_of(choices[name]))
        elif name in ("from", "to") and parse(value) is None:
            yield not_used(name, value, _TIME)
        elif name == "live" and value.lower() not in _ON:
            yield not_used(name, value, "`true` or `false`")
    yield from _ends(given)


def _ends(given: Mapping[str, str]) -> Iterator[Notice]:
    start, end = (parse(given.get(name, "")) for name in ("from", "to"))
    if (start or end) and given.get("range") != CUSTOM:
        yield Notice("warn", "Not used: from, to", f"They need `range={CUSTOM}` beside them.")
    elif start is not None and end is not None:
        yield from _stretch(start, end)


def _stretch(start: datetime, end: datetime) -> Iterator[Notice]:
    if start > end:
        yield Notice("warn", "`from` lies after `to`", "They are taken the other way round.")
    if abs(end - start) > SPAN_MAX + timedelta(minutes=1):
        days = SPAN_MAX.days
        yield Notice("warn", "The window is too long", f"Its last {days} days are shown.")


def one_of(choices: Sequence[str]) -> str:
    """What a parameter takes, as `not_used` says it."""
    return "one of " + ", ".join(f"`{c}`" for c in choices)
