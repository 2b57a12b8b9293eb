"""The record store as the service opens it: a spool beside it, and its upkeep running."""

from __future__ import annotations

from record_cases import decision, rows, wait_for

from core.settings import load_settings
from core.wiring import open_records
from storage.database import writer_engine


def test_what_an_outage_held_back_is_stored_by_the_next_start(tmp_path):
    settings = load_settings(None, state_dir=tmp_path)
    open_records(settings).close()
    away = writer_engine(settings.database).connect()
    away.exec_driver_sql("BEGIN IMMEDIATE")
    storage = open_records(settings)
    storage.sink.put_decision(decision(1))
    wait_for(lambda: storage.sink.counters().spooled == 1)
    storage.close(0.1)
    assert any((tmp_path / "spool").iterdir())
    away.rollback()
    away.engine.dispose()
    stored = [(decision(1).id,)]
    with open_records(settings):
        wait_for(lambda: rows(settings.database, "SELECT id FROM decisions") == stored)


def test_the_process_is_listed_while_it_runs(tmp_path):
    settings = load_settings(None, state_dir=tmp_path)
    with open_records(settings) as storage:
        wait_for(lambda: len(storage.store.replicas()) == 1)
        assert storage.store.replicas()[0].address == "127.0.0.1:8080"
