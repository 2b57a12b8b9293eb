"""The guard: rolls a change back by itself when the service objective burns. Pure, with `now`.

How it works. Every finished or refused request is good or bad (its limits met or not). The burn
rate is the share of bad ones over the share that the objective allows. After a change, all
revisions since the last one that was found good are suspects, for `guard.time_s` from the newest
of them. One of three rules condemns them:

    fast    burn over 1 h and over 5 min at least `fast_burn`
    slow    burn over 6 h and over 30 min at least `slow_burn`
    errors  share of failed requests over 5 min at least `error_share_max`

but only where requests decided under a suspect pass the limit by themselves over the short
window, there are at least `sample_min` of them, and they are `worse_ratio` times as bad as what
came before the change: a fault that was there already is not the change's.

    state      on              becomes
    quiet      change          watching
    watching   change          watching, for another guard time
    watching   rule fires      condemned, until the rollback is stored
    watching   time is over    quiet, the live revision is good
    condemned  rolled back     resting
    resting    time is over    quiet
    resting    change          watching, but condemns only once the rest is over

After a start it goes on where it was: `resume.py` takes the stored revisions through this table
again, by their times, and gives it what was stored of their requests.

What is restored is the last good revision, so each rollback goes further back, is not watched
itself, and after one there is a rest: the guard cannot flap.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.tunables import Guard as Rules

STEP_S = 10.0
FIVE_MIN_S, HALF_HOUR_S, HOUR_S, SIX_HOURS_S = 300.0, 1800.0, 3600.0, 21600.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests of one window."""

    total: int = 0
    bad: int = 0
    errors: int = 0

    def burn(self, objective: float) -> float:
        """Share of bad ones over the share the objective allows."""
        return self.bad / self.total / (1.0 - objective) if self.total else 0.0

    @property
    def error_share(self) -> float:
        """Failed ones over all."""
        return self.errors / self.total if self.total else 0.0


class Tally:
    """Good and bad requests over the last six hours, in steps of ten seconds, or as told."""

    def __init__(self, *, step_s: float = STEP_S, span_s: float = SIX_HOURS_S) -> None:
        self._step_s = step_s
        self._steps: deque[list[float]] = deque(maxlen=int(span_s / step_s) + 1)

    def add(self, now: float, *, bad: bool, error: bool) -> None:
        """Count one request."""
        start = now - now % self._step_s
        if not self._steps or self._steps[-1][0] < start:
            self._steps.append([start, 0, 0, 0])
        step = self._steps[-1]
        step[1] += 1
        step[2] += bad
        step[3] += error

    def recall(self, at_s: float, seen: Counts) -> None:
        """Take up a step of before the start; oldest first, and before any `add`."""
        self._steps.append([at_s, seen.total, seen.bad, seen.errors])

    def window(self, now: float, seconds: float) -> Counts:
        """The last `seconds`, whole steps."""
        total = bad = errors = 0.0
        for start, n, b, e in reversed(self._steps):
            if start <= now - seconds - self._step_s:
                break
            total, bad, errors = total + n, bad + b, errors + e
        return Counts(int(total), int(bad), int(errors))


def _sum(parts: Iterable[Counts]) -> Counts:
    total = bad = errors = 0
    for c in parts:
        total, bad, errors = total + c.total, bad + c.bad, errors + c.errors
    return Counts(total, bad, errors)


class State(enum.StrEnum):
    """What the guard is doing."""

    QUIET = "quiet"
    WATCHING = "watching"
    CONDEMNED = "condemned"
    RESTING = "resting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why suspects are condemned; windows as (total, bad, errors)."""

    rule: str
    limit: float
    long: Counts
    short: Counts
    suspects: Counts
    before: Counts
    long_rate: float
    short_rate: float
    suspects_rate: float
    before_rate: float

    def facts(self) -> dict[str, Any]:
        """As JSON values."""
        counts = {
            name: [c.total, c.bad, c.errors]
            for name in ("long", "short", "suspects", "before")
            for c in (getattr(self, name),)
        }
        rates = {
            name: round(getattr(self, name), 4)
            for name in ("limit", "long_rate", "short_rate", "suspects_rate", "before_rate")
        }
        return {"rule": self.rule, **rates, **counts}

    def sentence(self) -> str:
        """For people."""
        c = self.suspects
        what = "of requests failed" if self.rule == "errors" else "times the allowed burn"
        return (
            f"{self.rule}: {self.suspects_rate:.3g} {what} (limit {self.limit:g}); "
            f"{c.bad} of {c.total} requests missed their limits, {c.errors} failed; "
            f"{self.before_rate:.3g} before"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    name: str
    limit: float
    long_s: float
    short_s: float
    errors: bool = False


class Guard:
    """Watches one live configuration. `good` is the number of the last good revision."""

    def __init__(self, good: int) -> None:
        self.good = good
        self.state = State.QUIET
        self.overall = Tally()
        self.suspects = Tally()
        self.until_s = 0.0
        """When the guard time, or the rest, is over."""
        self.rest_until_s = 0.0
        self.since_s = 0.0
        self.evidence: Evidence | None = None
        self._before: Mapping[float, Counts] = {}

    def changed(self, now: float, rules: Rules) -> None:
        """A new revision became live, not by the guard."""
        if self.state is not State.WATCHING:
            self.since_s = now
            self.suspects = Tally()
            self._before = {s: self.overall.window(now, s) for s in (FIVE_MIN_S, HALF_HOUR_S)}
        self.state, self.until_s = State.WATCHING, now + rules.time_s
        self.evidence = None

    def settled(self, good: int) -> None:
        """The live configuration is known to be good: nothing is suspected."""
        self.good, self.state = good, State.QUIET

    def rolled_back(self, now: float, live: int, rules: Rules) -> None:
        """The guard's own rollback, or one to the good values, is live."""
        self.good = live
        self.rest_until_s = self.until_s = now + rules.rest_s
        self.state = State.RESTING

    def recall(self, steps: Sequence[tuple[float, Counts]]) -> None:
        """Take up what was stored before a start, as (time, counts), oldest first: requests since
        the suspected change, and what came before it."""
        for at_s, seen in steps:
            self.overall.recall(at_s, seen)
            if self.state is State.WATCHING and at_s >= self.since_s:
                self.suspects.recall(at_s, seen)
        self._before = {
            s: _sum(c for at_s, c in steps if self.since_s - s <= at_s < self.since_s)
            for s in (FIVE_MIN_S, HALF_HOUR_S)
        }

    def observe(self, revision: int, now: float, *, bad: bool, error: bool) -> None:
        """A request decided under `revision` has ended, or was refused by us."""
        self.overall.add(now, bad=bad, error=error)
        if self.state in (State.WATCHING, State.CONDEMNED) and revision > self.good:
            self.suspects.add(now, bad=bad, error=error)

    def tick(self, now: float, rules: Rules, *, live: int) -> Evidence | None:
        """Judge; evidence when the live configuration is to be rolled back to `good`."""
        if self.state is State.RESTING and now >= self.until_s:
            self.state = State.QUIET
        if self.state is State.CONDEMNED:
            return self.evidence
        if self.state is not State.WATCHING:
            return None
        if now >= self.until_s:
            self.settled(live)
            return None
        if not rules.enabled or now < self.rest_until_s:
            return None
        self.evidence = self._judge(now, rules)
        if self.evidence is not None:
            self.state = State.CONDEMNED
        return self.evidence

    def burns(self, now: float, rules: Rules) -> dict[str, float]:
        """Burn rate of all traffic by window."""
        windows = {"5m": FIVE_MIN_S, "30m": HALF_HOUR_S, "1h": HOUR_S, "6h": SIX_HOURS_S}
        return {
            name: self.overall.window(now, s).burn(rules.objective) for name, s in windows.items()
        }

    def _judge(self, now: float, rules: Rules) -> Evidence | None:
        for rule in (
            _Rule(name="fast", limit=rules.fast_burn, long_s=HOUR_S, short_s=FIVE_MIN_S),
            _Rule(name="slow", limit=rules.slow_burn, long_s=SIX_HOURS_S, short_s=HALF_HOUR_S),
            _Rule(
                name="errors",
                limit=rules.error_share_max,
                long_s=FIVE_MIN_S,
                short_s=FIVE_MIN_S,
                errors=True,
            ),
        ):
            found = self._measure(rule, now, rules)
            rates = (found.long_rate, found.short_rate, found.suspects_rate)
            worse = found.suspects_rate >= rules.worse_ratio * found.before_rate
            if min(rates) >= rule.limit and worse and found.suspects.total >= rules.sample_min:
                return found
        return None

    def _measure(self, rule: _Rule, now: float, rules: Rules) -> Evidence:
        def rate(c: Counts) -> float:
            return c.error_share if rule.errors else c.burn(rules.objective)

        long = self.overall.window(now, rule.long_s)
        short = self.overall.window(now, rule.short_s)
        suspects = self.suspects.window(now, rule.short_s)
        before = self._before.get(rule.short_s, Counts())
        if rule.errors:  # a share of failures may come and go: the suspects alone decide
            long = short = suspects
        return Evidence(
            rule=rule.name,
            limit=rule.limit,
            long=long,
            short=short,
            suspects=suspects,
            before=before,
            long_rate=rate(long),
            short_rate=rate(short),
            suspects_rate=rate(suspects),
            before_rate=rate(before),
        )
