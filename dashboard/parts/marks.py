"""Changes that charts mark: what was done or tripped in a stretch of time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from core import wire

KINDS = (
    "tunables.", "revision.", "node.", "node_breaker.", "global_breaker.", "hotspot.", "panic.",
    "canary.", "shadow.", "guard.", "service.", "health.dead",
)  # fmt: skip
"""Beginnings of the kinds of events that are marked: acts, and what moved by itself because of
trouble. Other words of probes, and cache signals, come and go too often."""
_OF_A_START = ("node.registered", "node.restored", "node.left_out")
"""What a start does with the nodes it is given: `service.started` stands for all of it."""
ONE_CHANGE = timedelta(seconds=2)
"""Events alike that follow each other sooner are one change to many nodes."""
MARKS_MAX = 40
NODES_NAMED = 3
_WORDS_MAX = 90


@dataclass(frozen=True, slots=True)
class Mark:
    """A change at one moment."""

    at: datetime
    words: str


def marks(events: Sequence[wire.EventView]) -> list[Mark]:
    """The newest changes among the events, which come newest first; oldest first."""
    changes: list[list[wire.EventView]] = []
    for e in events:
        if not e.kind.startswith(KINDS) or _of_a_start(e) or _stayed(e):
            continue
        if changes and _alike(changes[-1][-1], e):
            changes[-1].append(e)
        elif len(changes) < MARKS_MAX:
            changes.append([e])
        else:
            break
    return [Mark(alike[-1].at, _words(alike)) for alike in reversed(changes)]


def _of_a_start(e: wire.EventView) -> bool:
    """Whether nobody did it: the service took up a node of its settings or its records. A node of
    a DNS name or a publisher, or one that somebody registers, is a change."""
    return e.kind in _OF_A_START and (e.kind != "node.registered" or e.data.get("origin") == "file")


def _stayed(e: wire.EventView) -> bool:
    """Whether nothing moved: a node that is taken as new after its engine went is where it was."""
    return e.kind.endswith(f".{e.data.get('before')}")


def _alike(later: wire.EventView, e: wire.EventView) -> bool:
    """Whether two events are one change to several nodes."""
    same = all(later.data.get(k) == e.data.get(k) for k in ("author", "actor", "reason"))
    many = bool(later.node and e.node)
    return many and same and later.kind == e.kind and later.at - e.at <= ONE_CHANGE


def _words(alike: Sequence[wire.EventView]) -> str:
    e = alike[-1]
    kind = e.kind.replace("_", " ").replace(".", ": ", 1)
    who = str(e.data.get("author") or e.data.get("actor") or "")
    reason = str(e.data.get("reason") or "")
    parts = [kind, _nodes(alike), f"by {who}" if who else "", reason]
    text = ", ".join(part for part in parts if part)
    return text if len(text) <= _WORDS_MAX else text[: _WORDS_MAX - 1] + "…"


def _nodes(alike: Sequence[wire.EventView]) -> str:
    """The nodes by name while they are few, else how many there are."""
    names = sorted({e.node for e in alike})
    return ", ".join(names) if len(names) <= NODES_NAMED else f"{len(names)} nodes"
