"""A draft of live parameters: what is to be changed, from which revision. Pure.

A draft travels in the address (``?draft=linear.alpha:0.7;policy:"linear"&base=12``), so that it
outlives a reload and can be handed to a colleague.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core import wire
from dashboard.parts import format as fmt

CONFIRM = "APPLY"
"""What is to be typed before a dangerous change."""
DANGEROUS: dict[str, str] = {
    "policy": "every request is placed by another formula at once",
    "slo": "limits decide what is refused and what counts as missed",
    "admission": "requests may be turned away that are served now, or the other way round",
    "breaker": "nodes may leave the fleet sooner, or stay although they fail",
    "trust": "cache signals may be believed that are wrong",
    "guard": "a bad change may not be taken back by itself any more",
    "hotspot.enabled": "nodes may leave the candidates of hot prefixes",
    "migration.enabled": "prefixes are copied between nodes",
    "cpp.enabled": "long prompts are split over several nodes",
}
"""Path or group -> what may go wrong."""
UNTRIED = frozenset({"breaker", "trust", "cpp", "migration", "hotspot", "batching", "guard", "slo",
                     "shadow"})  # fmt: skip
"""Groups that hold for the whole fleet: a canary or shadow cannot try them."""
_TITLES = {
    "policy": "Policy",
    "slo": "Latency limits",
    "cpp": "Long prompts (CPP)",
    "trust": "Cache trust",
    "load": "Load",
}
_FIRST = ("fetch", "admission", "slo", "load", "decode", "migration", "hotspot", "breaker", "trust",
          "cpp", "batching", "guard", "shadow")  # fmt: skip
NUMBER_CHARS_MAX = 18
"""Digits of a revision in the address; longer ones are none."""
DRAFT_MAX = 4000
"""Characters of a draft in the address."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Path -> new value, made from revision `base`."""

    base: int
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.changes)

    def put(self, item: wire.TunableView, value: Any) -> Draft:
        """With one value set; the live value again takes it out of the draft."""
        changes = {p: v for p, v in self.changes.items() if p != item.path}
        if not same(value, item.value):
            changes[item.path] = value
        return replace(self, changes=changes)

    def without(self, path: str) -> Draft:
        """With one value as it is live."""
        return replace(self, changes={p: v for p, v in self.changes.items() if p != path})


def same(a: Any, b: Any) -> bool:
    """Whether two values are one, whatever number type they have."""
    return (type(a) is bool and type(b) is bool and a == b) or (type(a) is not bool and a == b)


def draft_text(draft: Draft) -> str:
    """The draft as it stands in the address."""
    return ";".join(f"{path}:{json.dumps(value)}" for path, value in draft.changes.items())


def parse_draft(text: str, base: int, items: Sequence[wire.TunableView]) -> tuple[Draft, list[str]]:
    """A draft from an address, and what of it could not be used, in words."""
    known = {item.path: item for item in items}
    draft, wrong = Draft(base), []
    for part in filter(None, text[:DRAFT_MAX].split(";")):
        path, colon, written = part.partition(":")
        item = known.get(path)
        if item is None or not colon:
            wrong.append(f"{path}: no such parameter")
            continue
        try:
            value = json.loads(written)
        except ValueError:
            value = written
        problem = complaint(item, value)
        if problem:
            wrong.append(problem)
        else:
            draft = draft.put(item, value)
    return draft, wrong


def adopted(changes: Mapping[str, Sequence[Any]], live: int) -> Draft:
    """What a trial or a revision changed (path -> before, after) as a draft on the live one."""
    return Draft(live, {path: pair[1] for path, pair in changes.items()})


def parse_base(text: str, live: int) -> int:
    """Revision that a draft in an address was made from; the live one where that never was."""
    known = text.isdecimal() and len(text) < NUMBER_CHARS_MAX and int(text) <= live
    return int(text) if known else live


def complaint(item: wire.TunableView, value: Any) -> str:
    """Why a value does not fit its parameter; empty where it does. The service checks again."""
    if item.choices:
        known = any(same(value, choice) for choice in item.choices)
        return "" if known else f"{item.path}: {value!r} is not one of its choices"
    if isinstance(item.default, str):
        return "" if isinstance(value, str) else f"{item.path}: {value!r} is not a name"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"{item.path}: {value!r} is not a number"
    if not math.isfinite(value):
        return f"{item.path}: {value} is not a number"
    low, high = item.low, item.high
    if (low is not None and value < low) or (high is not None and value > high):
        return f"{item.path}: {value:g} is outside {bounds(item)}"
    return ""


def bounds(item: wire.TunableView) -> str:
    """What a parameter may be, in words."""
    if item.choices:
        return f"one of {len(item.choices)}"
    if item.low is None or item.high is None:
        return "a name"
    unit = f" {item.unit}" if item.unit else ""
    return f"{fmt.digits(item.low)} to {fmt.digits(item.high)}{unit}"


def word(value: Any, unit: str = "") -> str:
    """A value as an operator reads it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return fmt.NONE
    text = fmt.figure(value) if isinstance(value, (int, float)) else str(value)
    return f"{text} {unit}".strip()


# -- groups ----------------------------------------------------------------------------------


def group_of(path: str) -> str:
    """First part of a path."""
    return path.partition(".")[0]


def groups(items: Sequence[wire.TunableView], policy: str) -> list[str]:
    """Groups in the order in which an operator needs them: the live policy's first."""
    there = list(dict.fromkeys(group_of(item.path) for item in items))
    first = [g for g in ("policy", policy, *_FIRST) if g in there]
    return list(dict.fromkeys([*first, *there]))


def group_title(group: str, policy: str, draft: Draft) -> str:
    """Name of a group, whether it is the (drafted or live) policy's, how much is drafted."""
    known = _TITLES.get(group) or group.replace("_", " ").capitalize()
    whose = "draft's policy" if "policy" in draft.changes else "live policy"
    title = f"{known} ({whose})" if group == policy else known
    count = sum(group_of(path) == group for path in draft.changes)
    return f"{title} · {count} drafted" if count else title


def shown_items(
    items: Sequence[wire.TunableView], group: str, search: str
) -> list[wire.TunableView]:
    """Parameters of a group, or those whose name or meaning holds the text."""
    text = search.strip().lower()
    if text:
        return [i for i in items if text in i.path.lower() or text in i.doc.lower()][:30]
    return [i for i in items if group_of(i.path) == group]


# -- what a draft means ----------------------------------------------------------------------


def dangers(draft: Draft) -> list[str]:
    """Sentences: what may go wrong with this draft."""
    found = []
    for path in draft.changes:
        why = DANGEROUS.get(path) or DANGEROUS.get(group_of(path))
        if why:
            found.append(f"`{path}`: {why}")
    return found


def not_tried(draft: Draft) -> list[str]:
    """Paths that a canary or shadow cannot try."""
    return [path for path in draft.changes if group_of(path) in UNTRIED]


def diff_rows(draft: Draft, items: Sequence[wire.TunableView]) -> list[dict[str, object]]:
    """One row a change: live against drafted."""
    known = {item.path: item for item in items}
    rows: list[dict[str, object]] = []
    for path, value in draft.changes.items():
        item = known.get(path)
        rows.append(
            {
                "Parameter": path,
                "Live": word(item.value, item.unit) if item else fmt.NONE,
                "Draft": word(value, item.unit if item else ""),
                "Default": word(item.default, item.unit) if item else fmt.NONE,
                "Careful": "▲ dangerous" if dangers(Draft(0, {path: value})) else "",
            }
        )
    return rows


def conflict_rows(stale: wire.StaleDetail) -> list[dict[str, object]]:
    """Both diffs against the revision the draft was made from, side by side."""
    rows: list[dict[str, object]] = []
    for path in sorted({*stale.yours, *stale.theirs}):
        mine, theirs = stale.yours.get(path), stale.theirs.get(path)
        was = (mine or theirs or [None, None])[0]
        rows.append(
            {
                "Parameter": path,
                f"Revision {stale.base}": word(was),
                f"Theirs (revision {stale.live})": word(theirs[1]) if theirs else "unchanged",
                "Yours (draft)": word(mine[1]) if mine else "unchanged",
                "Conflict": "✕ both changed it" if mine and theirs else "",
            }
        )
    return rows


def rebased(draft: Draft, live: int, items: Sequence[wire.TunableView]) -> Draft:
    """The same changes on the live revision; those that are live already fall away."""
    known = {item.path: item for item in items}
    kept = {p: v for p, v in draft.changes.items() if p not in known or not same(v, known[p].value)}
    return Draft(live, kept)
