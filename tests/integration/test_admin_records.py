"""The record store over the admin API: its state, exports, and what an outage of it stops."""

from __future__ import annotations

import asyncio
import csv
import io
from contextlib import asynccontextmanager

import aiohttp
import pyarrow.parquet as pq
from gateway_world import MODEL, serving, until
from record_cases import decision, keep, outcome, rejected
from sqlalchemy import create_engine

from core import wire
from core.gateway import admin_records
from core.ports import StoreUpkeep
from core.settings import Settings
from core.wiring import running_service

WHY = {"author": "op", "reason": "a test of it"}


class World:
    """A whole service without nodes, behind HTTP."""

    def __init__(self, service, url, client) -> None:
        self.service, self.url, self.client = service, url, client

    async def get(self, path, status=200):
        async with self.client.get(f"{self.url}{path}") as answer:
            body = await answer.read()
            assert answer.status == status, body
            return answer, body

    async def send(self, method, path, body, status):
        async with self.client.request(method, f"{self.url}/admin/v1{path}", json=body) as answer:
            text = await answer.read()
            assert answer.status == status, text
            return text


@asynccontextmanager
async def world(tmp_path, **settings):
    found = Settings(state_dir=tmp_path, auth={"anonymous_role": "admin"}, **settings)
    async with (
        running_service(found) as service,
        serving(service) as (url, _),
        aiohttp.ClientSession() as client,
    ):
        yield World(service, url, client)


class _Handle:
    """What `record_cases.keep` needs of a storage."""

    def __init__(self, service) -> None:
        self.sink, self.store = service.sink, service.store


async def fill(w, *records) -> None:
    await asyncio.to_thread(keep, _Handle(w.service), *records)


async def test_state_of_the_store_and_who_shares_it(tmp_path):
    async with world(tmp_path, records={"export_rows_max": 123_456}) as w:
        await fill(w, *(decision(n) for n in range(7)), outcome(0))
        await until(lambda: w.service.store_upkeep().replicas_alive == 1)
        _, body = await w.get("/admin/v1/storage")
        view = wire.StorageView.model_validate_json(body)
        assert view.error == "" and view.database.kind == "sqlite"
        assert view.database.schema_version == view.database.newest_schema
        assert view.database.rows["decisions"] == 7 and view.database.rows["outcomes"] == 1
        assert view.database.oldest_at == decision(0).at
        assert view.database.size_bytes > 10_000
        assert view.writer.available and view.writer.written >= 8 and view.spool.rows == 0
        assert view.upkeep.replicas_alive == 1 and view.export_rows_max == 123_456
        _, body = await w.get("/admin/v1/replicas")
        (mine,) = wire.ReplicaList.model_validate_json(body).replicas
        assert mine.alive and mine.address == "127.0.0.1:8080" and mine.stopped_at is None
        w.service.store_upkeep = lambda: StoreUpkeep(refused="decisions: too many; outcomes: too")
        told = "old records are not deleted: decisions: too many; and so for 1 more"
        assert told in w.service.problems()


async def test_metrics_of_the_store(tmp_path):
    async with world(tmp_path) as w:
        await fill(w, decision(1))
        await until(lambda: w.service.store_upkeep().replicas_alive == 1)
        text = (await w.get("/metrics"))[1].decode()
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        assert float(values["conductor_records_written_total"]) >= 1
        assert values["conductor_records_available"] == values["conductor_replicas_alive"] == "1.0"
        for name in (
            "records_queued", "records_lag_seconds", "records_dropped_total",
            "records_failures_total", "spool_rows", "spool_bytes", "spool_damaged_total",
            "spool_failures_total", "rollup_lag_seconds", "rollup_buckets_total",
            "retention_deleted_rows_total", "retention_refused", "upkeep_failures_total",
        ):  # fmt: skip
            assert f"conductor_{name}" in values


async def test_decisions_of_one_revision(tmp_path):
    async with world(tmp_path) as w:
        await fill(w, *(decision(n, revision=n % 3) for n in range(9)))
        _, body = await w.get("/admin/v1/decisions?revision=2")
        found = wire.DecisionPage.model_validate_json(body).rows
        assert [row.id for row in found] == [decision(n).id for n in (8, 5, 2)]
        await w.get("/admin/v1/decisions?revision=x", 422)


async def test_exports(tmp_path):
    async with world(tmp_path, records={"export_rows_max": 2_000}) as w:
        await fill(w, *(decision(n) for n in range(1_200)), rejected(1_200), outcome(3))
        answer, body = await w.get("/admin/v1/decisions/export?limit=1100")
        assert answer.headers["content-type"].startswith("text/csv")
        assert ".csv" in answer.headers["content-disposition"]
        assert answer.headers["x-conductor-rows-max"] == "1100"
        found = list(csv.DictReader(io.StringIO(body.decode(), newline="")))
        assert len(found) == 1_100 and found[0]["code"] == "predicted_ttft_slo"
        _, body = await w.get("/admin/v1/decisions/export?format=parquet&limit=2000&outcome=ok")
        table = pq.read_table(io.BytesIO(body))
        assert table.column("id").to_pylist() == [decision(3).id]
        _, body = await w.get("/admin/v1/decisions/export?limit=2001", 400)
        assert b"records.export_rows_max" in body
        await w.get("/admin/v1/decisions/export?format=xlsx&limit=5", 422)
        await w.get("/admin/v1/decisions/export?cursor=x&limit=5", 400)


async def test_a_few_exports_at_once_and_places_given_back(tmp_path, monkeypatch):
    go = asyncio.Event()
    made = admin_records._made

    async def slow(pieces):
        await go.wait()
        async for piece in made(pieces):
            yield piece

    monkeypatch.setattr(admin_records, "_made", slow)
    async with world(tmp_path, records={"export_rows_max": 10}) as w:
        path = "/admin/v1/decisions/export?limit=1"
        first = asyncio.ensure_future(w.get(path))
        gone = await w.client.get(f"{w.url}{path}")
        refused, _ = await w.get(path, 429)
        assert refused.headers["retry-after"] == "5"
        gone.close()
        status = 429
        while status == 429:  # until the place of whoever left is free
            async with w.client.get(f"{w.url}{path}") as third:
                status = third.status
        assert status == 200
        go.set()
        assert (await first)[1].startswith(b"id,")


async def test_without_the_database_nothing_is_changed_and_the_service_is_degraded(tmp_path):
    """Decisions go on, readiness stays 200 and says why, acts are refused."""
    async with world(tmp_path, records={"spool_bytes_max": 1 << 20}) as w:
        locked = create_engine(f"sqlite:///{tmp_path / 'conductor.db'}").connect()
        locked.exec_driver_sql("BEGIN EXCLUSIVE")
        w.service.sink.put_decision(decision(1))
        await until(lambda: not w.service.sink.counters().available)
        await until(lambda: w.service.sink.counters().spooled >= 1)
        _, body = await w.get("/health/ready")
        view = wire.HealthView.model_validate_json(body)
        assert view.ready
        assert any("cannot be stored" in text for text in view.problems)
        assert any("records wait on disk" in text for text in view.problems)
        node = {"id": "n", "url": "http://127.0.0.1:9", "engine": "vllm", "models": [MODEL]}
        live = w.service.conductor.revision
        for method, path, body in (
            ("POST", "/nodes", node),
            ("POST", "/revisions", {"changes": {"linear.alpha": 0.1}, "base": live, **WHY}),
            ("POST", "/breaker", {"action": "trip", **WHY}),
        ):
            text = await w.send(method, path, body, 503)
            assert b"store_unavailable" in text and b"nothing can be changed now" in text
        assert not len(w.service.conductor.fleet) and w.service.conductor.revision == live
        locked.rollback()
        locked.close()
        locked.engine.dispose()
        await until(lambda: w.service.sink.counters().available)
        await until(lambda: not w.service.sink.counters().spooled)
        await w.send("POST", "/nodes", node, 201)
        _, body = await w.get("/health/ready")
        assert not any(
            "stored" in t or "disk" in t for t in wire.HealthView.model_validate_json(body).problems
        )


async def test_a_store_that_is_gone_is_told_with_what_waits(tmp_path):
    async with world(tmp_path) as w:
        w.service.store.close()
        w.service.store._reader = create_engine("sqlite:////nowhere/at/all.db")
        view = wire.StorageView.model_validate_json((await w.get("/admin/v1/storage"))[1])
        assert view.database is None and "unable to open" in view.error
        assert view.writer is not None and view.spool is not None
        assert b"nothing" not in await w.send("DELETE", "/nodes/x", None, 503)
