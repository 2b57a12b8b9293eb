"""The stretch of time a page shows: the last hour, or from one moment to another. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

RANGES: dict[str, timedelta] = {
    "5m": timedelta(minutes=5),
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
}
"""Choices of the time range; the first is kept in memory by the service, in finer steps."""
LIVE_RANGE = "5m"
CUSTOM = "custom"
CHOICES = (*RANGES, CUSTOM)
SPAN_MAX = timedelta(days=7)
"""The service answers at most this much at once."""


@dataclass(frozen=True, slots=True)
class Window:
    """[start, end), aware UTC. `span` is None for a fixed window, which does not move on."""

    start: datetime
    end: datetime
    span: timedelta | None

    @property
    def in_memory(self) -> bool:
        """Whether the service holds it in memory, in steps of seconds."""
        return self.span == RANGES[LIVE_RANGE]

    @property
    def length(self) -> timedelta:
        """From start to end."""
        return self.end - self.start


def relative(choice: str, now: datetime) -> Window:
    """The last `choice` before `now`; the live range for an unknown choice."""
    span = RANGES.get(choice, RANGES[LIVE_RANGE])
    return Window(now - span, now, span)


def fixed(start: datetime | None, end: datetime | None, now: datetime) -> Window:
    """From `start` to `end`, both wall clock in UTC; the last hour where one is missing.

    Ends that are the wrong way round are exchanged; a stretch beyond `SPAN_MAX` keeps its end.
    """
    until = _utc(end) if end is not None else now
    since = _utc(start) if start is not None else until - timedelta(hours=1)
    if since > until:
        since, until = until, since
    since = max(since, until - SPAN_MAX)
    if since == until:
        since = until - timedelta(minutes=1)
    return Window(since, until, None)


def words(window: Window, zone: tzinfo) -> str:
    """Both ends as the reader's clock shows them; the date only where it is needed."""
    start, end = window.start.astimezone(zone), window.end.astimezone(zone)
    short = start.date() == end.date() and window.span is not None
    pattern = "%H:%M" if short else "%d %b %H:%M"
    return f"{start.strftime(pattern)} to {end.strftime(pattern)}"


def spell(at: datetime) -> str:
    """A wall-clock time in UTC as the address carries it: 2026-03-01T12:00."""
    return at.strftime("%Y-%m-%dT%H:%M")


def parse(text: str) -> datetime | None:
    """The wall-clock time in UTC (without a zone) that an address names; None for nonsense."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return _utc(at).replace(tzinfo=None, second=0, microsecond=0)


def _utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
