"""Stored records while no scheduler runs: an instance that reads, and only reads."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import httpx
import pytest
from gateway_world import until
from record_cases import decision, keep, outcome, rows, wait_for

from core import wire
from core.errors import StoreError
from core.gateway.history import create_history_app
from core.gateway.replication import KeptReplication, ReplicationHistory
from core.history import running_history
from core.launcher import answers
from core.ports import RevisionRecord
from core.settings import Settings
from core.tunables import Tunables, leaves
from storage import migrate
from storage.store import open_storage
from tests.integration.engine_fleet import free_port

HOUR = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)


class Reader:
    """Asks the instance."""

    def __init__(self, client, service) -> None:
        self.client, self.service = client, service

    async def get(self, path, status=200):
        return await self.ask("GET", f"/admin/v1{path}", status)

    async def ask(self, method, path, status):
        answer = await self.client.request(method, path)
        assert answer.status_code == status, (path, answer.content)
        return answer.content


@asynccontextmanager
async def history(tmp_path, url):
    settings = Settings(state_dir=tmp_path / "state", database_url=url)
    async with running_history(settings) as service:
        transport = httpx.ASGITransport(create_history_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield Reader(client, service)


async def test_records_are_read_and_nothing_is_written(tmp_path, record_url):
    with open_storage(record_url) as storage:
        keep(storage, *(decision(n) for n in range(5)), outcome(2))
    async with history(tmp_path, record_url) as h:
        page = wire.DecisionPage.model_validate_json(await h.get("/decisions"))
        assert [row.id for row in page.rows] == [decision(n).id for n in range(4, -1, -1)]
        assert await h.get(f"/decisions/{decision(2).id}")
        assert (await h.get("/decisions/export?limit=10")).startswith(b"id,")
        since, until_ = (f"{decision(n).at:%Y-%m-%dT%H:%M:%SZ}" for n in (0, 3_600))
        series = await h.get(f"/series?window=minutes&since={since}&until={until_}")
        assert sum(p.requests for p in wire.Series.model_validate_json(series).points) == 5
        view = wire.StorageView.model_validate_json(await h.get("/storage"))
        assert view.database.rows["decisions"] == 5 and view.writer is None
        for path in ("/revisions", "/tunables", "/scheduled", "/replicas", "/history", "/whoami"):
            await h.get(path)
        live = ("/state", "/nodes", "/cache/hot", "/breaker", "/events", "/series?window=live")
        for path in live:
            assert b"history_only" in await h.get(path, 503)
        for method, path in (("POST", "/nodes"), ("PUT", "/tunables"), ("DELETE", "/nodes/x")):
            assert b"only reads" in await h.ask(method, f"/admin/v1{path}", 405)
        assert b"only reads" in await h.ask("POST", "/v1/completions", 405)
        health = wire.HealthView.model_validate_json(await h.ask("GET", "/health", 200))
        assert health.ready and health.status == "ok"
    assert rows(record_url, "SELECT count(*) FROM revisions") == [(0,)]
    assert not (tmp_path / "state").exists()


def _scheduler(store, at):
    """What samples of an index at these seconds are kept and read through."""
    upkeep = SimpleNamespace(replication=ReplicationHistory())
    for offset_s, copies in at:
        moment = HOUR + timedelta(seconds=offset_s)
        upkeep.replication.sample(
            SimpleNamespace(entries=10, blocks={"a": copies}, evicted=0), moment
        )
    jobs = SimpleNamespace(add=lambda *_, **__: None)
    clock = SimpleNamespace(wall=lambda: HOUR + timedelta(hours=2))
    return KeptReplication(SimpleNamespace(store=store, upkeep=upkeep, jobs=jobs, clock=clock))


async def test_replication_outlives_its_scheduler(tmp_path):
    """A start within the hour, and a second scheduler, add to what is stored."""
    url = f"sqlite:///{tmp_path / 'records.db'}"
    with open_storage(url) as storage:
        store, start, end = storage.store, HOUR, HOUR + timedelta(hours=2)
        await _scheduler(store, [(0, 10), (30, 11), (3_630, 12)]).keep()
        again = _scheduler(store, [(60, 13), (31, 14)])
        await again.keep()
        both = await again.between(start, end, 100)
        assert [p.copies for p in both.points] == [10, 14, 13, 12] and both.complete
        assert [p.copies for p in (await again.between(start, end, 2)).points] == [14, 12]
        alone = _scheduler(None, [(60, 13)])
        found = await alone.between(start, end, 100)
        assert [p.copies for p in found.points] == [13] and not found.complete
        with pytest.raises(StoreError):
            await _scheduler(None, []).between(start, end, 100)
    async with history(tmp_path, url) as h:
        since, until_ = (f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in (start, end))
        path = f"/cache/replication?since={since}&until={until_}"
        kept = wire.Replication.model_validate_json(await h.get(path))
        assert kept == both


@pytest.mark.parametrize("kind", ["none", "older"])
async def test_no_schema_is_made_or_changed(tmp_path, kind):
    """A file that is not there stays away, an older schema stays as it is; both are told."""
    file = tmp_path / "records.db"
    url = f"sqlite:///{file}"
    if kind == "older":
        migrate.upgrade(url, "0001")
    async with history(tmp_path, url) as h:
        assert b"cannot be read" in await h.get("/decisions", 503)
        if kind == "none":
            answer = await h.ask("GET", "/health/ready", 200)
            health = wire.HealthView.model_validate_json(answer)
            assert health.status == "degraded" and "cannot be read" in health.problems[0]
    assert file.exists() == (kind == "older")
    assert kind == "none" or migrate.current(url) == "0001"


async def test_revisions_of_the_service_are_followed(tmp_path, monkeypatch):
    monkeypatch.setattr("core.history.FOLLOW_S", 0.05)
    url = f"sqlite:///{tmp_path / 'records.db'}"
    values = {leaf.path: leaf.value for leaf in leaves(Tunables())}
    facts = {"at": decision(0).at, "author": "op", "changes": {}, "values": values}
    with open_storage(url) as storage:
        storage.store.add_revision(RevisionRecord(number=1, base=0, reason="first", **facts))
        async with history(tmp_path, url) as h:
            await until(lambda: h.service.control.loaded)
            storage.store.add_revision(RevisionRecord(number=2, base=1, reason="second", **facts))
            await until(lambda: h.service.control.book.live.number == 2)
            found = wire.RevisionList.model_validate_json(await h.get("/revisions"))
            assert found.live == 2 and found.revisions[0].reason == "second"


def test_the_process_starts_without_a_service_and_ends_in_order(tmp_path):
    port, log = free_port(), tmp_path / "log"
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"state_dir": str(tmp_path), "history": {"port": port}}))
    argv = [sys.executable, "-m", "core.cli", "serve", "--history-only", "-c", str(settings)]
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}/health"
        wait_for(lambda: answers(url) or process.poll() is not None, 60.0)
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / "conductor.db").exists()
