"""From previews, revisions and trials to what the Tuning page shows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from statistics import median

from core import wire
from dashboard.overview.models import Tile
from dashboard.parts import format as fmt
from dashboard.parts.theme import Level
from dashboard.tuning.draft import word

MUCH = 0.02
"""Relative change below which two figures are called the same."""
STEPS_MIN = 2
"""Fewer measured steps on a side are no comparison."""
KIND = {
    "start": "○ first start",
    "change": "✎ change",
    "rollback": "↩ roll-back",
    "scheduled": "◷ scheduled",
    "expiry": "◷ expired",
    "guard": "▲ rolled back by the guard",
    "canary": "◔ canary, never live",
}


def preview_tiles(p: wire.PreviewView) -> list[Tile]:
    """Predicted change of the main figures, and how many decisions move."""
    share = p.moved / p.decisions if p.decisions else None
    moved = Tile(
        "Decisions that move",
        fmt.NONE if share is None else fmt.share(share, 1),
        "none",
        f"{p.moved} of {fmt.count(p.decisions)}",
        f"{p.left_out} left out (refused, or without candidates)",
        "Recorded decisions that would have gone to another node.",
    )
    a, b = p.before, p.after
    return [
        moved,
        _change("TTFT, mean", a.ttft_mean_s, b.ttft_mean_s, fmt.seconds),
        _change("TTFT, p90", a.ttft_p90_s, b.ttft_p90_s, fmt.seconds),
        _change("TBT, mean", a.tbt_mean_s, b.tbt_mean_s, fmt.seconds),
        _change("Cache hit", a.hit, b.hit, lambda v: fmt.share(v, 1), more_is_better=True),
        _change("Imbalance", a.imbalance, b.imbalance, _ratio),
    ]


def _ratio(value: float | None) -> str:
    return fmt.NONE if value is None else fmt.digits(value)


def _change(
    name: str,
    before: float | None,
    after: float | None,
    show: Callable[[float | None], str],
    *,
    more_is_better: bool = False,
) -> Tile:
    about = "Predicted for the same recorded decisions under the draft, against as recorded."
    if before is None or after is None:
        return Tile(name, fmt.NONE, "none", "not known", "nothing recorded tells it", about)
    level, text = verdict(before, after, more_is_better=more_is_better)
    return Tile(name, show(after), level, text, f"now {show(before)}", about)


def verdict(before: float, after: float, *, more_is_better: bool = False) -> tuple[Level, str]:
    """Whether a figure gets better, in a word with the relative change."""
    if before == 0:
        change = 0.0 if after == 0 else 1.0 if after > 0 else -1.0
        amount = ""
    else:
        change = (after - before) / abs(before)
        amount = f" by {fmt.share(abs(change), 1)}"
    if abs(change) < MUCH:
        return "ok", "about the same"
    better = (change > 0) == more_is_better
    direction = "higher" if change > 0 else "lower"
    return (
        ("ok", f"better: {direction}{amount}")
        if better
        else ("warn", f"worse: {direction}{amount}")
    )


def move_rows(p: wire.PreviewView) -> list[dict[str, object]]:
    """From where to where requests move, most first."""
    return [
        {
            "From": m.source,
            "To": m.target,
            "Decisions": m.count,
            "Share": round(m.count / p.decisions, 4) if p.decisions else None,
        }
        for m in p.moves
    ]


def example_rows(p: wire.PreviewView) -> list[dict[str, object]]:
    """The decisions that would differ most."""
    return [
        {
            "Decision": e.id,
            "From": e.source,
            "To": e.target,
            "TTFT then": fmt.seconds(e.ttft_s[0]),
            "TTFT draft": fmt.seconds(e.ttft_s[1]),
            "Match then": e.match_tokens[0],
            "Match draft": e.match_tokens[1],
            "Recorded node worse by": round(e.total_gap, 4),
        }
        for e in p.examples
    ]


def effect_rows(p: wire.PreviewView) -> list[dict[str, object]]:
    """Which changed parameter matters, and what keeps the others from it."""
    return [
        {
            "Parameter": e.path,
            "Matters": "✓ yes" if e.matters else "○ no",
            "Decisions": e.changed,
            "Constant input": ", ".join(e.constant_inputs) or fmt.NONE,
            "In words": e.text,
        }
        for e in p.effects
    ]


def fidelity_words(p: wire.PreviewView) -> str:
    """How far the preview can be believed."""
    if p.fidelity is None:
        return "No recorded decision was made under the live policy, so nothing checks the preview."
    return (
        f"Made again under the live parameters, {fmt.share(p.fidelity)} of the decisions come out "
        "as recorded: that is how far the preview can be believed."
    )


# -- revisions -------------------------------------------------------------------------------


def revision_rows(found: wire.RevisionList) -> list[dict[str, object]]:
    """Revisions, newest first."""
    return [
        {
            "Revision": r.revision,
            "Time": r.at,
            "Kind": ("● live · " if r.revision == found.live else "") + KIND.get(r.kind, r.kind),
            "Author": r.author,
            "Reason": r.reason,
            "Changes": changes_words(r.changes),
        }
        for r in found.revisions
    ]


def changes_words(changes: dict[str, list[object]], most: int = 4) -> str:
    """Changes in a line: path old → new."""
    parts = [f"{p} {word(v[0])} → {word(v[1])}" for p, v in list(changes.items())[:most]]
    more = len(changes) - most
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")


def change_rows(changes: dict[str, list[object]], old: str, new: str) -> list[dict[str, object]]:
    """One row a path, under the given headings."""
    return [{"Parameter": p, old: word(v[0]), new: word(v[1])} for p, v in changes.items()]


# -- before and after --------------------------------------------------------------------------

_Pick = Callable[[wire.SeriesPoint], float | None]


def _quantile(name: str, q: str) -> _Pick:
    def pick(s: wire.SeriesPoint) -> float | None:
        found: wire.Quantiles | None = getattr(s, name)
        return None if found is None else float(getattr(found, q))

    return pick


def _refused(s: wire.SeriesPoint) -> float | None:
    return s.rejected / s.requests if s.requests else None


def _failed(s: wire.SeriesPoint) -> float | None:
    return s.errors / s.finished if s.finished else None


_MEASURES: tuple[tuple[str, _Pick, Callable[[float | None], str], bool], ...] = (
    ("TTFT p50", _quantile("ttft_s", "p50"), fmt.seconds, False),
    ("TTFT p99", _quantile("ttft_s", "p99"), fmt.seconds, False),
    ("TBT p50", _quantile("tbt_s", "p50"), fmt.seconds, False),
    ("TBT p99", _quantile("tbt_s", "p99"), fmt.seconds, False),
    ("Cache hit", lambda s: s.hit_achieved, lambda v: fmt.share(v, 1), True),
    ("Refused", _refused, lambda v: fmt.share(v, 2), False),
    ("Failed on engines", _failed, lambda v: fmt.share(v, 2), False),
)


def comparison_rows(series: wire.Series, at: datetime) -> list[dict[str, object]]:
    """Measures before and after a moment: the median of the steps on each side.

    The step in which the moment lies belongs to neither.
    """
    step = series.step_s
    before = [p for p in series.points if p.requests and (at - p.at).total_seconds() >= step]
    after = [p for p in series.points if p.requests and p.at >= at]
    return [_compared(name, pick, show, up, before, after) for name, pick, show, up in _MEASURES]


def _compared(
    name: str,
    pick: _Pick,
    show: Callable[[float | None], str],
    up: bool,
    before: Sequence[wire.SeriesPoint],
    after: Sequence[wire.SeriesPoint],
) -> dict[str, object]:
    a = [v for p in before if (v := pick(p)) is not None]
    b = [v for p in after if (v := pick(p)) is not None]
    old, new = median(a) if a else None, median(b) if b else None
    said = "too few steps to compare"
    if len(a) >= STEPS_MIN and len(b) >= STEPS_MIN and old is not None and new is not None:
        level, text = verdict(old, new, more_is_better=up)
        said = ("▲ " if level == "warn" else "✓ ") + text
    return {
        "Measure": name,
        "Before": show(old),
        "After": show(new),
        "Change": said,
        "Steps": f"{len(a)} / {len(b)}",
    }


# -- what waits, and trials --------------------------------------------------------------------

_STATES = {
    "pending": "◷ waits",
    "done": "✓ done",
    "skipped": "○ skipped",
    "failed": "✕ failed",
    "cancelled": "○ cancelled",
}


def scheduled_rows(items: Sequence[wire.ScheduledView], zone: tzinfo) -> list[dict[str, object]]:
    """Scheduled changes, waiting ones first."""
    ordered = sorted(items, key=lambda s: (s.state != "pending", -s.due_at.timestamp()))
    return [
        {
            "State": _STATES.get(s.state, s.state),
            "Due": fmt.moment(s.due_at, zone)[:19],
            "Until": fmt.moment(s.until_at, zone)[:19] if s.until_at else fmt.NONE,
            "Act": "take back" if s.action == "revert" else "apply",
            "Changes": ", ".join(f"{p} → {word(v)}" for p, v in s.changes.items()),
            "Author": s.author,
            "Reason": s.reason,
            "Note": s.note,
        }
        for s in ordered
    ]


_MEASURED: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "ttft_s": ("TTFT, mean", fmt.seconds),
    "tbt_s": ("TBT, mean", fmt.seconds),
    "hit": ("Cache hit", lambda v: fmt.share(v, 1)),
    "good_share": ("Requests within their limits", lambda v: fmt.share(v, 1)),
}


def canary_rows(c: wire.CanaryView) -> list[dict[str, object]]:
    """Measured differences between the canary and the rest."""
    rows: list[dict[str, object]] = []
    for m in c.measures:
        name, show = _MEASURED.get(m.name, (m.name.replace("_", " "), _ratio))
        between = fmt.NONE
        if m.low is not None and m.high is not None:
            between = f"{show(m.low)} to {show(m.high)}"
        rows.append(
            {
                "Measure": name,
                "Live": show(m.live),
                "Canary": show(m.candidate),
                "Difference, 95 %": between,
                "Verdict": m.verdict,
            }
        )
    return rows


def shadow_rows(s: wire.ShadowView) -> list[dict[str, object]]:
    """What both sides of a shadow expect."""
    if s.live is None or s.candidate is None:
        return []
    lines: tuple[tuple[str, Callable[[wire.ExpectedView], str]], ...] = (
        ("Placed", lambda e: fmt.count(e.placed)),
        ("Refused", lambda e: fmt.count(e.refused)),
        ("TTFT, mean expected", lambda e: fmt.seconds(e.ttft_mean_s)),
        ("TBT, mean expected", lambda e: fmt.seconds(e.tbt_mean_s)),
        ("Cache hit", lambda e: fmt.share(e.hit, 1)),
        ("Imbalance", lambda e: _ratio(e.imbalance)),
    )
    return [
        {"Measure": name, "Live": show(s.live), "Shadow": show(s.candidate)} for name, show in lines
    ]


def guard_words(g: wire.GuardView) -> tuple[Level, str]:
    """What the guard does now, in a line."""
    if not g.enabled:
        return "warn", "off: a bad change is not taken back by itself"
    if g.state == "watching":
        rest = f", {fmt.seconds(g.ends_in_s)} left" if g.ends_in_s is not None else ""
        return "none", f"watching revision {g.live}; would restore {g.good}{rest}"
    if g.state == "condemned":
        return "bad", f"revision {g.live} misses its limits; restoring {g.good}"
    if g.state == "resting":
        return "warn", f"rolled back; rests for {fmt.seconds(g.ends_in_s)}"
    return "ok", f"quiet: revision {g.good} is known to be good"


def replay_rows(r: wire.ReplayView) -> list[dict[str, object]]:
    """Simulated figures of both configurations."""
    return [
        {"Measure": name, "Live": show(r.live, path), "Draft": show(r.proposed, path)}
        for name, path, show in (
            ("TTFT, mean", "ttft_s.mean", _seconds_at),
            ("TTFT, p99", "ttft_s.p99", _seconds_at),
            ("Cache hit", "hit_ratio", _share_at),
            ("Imbalance", "imbalance", _figure_at),
            ("Goodput, requests/s", "goodput_rps", _figure_at),
        )
    ]


def _at(summary: dict[str, object], path: str) -> float | None:
    found: object = summary
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return float(found) if isinstance(found, (int, float)) else None


def _seconds_at(summary: dict[str, object], path: str) -> str:
    return fmt.seconds(_at(summary, path))


def _share_at(summary: dict[str, object], path: str) -> str:
    return fmt.share(_at(summary, path), 1)


def _figure_at(summary: dict[str, object], path: str) -> str:
    return _ratio(_at(summary, path))
