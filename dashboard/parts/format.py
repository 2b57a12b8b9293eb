"""Numbers, durations and times as an operator reads them. Pure."""

from __future__ import annotations

import math
from datetime import datetime, tzinfo

NONE = "-"


def seconds(value: float | None) -> str:
    """A duration with three significant digits: 850 µs, 12.3 ms, 1.25 s, 3 min 20 s, 2 h 5 min."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if size == 0:
        return "0 s"
    if size < 1e-3:
        return f"{digits(value * 1e6)} µs"
    if size < 1:
        return f"{digits(value * 1e3)} ms"
    if size < 100:
        return f"{digits(value)} s"
    return _long(value)


def _long(value: float) -> str:
    sign, whole = ("-" if value < 0 else ""), round(abs(value))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    shown = [f"{n} {unit}" for n, unit in parts if n][:2]
    return sign + " ".join(shown)


def digits(value: float) -> str:
    """Three significant digits, never in scientific notation."""
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(value: float | None, places: int = 0) -> str:
    """A share as percent."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value * 100:.{places}f} %"


def count(value: float | None) -> str:
    """A count: in full below 10,000, then with k, M, G."""
    if value is None or not math.isfinite(value):
        return NONE
    for limit, divisor, unit in ((1e4, 1, ""), (1e6, 1e3, " k"), (1e9, 1e6, " M")):
        if abs(value) < limit:
            return (f"{value:,.0f}" if divisor == 1 else digits(value / divisor)) + unit
    return digits(value / 1e9) + " G"


def counted(n: int, what: str) -> str:
    """So many of a thing: 1 act, 2 acts."""
    return f"{count(n)} {what}" if n == 1 else f"{count(n)} {what}s"


def rate(value: float | None) -> str:
    """A rate per second."""
    return NONE if value is None else f"{digits(value)}/s"


def figure(value: float) -> str:
    """A term or input: whole numbers in full, others with four significant digits."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def clock(at: datetime, zone: tzinfo) -> str:
    """Time of day in a zone, to the second."""
    return at.astimezone(zone).strftime("%H:%M:%S")


def moment(at: datetime, zone: tzinfo) -> str:
    """Date and time in a zone, to the millisecond."""
    local = at.astimezone(zone)
    return local.strftime("%Y-%m-%d %H:%M:%S.") + f"{local.microsecond // 1000:03d}"


def axis_time(at: datetime, zone: tzinfo) -> str:
    """A time for a chart axis: local wall clock without an offset, as the chart shows it."""
    return at.astimezone(zone).strftime("%Y-%m-%dT%H:%M:%S")


def ago(age_s: float | None) -> str:
    """How long ago, for badges."""
    if age_s is None:
        return "never"
    return f"{max(age_s, 0.0):.1f} s old" if age_s < 60 else f"{_long(age_s)} old"


def listed(names: list[str], most: int = 4) -> str:
    """Names in a sentence, the rest counted."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
