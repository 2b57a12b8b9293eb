"""Alerts: rules over monitors with states, evidence and acknowledgements. Pure, with `now`.

    state      on               becomes
    inactive   broken           pending, or firing where the rule waits for nothing
    pending    holds again      inactive
    pending    broken for long  firing
    firing     holds again      resolved
    resolved   broken           as inactive
    resolved   kept long        inactive

A monitor without a value (nothing to judge by) ends a pending alert and leaves a firing one. An
acknowledgement says that somebody knows; it ends with the alert.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from core.control.alert_rules import RULES, Rule
from core.errors import Conflict, NotFound
from core.tunables import Alerts as Limits

RESOLVED_KEPT_S = 3600.0
Told = Literal["pending", "firing", "resolved", "acknowledged"]
"""Changes of an alert that are told, and kept as events `alert.*`."""


class AlertState(enum.StrEnum):
    """Where one alert stands; see the module's table."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class Sign(enum.Enum):
    """Columns of the transition table."""

    HOLDS = 0
    BROKEN = 1
    LONG = 2
    """Broken for as long as the rule waits."""
    NOTHING = 3
    OLD = 4
    """Resolved long ago."""


_I, _P, _F, _R = AlertState.INACTIVE, AlertState.PENDING, AlertState.FIRING, AlertState.RESOLVED
# fmt: off
TABLE: dict[AlertState, tuple[AlertState, ...]] = {
    # before holds broken long nothing old
    _I:     (_I,   _P,    _F,  _I,     _I),
    _P:     (_I,   _P,    _F,  _I,     _I),
    _F:     (_R,   _F,    _F,  _F,     _F),
    _R:     (_R,   _P,    _F,  _R,     _I),
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Somebody knows."""

    author: str
    at: datetime
    note: str


@dataclass(slots=True, kw_only=True)
class Alert:
    """One rule's alert. Times are monotonic seconds beside wall times for people."""

    rule: Rule
    limit: float
    also_limit: float = 0.0
    """Of the rule's second monitor, where it has one."""
    state: AlertState = AlertState.INACTIVE
    value: float | None = None
    """At the last evaluation."""
    also: float | None = None
    """The second monitor's value."""
    worst: float | None = None
    """Since it is broken."""
    since_s: float | None = None
    since: datetime | None = None
    """When the rule was first found broken."""
    fired_at: datetime | None = None
    resolved_s: float = 0.0
    resolved_at: datetime | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)
    acknowledged: Acknowledgement | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """An alert changed its state."""

    alert: Alert
    before: AlertState


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the records keep of one change of an alert."""

    alert: str
    at: datetime
    what: Told
    facts: Mapping[str, object] = field(default_factory=dict)
    """The evidence; of an acknowledgement its author and note."""


_ORDER = (_F, _P, _R, _I)


def _urgency(a: Alert) -> tuple[int, bool, bool, float, str]:
    known, since_s = a.acknowledged is not None, a.since_s or 0.0
    return _ORDER.index(a.state), a.rule.severity != "page", known, -since_s, a.rule.name


class AlertBoard:
    """All alerts of a service, evaluated sample by sample."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._alerts = {rule.name: Alert(rule=rule, limit=0.0) for rule in rules}

    def alerts(self) -> list[Alert]:
        """Every alert: firing ones first, then pending, pages before tickets, those that nobody
        knows of before the others, the newest first."""
        return sorted(self._alerts.values(), key=_urgency)

    def get(self, name: str) -> Alert:
        """One of them; NotFound."""
        try:
            return self._alerts[name]
        except KeyError:
            raise NotFound(f"no alert rule {name!r}", field="name") from None

    def evaluate(
        self,
        values: Mapping[str, float | None],
        limits: Limits,
        now: float,
        at: datetime,
        *,
        evidence: Mapping[str, Mapping[str, object]] | None = None,
    ) -> list[Moved]:
        """Compare one sample; evidence: by monitor, what stands behind its value."""
        moved = []
        for alert in self._alerts.values():
            rule = alert.rule
            alert.limit = float(getattr(limits, rule.limit))
            alert.value = values.get(rule.monitor)
            if rule.also:
                alert.also_limit = float(getattr(limits, rule.also_limit))
                alert.also = values.get(rule.also)
            before = alert.state
            self._step(alert, _sign(alert, now), now, at)
            if alert.state in (_P, _F) and alert.value is not None:
                facts = {k: v for name in (rule.monitor, rule.also)
                         for k, v in (evidence or {}).get(name, {}).items()}  # fmt: skip
                alert.evidence = {"value": alert.value, "limit": alert.limit, **facts}
                alert.worst = _worse(rule, alert.worst, alert.value)
            if alert.state is not before:
                moved.append(Moved(alert, before))
        return moved

    def open(self, name: str) -> Alert:
        """An alert to be acknowledged. Conflict where it is not pending or firing; NotFound."""
        alert = self.get(name)
        if alert.state not in (_P, _F):
            raise Conflict(
                f"alert {name} is {alert.state.value}: nothing to acknowledge", field="name"
            )
        return alert

    def acknowledge(self, name: str, *, author: str, at: datetime, note: str) -> Alert:
        """Note that somebody knows; as `open` raises."""
        alert = self.open(name)
        alert.acknowledged = Acknowledgement(author=author, at=at, note=note)
        return alert

    def restore(self, kept: Sequence[Kept], now: float, at: datetime) -> None:
        """Take up what was told of alerts before the process started, oldest first.

        Firing alerts fire on with their acknowledgement, and the next sample says whether that
        still holds; resolved ones are shown for the rest of their hour. A pending one waits anew:
        nobody looked meanwhile. An alert that has moved since the start is left alone, but for an
        acknowledgement of the same firing.
        """
        found: dict[str, Alert] = {}
        for one in kept:
            if (alert := self._alerts.get(one.alert)) is not None:
                past = found.setdefault(one.alert, Alert(rule=alert.rule, limit=alert.limit))
                _retell(past, one, now, at)
        for name, past in found.items():
            alert = self._alerts[name]
            if alert.state in (_I, _P) and past.state in (_F, _R):
                self._alerts[name] = past
            elif alert.state is _F and past.state is _F:
                alert.acknowledged = alert.acknowledged or past.acknowledged
                alert.since, alert.fired_at = past.since, past.fired_at

    def _step(self, alert: Alert, sign: Sign, now: float, at: datetime) -> None:
        before, after = alert.state, TABLE[alert.state][sign.value]
        alert.state = after
        if after is before:
            return
        if before in (_I, _R) and after in (_P, _F):
            alert.since_s, alert.since = now, at
            alert.worst = alert.fired_at = alert.resolved_at = alert.acknowledged = None
        if after is _F:
            alert.fired_at = at
        elif after is _R:
            alert.resolved_s, alert.resolved_at = now, at
            alert.since_s = alert.acknowledged = None
        elif after is _I:
            alert.since_s = alert.since = alert.fired_at = alert.worst = None
            alert.acknowledged = None


def _sign(alert: Alert, now: float) -> Sign:
    broken = _broken(alert)
    if alert.state is _R and now - alert.resolved_s >= RESOLVED_KEPT_S and not broken:
        return Sign.OLD
    if broken is None:
        return Sign.NOTHING
    if not broken:
        return Sign.HOLDS
    since_s = now if alert.since_s is None else alert.since_s
    return Sign.LONG if now - since_s >= alert.rule.for_s else Sign.BROKEN


def _broken(alert: Alert) -> bool | None:
    """Whether the values are on the wrong side; None where there is nothing to judge by."""
    rule = alert.rule
    if alert.value is None:
        return None
    if not rule.broken(alert.value, alert.limit):
        return False
    if not rule.also:
        return True
    return None if alert.also is None else alert.also > alert.also_limit


def _retell(alert: Alert, kept: Kept, now: float, at: datetime) -> None:
    """Let an alert be as it was after one change that the records keep."""
    ago_s = max((at - kept.at).total_seconds(), 0.0)
    if kept.what == "acknowledged":
        author, note = str(kept.facts.get("actor", "")), str(kept.facts.get("note", ""))
        if alert.state is _F:
            alert.acknowledged = Acknowledgement(author=author, at=kept.at, note=note)
    elif kept.what == "pending":
        alert.state, alert.since, alert.acknowledged = _P, kept.at, None
    elif kept.what == "firing":
        if alert.state is not _P:
            alert.since = kept.at
        alert.state, alert.fired_at, alert.since_s = _F, kept.at, now - ago_s
        alert.resolved_at, alert.acknowledged = None, None
        alert.evidence = kept.facts
        value = kept.facts.get("value")
        alert.worst = float(value) if isinstance(value, int | float) else None
    elif ago_s < RESOLVED_KEPT_S:
        alert.state, alert.resolved_s, alert.resolved_at = _R, now - ago_s, kept.at
        alert.since_s = alert.acknowledged = None
    else:
        alert.state, alert.since, alert.fired_at = _I, None, None


def _worse(rule: Rule, worst: float | None, value: float) -> float:
    if worst is None:
        return value
    return min(worst, value) if rule.below else max(worst, value)
