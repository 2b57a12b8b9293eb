"""Decisions exported by filters, as the pieces of a CSV or Parquet file."""

from __future__ import annotations

import csv
import io

import pyarrow.parquet as pq
import pytest
from record_cases import decision, outcome, rejected

from core.errors import BadRequest, StoreError
from core.ports import DecisionQuery
from storage.store import Store, open_storage
from storage.transfer import source_of


@pytest.fixture
def store(record_url):
    with open_storage(record_url) as storage:
        for number in range(2_500):
            if number % 10 == 9:
                storage.sink.put_decision(rejected(number))
                continue
            storage.sink.put_decision(decision(number, policy="linear" if number % 2 else "smg"))
            if number % 3:
                storage.sink.put_outcome(outcome(number))
        assert storage.sink.flush(30.0)
        yield storage.store


def test_csv_holds_what_the_filters_choose_newest_first(store):
    data = b"".join(store.export(DecisionQuery(policy="linear"), "csv", limit=10_000))
    found = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    wanted = [n for n in range(2_499, -1, -1) if n % 2 and n % 10 != 9]
    assert [row["id"] for row in found[:3]] == [decision(n).id for n in wanted[:3]]
    assert set(found[0]) == set(source_of("audit").names)
    linear = [row for row in found if not row["status"]]
    assert len(linear) == len(wanted)
    with_outcome = {row["id"] for row in found if row["outcome_kind"]}
    assert with_outcome == {decision(n).id for n in wanted if n % 3}


def test_parquet_is_the_same_and_the_limit_holds(store):
    pieces = list(store.export(DecisionQuery(), "parquet", limit=2_200))
    table = pq.read_table(io.BytesIO(b"".join(pieces)))
    ids = table.column("id").to_pylist()
    assert len(ids) == len(set(ids)) == 2_200
    assert table.column("at_us").to_pylist()[0] == decision(2_499).at
    assert table.schema.names == list(source_of("audit").names)


def test_more_rows_than_a_row_group_come_in_pieces(store, monkeypatch):
    monkeypatch.setattr("storage.download._GROUP", 1_000)
    pieces = list(store.export(DecisionQuery(), "parquet", limit=10_000))
    assert len(pieces) == 3
    file = pq.ParquetFile(io.BytesIO(b"".join(pieces)))
    assert file.num_row_groups == 3 and file.metadata.num_rows == 2_500


def test_nothing_found_is_a_file_with_a_heading(store):
    query = DecisionQuery(policy="never")
    assert b"".join(store.export(query, "csv", limit=10)).startswith(b"id,at_us,")
    data = b"".join(store.export(query, "parquet", limit=10))
    assert pq.read_table(io.BytesIO(data)).num_rows == 0


def test_what_is_wrong_is_said_before_the_first_piece(store, tmp_path):
    with pytest.raises(BadRequest, match="format"):
        store.export(DecisionQuery(), "xlsx", limit=1)
    with pytest.raises(BadRequest, match="kind"):
        store.export(DecisionQuery(kind="nonsense"), "csv", limit=1)
    away = Store(f"sqlite:///{tmp_path / 'nowhere.db'}")
    with pytest.raises(StoreError):
        away.export(DecisionQuery(), "csv", limit=1)
    away.close()
