"""What only Postgres has: partitions, COPY beside rows stored before, waits that end."""

from __future__ import annotations

from datetime import timedelta

import pytest
from record_cases import T0, decision, execute, keep, outcome, rows
from sqlalchemy import text

from core.errors import StoreError
from storage import migrate, partitions
from storage.database import writer_engine
from storage.insert import Inserter, Row
from storage.rows import COLUMNS, decision_values, outcome_values
from storage.store import open_storage


@pytest.fixture
def url(postgres_server) -> str:
    return postgres_server.new_database()


def attached(url: str) -> set[str]:
    engine = writer_engine(url)
    with engine.begin() as connection:
        found = partitions.existing(connection)
    engine.dispose()
    return found


def test_each_day_has_partitions_of_its_own(url):
    with open_storage(url) as storage:
        days = [decision(n, at=T0 + timedelta(days=n)) for n in range(3)]
        keep(storage, *days, outcome(0))
    assert attached(url) == {
        f"{table}_{day}" for table in partitions.PARTITIONED
        for day in ("20260301", "20260302", "20260303")
    }  # fmt: skip
    assert rows(url, "SELECT count(*) FROM decisions_20260302") == [(1,)]
    assert migrate.differences(url) == []


def test_a_batch_with_rows_stored_before_adds_the_others(url):
    migrate.upgrade(url)
    engine = writer_engine(url)
    inserter = Inserter(engine)
    first = [Row("decisions", decision_values(decision(n))) for n in range(10)]
    more = [Row("decisions", decision_values(decision(n))) for n in range(5, 15)]
    ends = [Row("outcomes", outcome_values(outcome(n))) for n in range(15)]
    assert inserter.store(first) == 10
    assert inserter.store([*more, *more, *ends]) == 5 + 15
    assert inserter.store([*more, *ends]) == 0
    engine.dispose()
    assert rows(url, "SELECT count(*) FROM decisions") == [(15,)]


def test_a_partition_that_was_dropped_is_made_again(url):
    with open_storage(url) as storage:
        keep(storage, decision(1))
        execute(url, "DROP TABLE decisions_20260301")
        keep(storage, decision(2))
        assert [row.decision.request_id for row in storage.store.by_request("r-2")] == ["r-2"]


def test_rows_stored_before_partitions_stay_and_go_back(url):
    migrate.upgrade(url, "0003")
    later = {"decide_s", "waited_s"}
    given = zip(COLUMNS["decisions"], decision_values(decision(1)), strict=True)
    values = {name: value for name, value in given if name not in later}
    insert = (
        f"INSERT INTO decisions ({', '.join(values)})"
        f" VALUES ({', '.join(f':{name}' for name in values)})"
    )
    engine = writer_engine(url)
    with engine.begin() as connection:
        connection.execute(text(insert), values)
    engine.dispose()
    migrate.upgrade(url)
    assert attached(url) == {"decisions_20260301"}
    with open_storage(url) as storage:
        assert storage.store.decision("0197000001").decision == decision(1)
    migrate.downgrade(url, "0003")
    assert rows(url, "SELECT count(*) FROM decisions") == [(1,)]
    assert attached(url) == set()


def test_a_lock_held_elsewhere_is_a_failure_soon_and_no_loss(url):
    migrate.upgrade(url)
    engine = writer_engine(url, busy_ms=50)
    other = writer_engine(url)
    inserter = Inserter(engine)
    with other.connect() as holder:
        holder.execute(text("LOCK TABLE decisions IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(Exception, match="lock timeout"):
            inserter.store([Row("decisions", decision_values(decision(1)))])
        holder.rollback()
    assert inserter.store([Row("decisions", decision_values(decision(1)))]) == 1
    engine.dispose()
    other.dispose()


def test_texts_that_postgres_cannot_hold_are_mended(url):
    with open_storage(url) as storage:
        keep(storage, decision(1, tenant="a\0b", message="\ud800"), decision(2))
        kept = storage.store.decision("0197000001").decision
        assert (kept.tenant, kept.message) == ("a\ufffdb", "?")


def test_a_server_that_is_gone_is_an_error_that_names_no_password(postgres_server):
    gone = postgres_server.url(port=1).replace("conductor@", "conductor:hunter2@")
    with pytest.raises(StoreError) as caught:
        migrate.upgrade(gone)
    assert "hunter2" not in str(caught.value)


def test_a_value_of_the_wrong_type_costs_its_row_at_most(url):
    with open_storage(url) as storage:
        kept = [decision(n) for n in range(20)]
        kept[5] = decision(5, prompt_tokens=2**40)
        kept[6] = decision(6, prompt_tokens=7.0, retry_after_s=1)
        kept[7] = decision(7, tenant=b"x")
        for record in kept:
            storage.sink.put_decision(record)
        assert storage.sink.flush(30.0)
        assert storage.sink.counters().dropped in (1, 2)
        assert storage.store.counts().decisions >= 18
        assert storage.store.decision("0197000006").decision.prompt_tokens == 7
