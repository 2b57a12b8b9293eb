"""How well the limits were kept, from sums over stored requests. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core import wire
from dashboard.overview.models import Tile
from dashboard.parts import format as fmt
from dashboard.parts.theme import Level

OBJECTIVE_DEFAULT = 0.99
OBJECTIVE = "guard.objective"
"""Live parameter with the share of requests that are to meet their limits."""
FAST = ("5m", "1h", 14.4)
SLOW = ("30m", "6h", 6.0)
"""Two windows and the burn rate at which both call for somebody: 2 % of a month's budget in an
hour, 5 % in six hours (Site Reliability Workbook, chapter 5)."""


@dataclass(slots=True)
class Kept:
    """Requests of a group, and how many of them kept their limits."""

    decisions: int = 0
    rejected: int = 0
    finished: int = 0
    """Without those that the client broke off."""
    failed: int = 0
    ttft_missed: int = 0
    tbt_missed: int = 0
    slo_missed: int = 0
    prompt_tokens: int = 0
    match_tokens: int = 0

    def add(self, g: wire.ShareView) -> None:
        """Count a group in."""
        self.decisions += g.decisions
        self.rejected += g.rejected
        self.finished += g.finished - g.aborted
        self.failed += g.failed
        self.ttft_missed += g.ttft_missed
        self.tbt_missed += g.tbt_missed
        self.slo_missed += g.slo_missed
        self.prompt_tokens += g.prompt_tokens
        self.match_tokens += g.match_tokens

    @property
    def bad(self) -> int:
        """Failed, or over a limit; never more than there were."""
        return min(self.failed + self.slo_missed, self.finished)

    @property
    def attainment(self) -> float | None:
        """Share of the finished that kept both limits."""
        return 1 - self.bad / self.finished if self.finished else None

    def met(self, missed: int) -> float | None:
        """Share of the finished without these misses."""
        return 1 - min(missed, self.finished) / self.finished if self.finished else None


def total(shares: wire.Shares) -> Kept:
    """All groups together."""
    found = Kept()
    for g in shares.groups:
        found.add(g)
    return found


def by_tenant_and_model(shares: wire.Shares) -> list[tuple[str, str, Kept]]:
    """Groups over all nodes, the worst attainment first."""
    found: dict[tuple[str, str], Kept] = {}
    for g in shares.groups:
        found.setdefault((g.tenant, g.model), Kept()).add(g)
    rows = [(tenant, model, kept) for (tenant, model), kept in found.items()]
    return sorted(rows, key=lambda row: (_or_one(row[2].attainment), -row[2].decisions))


def attainment_rows(shares: wire.Shares, objective: float) -> list[dict[str, object]]:
    """The table of attainment by tenant and model."""
    return [
        {
            "Tenant": tenant or "(none)",
            "Model": model,
            "Objective": _kept_word(kept, objective),
            "Attainment": kept.attainment,
            "TTFT met": kept.met(kept.ttft_missed),
            "TBT met": kept.met(kept.tbt_missed),
            "Requests": kept.decisions,
            "Refused": kept.rejected,
            "Failed": kept.failed,
            "Reuse": kept.match_tokens / kept.prompt_tokens if kept.prompt_tokens else None,
        }
        for tenant, model, kept in by_tenant_and_model(shares)
    ]


def _kept_word(kept: Kept, objective: float) -> str:
    if kept.attainment is None:
        return "○ nothing finished"
    if kept.attainment >= objective:
        return "✓ kept"
    return "▲ missed once" if kept.bad == 1 else "✕ missed"


def _missed_once(kept: Kept) -> str:
    """What is said where a single request is all that breaks the objective."""
    return f"1 of {kept.finished} missed: too few to judge"


def budget_left(attainment: float | None, objective: float) -> float | None:
    """Share of the errors that the objective allows which is left; below 0: overdrawn."""
    if attainment is None:
        return None
    return 1 - (1 - attainment) / max(1 - objective, 1e-9)


def tiles(kept: Kept, objective: float, burn: Mapping[str, float] | None) -> list[Tile]:
    """The six tiles; `burn` is None while the running service does not tell."""
    found = kept.attainment
    return [
        _attainment(found, objective, kept),
        _one_limit("TTFT within limit", kept, kept.ttft_missed, objective),
        _one_limit("TBT within limit", kept, kept.tbt_missed, objective),
        _budget(kept, objective),
        _burn("Burning fast", FAST, burn),
        _burn("Burning slowly", SLOW, burn),
    ]


def _attainment(found: float | None, objective: float, kept: Kept) -> Tile:
    about = "Finished requests that met both limits and did not fail, over all that were not "
    about += "broken off by their client."
    goal = f"objective {fmt.share(objective, 2)}; {fmt.count(kept.finished)} finished"
    if found is None:
        return Tile("Attainment", fmt.NONE, "none", "nothing finished", goal, about)
    level: Level = "ok" if found >= objective else "bad"
    word = "objective kept" if level == "ok" else "objective missed"
    if level == "bad" and kept.bad == 1:
        level, word = "warn", _missed_once(kept)
    return Tile("Attainment", fmt.share(found, 2), level, word, goal, about)


def _one_limit(name: str, kept: Kept, missed: int, objective: float) -> Tile:
    about = "Finished requests within this limit, whatever the other one says."
    found = kept.met(missed)
    if found is None:
        return Tile(name, fmt.NONE, "none", "nothing finished", "", about)
    level: Level = "ok" if found >= objective else "bad"
    word = "kept" if level == "ok" else "missed too often"
    if level == "bad" and missed == 1:
        level, word = "warn", _missed_once(kept)
    return Tile(name, fmt.share(found, 2), level, word, "of the finished", about)


def _budget(kept: Kept, objective: float) -> Tile:
    about = "Of the misses and failures that the objective allows in this window."
    found = kept.attainment
    left = budget_left(found, objective)
    if left is None:
        return Tile("Error budget left", fmt.NONE, "none", "nothing finished", "", about)
    level: Level = "bad" if left <= 0 else "warn" if left < 0.25 else "ok"
    word = {"bad": "used up", "warn": "nearly used up", "ok": "left"}[level]
    if level == "bad" and kept.bad == 1:
        level, word = "warn", _missed_once(kept)
    sub = f"{fmt.share(1 - objective, 2)} may miss; {fmt.share(1 - (found or 0), 2)} did"
    return Tile("Error budget left", fmt.share(left), level, word, sub, about)


def _burn(name: str, rule: tuple[str, str, float], burn: Mapping[str, float] | None) -> Tile:
    short, long, limit = rule
    about = f"How many times faster than allowed the budget is used, over {short} and over {long}. "
    about += f"Both above {limit:g} call for somebody."
    sub = f"alarm where both exceed {limit:g}"
    if burn is None or short not in burn or long not in burn:
        return Tile(name, fmt.NONE, "none", "not told now", sub, about)
    both = min(burn[short], burn[long])
    level: Level = "bad" if both > limit else "warn" if both > 1 else "ok"
    word = {"bad": "alarm", "warn": "faster than allowed", "ok": "as allowed"}[level]
    value = f"{burn[short]:.1f} / {burn[long]:.1f}"
    return Tile(name, value, level, word, f"{short} / {long}; {sub}", about)


def objective_of(items: Sequence[wire.TunableView]) -> float:
    """The objective among the live parameters."""
    found = next((item.value for item in items if item.path == OBJECTIVE), OBJECTIVE_DEFAULT)
    return float(found)


def coverage(since_words: str, covered: bool, count: int) -> str:
    """How much of the window was read."""
    if covered:
        return f"all {count:,} requests of the window"
    return f"the newest {count:,} requests, back to {since_words}"


def calibration_words(c: wire.Calibration) -> str:
    """What the calibration says in a sentence."""
    if c.bias is None or c.within_factor_2 is None:
        return "nothing to compare"
    too = "low" if c.bias > 1 else "high"
    tendency = "without bias" if 0.9 <= c.bias <= 1.1 else f"too {too}"
    return (
        f"{tendency}: median observed / predicted {fmt.digits(c.bias)}; "
        f"{fmt.share(c.within_factor_2)} within a factor of 2"
    )


def calibration_rows(view: wire.TimingsView) -> list[dict[str, object]]:
    """The table twin of both calibration charts."""
    return [
        {
            "Time": name,
            "Predicted from s": b.low_s,
            "to s": b.high_s,
            "Requests": b.count,
            "Observed / predicted p10": b.ratio_p10,
            "p50": b.ratio_p50,
            "p90": b.ratio_p90,
        }
        for name, c in (("TTFT", view.ttft), ("TBT", view.tbt))
        for b in c.bins
    ]


def margin_rows(view: wire.TimingsView) -> list[dict[str, object]]:
    """The table twin of the margins, without empty classes."""
    return [
        {
            "Observed / limit from": round(b.low, 3), "to": round(b.high, 3),
            "TTFT": b.ttft, "TBT": b.tbt,
        }
        for b in view.margins
        if b.ttft or b.tbt
    ]  # fmt: skip


def _or_one(value: float | None) -> float:
    return 1.0 if value is None else value
