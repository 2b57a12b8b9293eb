"""Short-horizon forecast of arrivals and prefill tokens (S1 11.2), and whether it is worth using.

Counts are closed in steps of a few seconds. Each series is followed by damped Holt smoothing, with
additive seasons where a period is set (Holt-Winters; Hyndman and Athanasopoulos, Forecasting:
Principles and Practice, ch. 8):

    level   l = a (y - s[t-m]) + (1 - a) (l' + p b')
    trend   b = g (l - l') + (1 - g) p b'
    season  s[t] = d (y - l' - p b') + (1 - d) s[t-m]
    in h steps: l + (p + p^2 + ... + p^h) b + s[t+h-m], never below 0

Every forecast is held against what came, and against persistence (what comes is what there is).
Both errors are faded means of absolute differences. A forecast counts only while it has been
better for long enough; else everything goes on as if there were none.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from core.tunables import Forecast as Rules

STEP_S = 5.0
SERIES_MAX = 64
"""Pairs of model and class; requests of further ones are counted together."""
OTHER = "other"
COMPARED_MIN = 24
"""Forecasts compared with what came before they may count: two minutes."""
_FADE = 0.98
_BETTER = 0.97
GROWTH_MIN, GROWTH_MAX = 0.5, 3.0
_GAP_STEPS_MAX = 720
"""Steps without a look that are made up for as zeros; after more, a series starts anew."""

Quantity = Literal["arrivals", "prefill_tokens"]


class Key(NamedTuple):
    """What one pair of series is about."""

    model: str
    tenant_class: str


class Smoother:
    """Damped Holt smoothing of one series, with additive seasons of `season` steps (0: none)."""

    def __init__(self, rules: Rules, season: int) -> None:
        self._rules = rules
        self._season = array("d", bytes(8 * season))
        self._level = math.nan
        self._trend = 0.0
        self._t = 0

    def update(self, y: float) -> None:
        """Take the value of the next step."""
        r, m = self._rules, len(self._season)
        at = self._t % m if m else 0
        season = self._season[at] if m else 0.0
        self._t += 1
        if math.isnan(self._level):
            self._level = y
            return
        before = self._level
        carried = before + r.damping * self._trend
        self._level = r.level * (y - season) + (1 - r.level) * carried
        self._trend = r.trend * (self._level - before) + (1 - r.trend) * r.damping * self._trend
        if m:
            self._season[at] = r.season * (y - carried) + (1 - r.season) * season

    def ahead(self, steps: int) -> float:
        """The value expected in so many steps; 0 before the first."""
        if math.isnan(self._level):
            return 0.0
        p, m = self._rules.damping, len(self._season)
        damped = steps if p == 1.0 else p * (1 - p**steps) / (1 - p)
        season = self._season[(self._t + steps - 1) % m] if m else 0.0
        return max(self._level + damped * self._trend + season, 0.0)


@dataclass(slots=True)
class Track:
    """One series: what came, what is expected, and how good that was. Values are per second."""

    smoother: Smoother
    horizon: int
    last: float = 0.0
    expected: float = 0.0
    error: float = 0.0
    """Faded mean absolute error of the forecast."""
    persistence_error: float = 0.0
    compared: int = 0
    _made: deque[tuple[float, float]] = field(default_factory=deque)

    def close(self, value: float) -> None:
        """A step is over and brought `value`."""
        if len(self._made) >= self.horizon:
            forecast, persistence = self._made.popleft()
            self.compared += 1
            new = max(1 - _FADE, 1 / self.compared)
            self.error += new * (abs(forecast - value) - self.error)
            self.persistence_error += new * (abs(persistence - value) - self.persistence_error)
        self.smoother.update(value)
        self.last, self.expected = value, self.smoother.ahead(self.horizon)
        self._made.append((self.expected, value))

    @property
    def beats_persistence(self) -> bool:
        """Whether the forecast was clearly better for long enough."""
        enough = self.compared >= COMPARED_MIN
        return enough and self.error < _BETTER * self.persistence_error


@dataclass(slots=True)
class _Pair:
    arrivals: Track
    prefill_tokens: Track
    arrived: int = 0
    tokens: int = 0


class Forecaster:
    """Every series of a fleet. `observe` counts, `tick` closes steps."""

    def __init__(self, rules: Rules, now: float) -> None:
        self.rules = rules
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._pairs: dict[Key, _Pair] = {}
        self._all = self._pair()
        self._start_s = math.floor(now / STEP_S) * STEP_S

    @property
    def horizon_steps(self) -> int:
        """How many steps ahead is looked."""
        return max(1, round(self.rules.horizon_s / STEP_S))

    def observe(self, key: Key, tokens: int) -> None:
        """A request came with so many uncached prompt tokens."""
        if key not in self._pairs and len(self._pairs) >= SERIES_MAX:
            key = Key(OTHER, OTHER)
        pair = self._pairs.get(key)
        if pair is None:
            pair = self._pairs[key] = self._pair()
        for counted in (pair, self._all):
            counted.arrived += 1
            counted.tokens += tokens

    def tick(self, now: float) -> None:
        """Close the steps that are over at `now`."""
        over = int((now - self._start_s) / STEP_S)
        if over > _GAP_STEPS_MAX:
            self._begin(now)
            return
        for _ in range(over):
            for pair in (*self._pairs.values(), self._all):
                pair.arrivals.close(pair.arrived / STEP_S)
                pair.prefill_tokens.close(pair.tokens / STEP_S)
                pair.arrived = pair.tokens = 0
            self._start_s += STEP_S

    def tracks(self) -> Iterator[tuple[Key, Quantity, Track]]:
        """Every series: all together under empty names, then by key."""
        for key, pair in ((Key("", ""), self._all), *sorted(self._pairs.items())):
            yield key, "arrivals", pair.arrivals
            yield key, "prefill_tokens", pair.prefill_tokens

    @property
    def total(self) -> tuple[Track, Track]:
        """Arrivals and prefill tokens of all together."""
        return self._all.arrivals, self._all.prefill_tokens

    @property
    def growth(self) -> float:
        """Prefill tokens expected at the horizon over those of now, all together.

        1 unless the forecast is on and beats persistence. What is now is the smoothed level: a
        single step says little.
        """
        track = self._all.prefill_tokens
        if not self.rules.enabled or not track.beats_persistence:
            return 1.0
        now = track.smoother.ahead(0)
        if now <= 0:
            return 1.0
        return min(max(track.expected / now, GROWTH_MIN), GROWTH_MAX)

    def _pair(self) -> _Pair:
        return _Pair(self._track(), self._track())

    def _track(self) -> Track:
        season = round(self.rules.season_s / STEP_S)
        return Track(Smoother(self.rules, season), self.horizon_steps)
