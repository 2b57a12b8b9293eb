"""Results as JSON and as plain tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

Row = Mapping[str, Any]
COLUMNS: tuple[tuple[str, str], ...] = (
    ("label", "policy"),
    ("load", "load"),
    ("ttft_s.mean", "ttft mean s"),
    ("ttft_s.p50", "p50"),
    ("ttft_s.p90", "p90"),
    ("ttft_s.p99", "p99"),
    ("tbt_ms.p99", "tbt p99 ms"),
    ("hit_ratio", "hit"),
    ("reachable_hit_ratio", "reachable"),
    ("goodput_rps", "goodput/s"),
    ("rejected", "rejected"),
    ("imbalance", "imbalance"),
)


def to_json(value: Any, *, pretty: bool = False) -> str:
    """JSON with keys in the order given; the same value gives the same bytes."""
    options = orjson.OPT_INDENT_2 if pretty else 0
    return orjson.dumps(value, option=options | orjson.OPT_SERIALIZE_NUMPY).decode()


def look_up(row: Row, path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def table(rows: Sequence[Row], columns: Sequence[tuple[str, str]] = COLUMNS) -> str:
    """Rows in aligned columns, numbers to the right, columns without a value left out."""
    used = [c for c in columns if any(look_up(row, c[0]) is not None for row in rows)]
    cells = [[title for _, title in used]]
    cells += [[_cell(look_up(row, path)) for path, _ in used] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(used))]
    lines = []
    for line in cells:
        first, *rest = (
            text.ljust(widths[i]) if i == 0 else text.rjust(widths[i])
            for i, text in enumerate(line)
        )
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def markdown(rows: Sequence[Row], columns: Sequence[tuple[str, str]] = COLUMNS) -> str:
    """The same rows as a Markdown table."""
    used = [c for c in columns if any(look_up(row, c[0]) is not None for row in rows)]
    lines = ["| " + " | ".join(title for _, title in used) + " |"]
    lines.append("| " + " | ".join("---" if i == 0 else "---:" for i in range(len(used))) + " |")
    for row in rows:
        lines.append("| " + " | ".join(_cell(look_up(row, path)) for path, _ in used) + " |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    if value and abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
