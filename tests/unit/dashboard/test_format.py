from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from dashboard.parts import format as fmt


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (float("nan"), "-"), (0.0, "0 s"), (8.5e-4, "850 µs"), (0.0123, "12.3 ms"),
        (0.9999, "1,000 ms"), (1.25, "1.25 s"), (99.94, "99.9 s"), (200.0, "3 min 20 s"),
        (7500.0, "2 h 5 min"), (90_000.0, "1 d 1 h"), (-200.0, "-3 min 20 s"),
    ],
)  # fmt: skip
def test_durations(value: float | None, text: str) -> None:
    assert fmt.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (9_999, "9,999"), (12_345, "12.3 k"), (3.4e6, "3.4 M"), (2e9, "2 G")],
)
def test_counts(value: float | None, text: str) -> None:
    assert fmt.count(value) == text


def test_digits_keep_three_and_no_trailing_zeros() -> None:
    assert [fmt.digits(v) for v in (1.0, 1.234, 12.34, 1234.0, 0.001234)] == [
        "1", "1.23", "12.3", "1,234", "0.00123",
    ]  # fmt: skip


def test_shares_and_figures() -> None:
    assert fmt.share(0.875) == "88 %"
    assert fmt.share(0.0123, 1) == "1.2 %"
    assert fmt.share(None) == "-"
    assert fmt.figure(5120.0) == "5,120"
    assert fmt.figure(0.0146612) == "0.01466"


def test_times_are_shown_in_the_readers_zone() -> None:
    at = datetime(2026, 3, 1, 23, 30, 1, 250_000, tzinfo=UTC)
    tokyo = ZoneInfo("Asia/Tokyo")
    assert fmt.moment(at, tokyo) == "2026-03-02 08:30:01.250"
    assert fmt.clock(at, UTC) == "23:30:01"
    assert fmt.axis_time(at, tokyo) == "2026-03-02T08:30:01"


def test_names_beyond_the_limit_are_counted() -> None:
    assert fmt.listed(["a", "b", "c"], most=2) == "a, b and 1 more"
