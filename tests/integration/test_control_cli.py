"""The commands against a running service."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
import typer
from control_world import apply, controlled
from gateway_world import Engine, engines
from typer.testing import CliRunner

from core.admin_call import Refused
from core.control.cli import moment, register
from core.errors import BadRequest, Invalid


@pytest.fixture(scope="module")
def pair():
    with engines(Engine("a"), Engine("b")) as made:
        yield made


async def run(*words, url):
    app = typer.Typer()
    register(app)
    return await asyncio.to_thread(CliRunner().invoke, app, [*words, "--url", url])


async def test_tune_list_preview_and_roll_back(pair, tmp_path):
    async with controlled(pair, tmp_path) as w:
        live = w.service.conductor
        done = await run("tune", "policy=linear", "alpha=0.9", "-m", "try reuse", url=w.url)
        assert done.exit_code == 0 and "linear.alpha 0.5 -> 0.9" in done.output
        assert live.policy.name == "linear" and live.tunables.linear.alpha == 0.9
        assert (await w.complete("hello", max_tokens=2)).status == 200
        w.service.recorder.drain()
        await asyncio.to_thread(w.extra["storage"].sink.flush)
        told = await run("preview", "alpha=0.1", url=w.url)
        assert told.exit_code == 0 and "of 1 decisions would move" in told.output
        assert "linear.alpha: " in told.output
        listed = await run("revisions", "--json", url=w.url)
        assert [r["kind"] for r in json.loads(listed.output)["revisions"]] == ["change", "start"]
        back = await run("rollback", "1", "-m", "no better", url=w.url)
        assert back.exit_code == 0 and live.policy.name == "min_ttft"
        diff = await run("revisions", "2", "--diff", "0", url=w.url)
        assert "policy linear -> min_ttft" in diff.output


async def test_refusals_say_why(pair, tmp_path):
    async with controlled(pair, tmp_path) as w:
        base = w.service.conductor.revision
        await apply(w, {"linear.alpha": 0.9})
        stale = await run("tune", "linear.alpha=0.2", "--base", str(base), "-m", "mine", url=w.url)
        assert isinstance(stale.exception, Refused)
        assert "since then: linear.alpha 0.5 -> 0.9" in stale.exception.message
        bad = await run("tune", "linear.alpha=3", "-m", "too much", url=w.url)
        assert isinstance(bad.exception, Invalid) and "0..1" in bad.exception.message
    gone = await run("revisions", url="http://127.0.0.1:9")
    assert isinstance(gone.exception, Refused)


@pytest.fixture
def local_zone(monkeypatch):
    """Makes a zone this machine's own; the one before comes back."""

    def choose(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield choose
    monkeypatch.undo()
    time.tzset()


def test_a_time_is_the_next_such_one_or_a_date(local_zone):
    local_zone("EET-2")
    zone = timezone(timedelta(hours=2))
    now = datetime(2026, 3, 1, 17, 30, tzinfo=zone)
    assert moment("until", "18:00", now) == now.replace(hour=18, minute=0)
    assert moment("until", "17:30", now) == now + timedelta(days=1)
    assert moment("until", "18:00+00:00", now) == now.replace(hour=20, minute=0)
    assert moment("at", "2026-03-02T18:00:00Z", now) == datetime(2026, 3, 2, 18, tzinfo=UTC)
    with pytest.raises(BadRequest, match="until: 'soon' is no time like 18:00"):
        moment("until", "soon", now)


def test_a_clock_time_is_that_of_its_own_day_when_summer_time_begins_or_ends(local_zone):
    local_zone("CET-1CEST,M3.5.0,M10.5.0/3")  # Berlin
    night = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)  # 00:30; clocks go forward at 02:00
    assert moment("at", "18:00", night) == datetime(2026, 3, 29, 16, tzinfo=UTC)
    evening = datetime(2026, 10, 24, 17, 0, tzinfo=UTC)  # 19:00; clocks go back in the night
    assert moment("at", "18:00", evening) == datetime(2026, 10, 25, 17, tzinfo=UTC)
    assert moment("at", "2026-10-25T18:00", evening) == datetime(2026, 10, 25, 17, tzinfo=UTC)
