"""From the index's tree, prefixes and migrations to what the Cache page shows. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from core import wire
from dashboard.overview.models import TRUST_SIGN, Notice, Tile
from dashboard.parts import format as fmt
from dashboard.parts.theme import Level

KEY = re.compile(r"[0-9a-f]{16}")
KEY_WORDS = "the key of a block, 16 hexadecimal digits"
TRAIL_MAX = 24
VIEWS = ("Tree", "Hot prefixes", "Replication", "Migrations")
MODES = ("hits", "reuse age", "replicas")
"""What the colour of a cell says."""


@dataclass(frozen=True, slots=True)
class Step:
    """One class of a colour: values below `below` that reached it, in words."""

    below: float
    words: str


SCALES: dict[str, tuple[Step, ...]] = {
    "hits": (
        Step(1, "not asked for"), Step(10, "1 to 9 hits"), Step(100, "10 to 99"),
        Step(1000, "100 to 999"), Step(float("inf"), "1000 and more"),
    ),
    "reuse age": (
        Step(1, "not asked for"), Step(2, "over 1 h ago"), Step(3, "10 min to 1 h"),
        Step(4, "1 to 10 min"), Step(float("inf"), "within 1 min"),
    ),
    "replicas": (
        Step(1, "held by nobody"), Step(2, "1 node"), Step(3, "2 nodes"),
        Step(5, "3 or 4 nodes"), Step(float("inf"), "5 nodes and more"),
    ),
}  # fmt: skip
"""Classes per mode, palest first; as many as a palette has heat colours."""
_AGES = (60.0, 600.0, 3600.0)


def colour_class(cell: wire.TreeCellView, mode: str) -> int:
    """Index of the cell's class in `SCALES[mode]`."""
    value = {"hits": cell.hits, "replicas": float(cell.holders), "reuse age": _freshness(cell)}[
        mode
    ]
    return next(i for i, step in enumerate(SCALES[mode]) if value < step.below)


def _freshness(cell: wire.TreeCellView) -> float:
    """4 within a minute, 3, 2, 1 for longer ago; 0 where it was not asked for."""
    if cell.age_s is None:
        return 0.0
    return 4.0 - sum(cell.age_s >= limit for limit in _AGES)


def is_others(cell: wire.TreeCellView) -> bool:
    """Whether the cell stands for children that were left out."""
    return cell.key.startswith("others:")


def cell_words(cell: wire.TreeCellView) -> str:
    """A cell in a sentence, for hover and table."""
    if is_others(cell):
        return f"{cell.label.removeprefix('others ').strip('()')} more that were left out"
    if not cell.parent:
        return cell.label
    age = "not asked for lately" if cell.age_s is None else f"last {fmt.seconds(cell.age_s)} ago"
    return (
        f"{fmt.count(cell.tokens)} tokens in {cell.blocks:,} blocks; {fmt.count(cell.hits)} hits, "
        f"{age}; on {cell.holders} node{'' if cell.holders == 1 else 's'}"
    )


def tree_rows(cells: Sequence[wire.TreeCellView]) -> list[dict[str, object]]:
    """The table twin: one row a cell, the most asked for first."""
    shown = [c for c in cells if c.parent and not is_others(c)]
    return [
        {
            "Prefix": c.key,
            "Continues": c.parent,
            "Depth tokens": c.depth_tokens,
            "Tokens": c.tokens,
            "Hits": int(c.hits),
            "Last hit s": None if c.age_s is None else round(c.age_s, 1),
            "Nodes": c.holders,
        }
        for c in sorted(shown, key=lambda c: (-c.hits, -c.tokens))
    ]


# -- the way through the tree ------------------------------------------------------------------


def trail_of(text: str) -> list[str]:
    """Keys of the breadcrumb from the address, outermost first; what is no key is left out."""
    return [key for key in text.lower().split(".") if KEY.fullmatch(key)][-TRAIL_MAX:]


def trail_text(trail: Sequence[str]) -> str:
    """The breadcrumb for the address."""
    return ".".join(trail[-TRAIL_MAX:])


def went_to(trail: Sequence[str], cells: Sequence[wire.TreeCellView], cell_id: str) -> list[str]:
    """The breadcrumb after a click on a cell: the way from the shown start down to it.

    A click on "others" goes to its parent, and one on the shown start goes one up.
    """
    by_key = {c.key: c for c in cells}
    clicked = cell_id.removeprefix("others:")
    if trail and clicked == trail[-1]:
        return list(trail[:-1])
    path: list[str] = []
    at: str | None = clicked
    while at and at in by_key and at not in trail and len(path) < TRAIL_MAX:
        path.append(at)
        at = by_key[at].parent
    return [*trail, *reversed(path)]


def root_names(cells: Sequence[wire.TreeCellView]) -> dict[str, str]:
    """Key -> what its prompts have in common, of the trees' roots that have a name."""
    return {c.key: c.label for c in cells if not c.parent and c.label != c.key}


def crumb(key: str, names: Mapping[str, str]) -> str:
    """A step of the breadcrumb in a few characters."""
    return names.get(key) or f"{key[:6]}…"


# -- searching ---------------------------------------------------------------------------------


def key_of(text: str) -> str | None:
    """The block key in a search text, with or without 0x; None where it is none."""
    found = text.strip().lower().removeprefix("0x")
    return found if KEY.fullmatch(found) else None


def prompt_of(text: str) -> dict[str, Any]:
    """What was pasted: token ids (a JSON list of numbers), a conversation (a JSON list of
    messages, or a request body), or plain text. Fields of `LookupAsk`."""
    try:
        found = json.loads(text)
    except ValueError:
        return {"prompt": text}
    if isinstance(found, dict):
        given = {name: found[name] for name in ("prompt", "messages") if name in found}
        return given if len(given) == 1 else {"prompt": text}
    if isinstance(found, list) and found:
        if all(type(x) is int for x in found):
            return {"prompt": found}
        if all(isinstance(x, dict) and "role" in x for x in found):
            return {"messages": found}
    return {"prompt": text}


def lookup_notice(found: wire.LookupView) -> Notice:
    """The result of a look-up in a sentence."""
    exact = "" if found.exact else " No tokenizer is at hand, so text is compared with text only."
    size = f"{found.tokens:,} tokens ({found.source})"
    if not found.nodes:
        return Notice("none", "Nobody holds a beginning of this prompt", f"It has {size}.{exact}")
    best = found.nodes[0]
    where = f"{best.tokens:,} tokens ({fmt.share(best.share)}) on {best.node}"
    others = len(found.nodes) - 1
    more = f", shorter or equal ones on {others} more" if others else ""
    return Notice("ok", f"The longest match: {where}", f"Of {size}{more}.{exact}")


def match_rows(found: wire.LookupView) -> list[dict[str, object]]:
    """Matches of a looked-up prompt by node."""
    return [
        {
            "Node": m.node,
            "Matched tokens": m.tokens,
            "Share": m.share,
            "Takes requests": "✓ yes" if m.eligible else "✕ no",
        }
        for m in found.nodes
    ]


# -- one prefix --------------------------------------------------------------------------------


def copy_targets(nodes: Sequence[wire.NodeView], found: wire.PrefixView) -> list[str]:
    """Nodes that a prefix can be copied to: they compute prompts and do not hold it."""
    holding = {h.node for h in found.holders}
    return [n.id for n in nodes if n.id not in holding and n.role.value != "decode"]


def no_copy(found: wire.PrefixView, targets: Sequence[str]) -> str:
    """Why the prefix cannot be copied; empty where it can, or only trying tells."""
    if not targets:
        return "Every node that computes prompts holds it."
    if found.copyable is False:
        return (
            "A copy sends the prefix's tokens, and none of the recent prompts that are remembered "
            "begins with it. Prompts are remembered while migration is on; a dry run suffices."
        )
    return ""


def prefix_tiles(f: wire.PrefixView) -> list[Tile]:
    """Stat tiles of one prefix."""
    level: Level = "ok" if len(f.holders) > 1 else "warn" if f.holders else "bad"
    word = "replicated" if len(f.holders) > 1 else "one copy" if f.holders else "nobody holds it"
    depth = fmt.NONE if f.depth_tokens is None else f"{f.depth_tokens:,}"
    age = "not asked for lately" if f.age_s is None else f"last {fmt.seconds(f.age_s)} ago"
    saved = f.rate_per_s * (f.depth_tokens or 0) if f.holders else 0.0
    return [
        Tile("Holders", str(len(f.holders)), level, word, fmt.listed([h.node for h in f.holders]),
             "Nodes that hold its last block, in any medium."),
        Tile("Length", depth, "none", "tokens", f"{f.block_size} tokens a block",
             "Tokens of the whole prefix; known where its accesses are counted."),
        Tile("Asked for", fmt.rate(f.rate_per_s), "none", age, f"{fmt.count(f.hits)} hits",
             "Averaged over about a minute."),
        Tile("Saved", f"{fmt.count(saved)}/s", "none", "tokens not computed",
             "asked for /s x tokens, where somebody holds it", "An upper bound."),
        Tile("Goes on", f"{f.children}", "none", "continuations",
             f"{f.ahead_blocks} blocks until it branches or ends", "Blocks that continue it."),
    ]  # fmt: skip


def holder_rows(f: wire.PrefixView) -> list[dict[str, object]]:
    """Who holds a prefix."""
    return [
        {
            "Node": h.node,
            "Medium": h.medium.value,
            "Cache signal": TRUST_SIGN.get(h.trust, h.trust),
            "Takes requests": "✓ yes" if h.eligible else "✕ no",
        }
        for h in f.holders
    ]


# -- migrations --------------------------------------------------------------------------------

MIGRATION_SIGN = {
    "planned": "○ planned", "running": "▲ running", "done": "✓ done",
    "failed": "✕ failed", "cancelled": "○ cancelled",
}  # fmt: skip
MODE_WORDS = {
    "off": "Migration is off: prefixes stay where requests brought them.",
    "dry_run": "A dry run: what would be copied is listed as planned, and nothing is.",
    "on": "Hot prefixes are copied to further nodes as the planner finds it pays.",
}
HELD_BACK = {
    "not_hot": "not hot enough",
    "too_short": "too short",
    "no_live_holder": "without a live holder",
    "replicas_max": "with copies enough",
    "no_target": "without a target that has room",
    "backoff": "tried a moment ago",
    "no_benefit": "that would cost more than they save",
    "rate_limit": "over the number of moves",
    "budget": "over the budget of tokens",
}


def migration_rows(moves: Sequence[wire.MigrationView], zone: tzinfo) -> list[dict[str, object]]:
    """Migrations as rows."""
    return [
        {
            "State": MIGRATION_SIGN[m.state] + (" (dry run)" if m.dry_run else ""),
            "Planned": fmt.moment(m.planned_at, zone)[:19],
            "Prefix": m.prefix,
            "Tokens": m.tokens,
            "From": m.source,
            "To": m.target,
            "How": m.how.replace("_", " "),
            "Copies": m.copies,
            "Benefit s": m.benefit_s,
            "Predicted s": m.predicted_s,
            "Took s": m.seconds,
            "Moved tokens": m.moved_tokens,
            "Computed": m.computed_tokens,
            "By": m.author or ("an operator" if m.manual else "the planner"),
            "Why": m.error or m.reason,
        }
        for m in moves
    ]


def held_back_words(held: dict[str, int]) -> str:
    """Why the last look left prefixes where they are."""
    parts = [f"{n} {HELD_BACK.get(reason, reason.replace('_', ' '))}" for reason, n in held.items()]
    return "; ".join(parts)


def replication_words(found: wire.Replication) -> str:
    """What the samples are, and whether stored ones are missing."""
    if not found.complete:
        return "the records cannot be read: only what was sampled since the service started"
    return f"a sample every {found.step_s:g} s, kept for a week"
