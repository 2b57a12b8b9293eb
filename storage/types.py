"""Column types and conversions that keep one schema portable between SQLite and Postgres."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Text
from sqlalchemy.types import TypeEngine

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def key_text() -> TypeEngine[Any]:
    """Text ordered byte by byte on every database, so that ids sort by time everywhere."""
    return Text().with_variant(Text(collation="C"), "postgresql")


def to_micros(at: datetime) -> int:
    """Microseconds since 1970 of an aware datetime; ValueError for a naive one."""
    if at.tzinfo is None:
        raise ValueError(f"time {at.isoformat()} has no time zone, expected aware UTC")
    return (at - _EPOCH) // _MICROSECOND


def from_micros(at_us: int) -> datetime:
    """Aware UTC datetime of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=at_us)
