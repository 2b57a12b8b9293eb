"""Changes that charts mark: what was done or tripped in a stretch of time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from core import wire

KINDS = (
    "tunables.", "revision.", "node.", "node_breaker.", "global_breaker.", "hotspot.", "panic.",
    "canary.", "shadow.", "guard.",
)  # fmt: skip
"""Beginnings of the kinds of events that are marked: acts, and what moved by itself because of
trouble. Probes and cache signals come and go too often."""
MARKS_MAX = 40
_WORDS_MAX = 90


@dataclass(frozen=True, slots=True)
class Mark:
    """A change at one moment."""

    at: datetime
    words: str


def marks(events: Sequence[wire.EventView]) -> list[Mark]:
    """The newest changes among the events, oldest first."""
    found = [e for e in events if e.kind.startswith(KINDS)][:MARKS_MAX]
    return [Mark(e.at, _words(e)) for e in reversed(found)]


def _words(e: wire.EventView) -> str:
    kind = e.kind.replace("_", " ").replace(".", ": ", 1)
    who = str(e.data.get("author") or e.data.get("actor") or "")
    reason = str(e.data.get("reason") or "")
    parts = [kind, e.node, f"by {who}" if who else "", reason]
    text = ", ".join(part for part in parts if part)
    return text if len(text) <= _WORDS_MAX else text[: _WORDS_MAX - 1] + "…"
