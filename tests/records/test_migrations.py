"""Migrations: empty to head, every step down and up, head equals the models, no half steps."""

from __future__ import annotations

import threading
import time

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from core.errors import StoreError
from storage import migrate
from storage.database import writer_engine
from storage.partitions import is_partition
from storage.schema import metadata
from storage.store import open_storage


@pytest.fixture
def url(database_url: str) -> str:
    return database_url


def steps() -> list[str]:
    """Versions, oldest first."""
    scripts = ScriptDirectory.from_config(migrate._config())
    return [script.revision for script in scripts.walk_revisions()][::-1]


def tables(url: str) -> set[str]:
    engine = writer_engine(url)
    found = set(inspect(engine).get_table_names())
    engine.dispose()
    return {name for name in found if not is_partition(name)} - {"alembic_version"}


def test_empty_to_head_equals_the_models(url):
    assert migrate.current(url) is None
    assert migrate.upgrade(url) == migrate.head()
    assert migrate.current(url) == migrate.head()
    assert migrate.differences(url) == []
    assert tables(url) == set(metadata.tables)


def test_a_difference_would_be_noticed(url):
    migrate.upgrade(url)
    engine = writer_engine(url)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE decisions ADD COLUMN stray INTEGER"))
        connection.execute(text("DROP INDEX ix_decisions_request_id"))
    engine.dispose()
    kinds = {change[0] for change in migrate.differences(url)}
    assert kinds == {"remove_column", "add_index"}


def test_every_step_goes_down_and_up_again(url):
    migrate.upgrade(url)
    for below in ["base", *steps()[:-1]][::-1]:
        migrate.downgrade(url, below)
        assert migrate.current(url) == (None if below == "base" else below)
        migrate.upgrade(url)
        assert migrate.differences(url) == []
        migrate.downgrade(url, below)
    assert tables(url) == set()


def test_upgrading_again_changes_nothing(url):
    migrate.upgrade(url)
    assert migrate.upgrade(url) == migrate.head()
    assert migrate.differences(url) == []


def test_who_holds_the_lock_is_waited_for_only_where_there_is_something_to_do(tmp_path):
    url = f"sqlite:///{tmp_path / 'records.db'}"
    migrate.upgrade(url, "0003")
    engine = writer_engine(url)
    with engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            migrate.upgrade(url, wait_ms=1)
        assert migrate.current(url) == "0003"
        other.rollback()
        migrate.upgrade(url)
        other.exec_driver_sql("BEGIN IMMEDIATE")
        assert migrate.upgrade(url, wait_ms=1) == migrate.head()
    engine.dispose()


def test_many_at_once_migrate_once(url):
    failures: list[Exception] = []
    start = threading.Barrier(4)

    def go() -> None:
        start.wait()
        try:
            migrate.upgrade(url)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert migrate.differences(url) == []


def test_a_schema_of_a_newer_release_is_refused(url):
    migrate.upgrade(url)
    engine = writer_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(migrate.SchemaMismatch, match="does not fit this release"):
        migrate.upgrade(url)
    with pytest.raises(StoreError, match="9999"):
        open_storage(url)


def test_a_step_that_fails_leaves_nothing_behind(tmp_path):
    url = f"sqlite:///{tmp_path / 'records.db'}"
    engine = writer_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE revisions (x INTEGER)"))
    engine.dispose()
    with pytest.raises(StoreError):
        migrate.upgrade(url)
    assert tables(url) == {"revisions"}
    assert migrate.current(url) is None


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_head_on_a_million_rows_takes_a_minute_at_most(url):
    migrate.upgrade(url, "0003")
    engine = writer_engine(url)
    numbers = (
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999999) "
        if engine.dialect.name == "sqlite"
        else "WITH n(i) AS (SELECT generate_series(0, 999999)) "
    )
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
        for table in ("decisions", "outcomes"):
            columns = [(c["name"], c) for c in inspect(connection).get_columns(table)]
            values = ", ".join(_value(name, column) for name, column in columns)
            names = ", ".join(name for name, _ in columns)
            insert = f"INSERT INTO {table} ({names}) {numbers} SELECT {values} FROM n"
            connection.execute(text(insert))
    engine.dispose()
    began = time.monotonic()
    migrate.upgrade(url)
    took = time.monotonic() - began
    print(f"\n{url.partition(':')[0]}: head on 1,000,000 rows in {took:.1f} s")
    assert migrate.differences(url) == []
    assert took <= 60.0


def _value(name: str, column: dict) -> str:
    """What row `i` holds in a column: about a kilobyte a decision."""
    if name in ("id", "decision_id"):
        return "'d' || (10000000 + i)"
    if name.endswith("_us"):
        return "1772366400000000 + CAST(i AS BIGINT) * 5000"
    if name == "candidates":
        return f"'{'x' * 600}'"
    if name == "prefill_node":
        return "'p' || (i % 16)"
    if column["nullable"]:
        return "NULL"
    return "''" if str(column["type"]).startswith("TEXT") else "1"
