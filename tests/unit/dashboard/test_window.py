"""The stretch of time a page shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dashboard.parts.window import LIVE_RANGE, SPAN_MAX, fixed, parse, relative, spell, words

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def test_a_moving_window_ends_now_and_an_unknown_choice_is_the_live_range() -> None:
    hour = relative("1h", NOW)
    assert (hour.start, hour.end) == (NOW - timedelta(hours=1), NOW)
    assert not hour.in_memory
    assert relative("bad", NOW) == relative(LIVE_RANGE, NOW)
    assert relative(LIVE_RANGE, NOW).in_memory


def test_a_fixed_window_is_put_right() -> None:
    early, late = NOW - timedelta(hours=5), NOW - timedelta(hours=4)
    assert fixed(late.replace(tzinfo=None), early, NOW).start == early
    assert fixed(early, early, NOW).length == timedelta(minutes=1)
    assert fixed(NOW - timedelta(days=90), NOW, NOW).length == SPAN_MAX
    assert fixed(None, None, NOW).length == timedelta(hours=1)
    assert not fixed(NOW - timedelta(minutes=5), NOW, NOW).in_memory


def test_words_give_the_date_only_where_it_is_needed() -> None:
    assert words(relative("1h", NOW), UTC) == "11:00 to 12:00"
    assert words(relative("24h", NOW), UTC) == "28 Feb 12:00 to 01 Mar 12:00"
    assert words(fixed(NOW - timedelta(hours=2), NOW, NOW), UTC).startswith("01 Mar 10:00")


def test_an_address_carries_whole_minutes_in_utc() -> None:
    assert spell(datetime(2026, 3, 1, 12, 5)) == "2026-03-01T12:05"
    assert parse("2026-03-01T12:05") == datetime(2026, 3, 1, 12, 5)
    assert parse("2026-03-01T14:05:09+02:00") == datetime(2026, 3, 1, 12, 5)
    assert parse("yesterday") is None
