"""Tables as files: what is shown is what is in them."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboard.parts.export import as_file, slug

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROWS = [
    {"Time": AT, "Node": "a", "Load": 0.5, "Tokens": 7, "Value": 1},
    {"Time": AT, "Node": None, "Load": None, "Tokens": 8, "Value": "off"},
]


@pytest.mark.parametrize("made", [pd.DataFrame, lambda rows: pa.Table.from_pylist(rows)])
def test_both_kinds_hold_every_row(made):
    rows = [{k: v for k, v in row.items() if k != "Value"} for row in ROWS]
    table = made(rows)
    again = pd.read_csv(io.BytesIO(as_file(table, "csv")))
    assert list(again["Tokens"]) == [7, 8]
    assert again["Node"][0] == "a" and pd.isna(again["Node"][1])
    stored = pq.read_table(io.BytesIO(as_file(table, "parquet"))).to_pylist()
    assert stored == rows


def test_a_column_of_mixed_types_becomes_text():
    stored = pq.read_table(io.BytesIO(as_file(pd.DataFrame(ROWS), "parquet"))).to_pylist()
    assert [row["Value"] for row in stored] == ["1", "off"]
    assert [row["Load"] for row in stored] == [0.5, None]


def test_a_table_without_rows_is_a_file_too():
    assert pq.read_table(io.BytesIO(as_file(pd.DataFrame(), "parquet"))).num_rows == 0


def test_file_names_are_plain():
    assert slug("Changes, newest first") == "changes-newest-first"
    assert slug("../<b>") == "b"
