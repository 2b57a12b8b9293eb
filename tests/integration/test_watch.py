"""Jobs, monitors and alerts of a running service, over its admin API; alerts told to a webhook."""

from __future__ import annotations

import asyncio
import json

import pytest
from gateway_world import Engine, engines, gateway, until
from typer.testing import CliRunner

from core import wire
from core.admin_call import Refused
from core.cli import app
from core.domain import Health, NodeId, Trust
from core.engines.addresses import networks
from core.engines.guard import AddressGuard
from core.errors import Forbidden, Invalid
from core.fleet.trust import Signal
from core.gateway.webhook import TRIES, Webhook, check_webhook
from core.plan.forecast import STEP_S, Key
from core.tunables import Tunables


@pytest.fixture(scope="module")
def pair():
    with engines(Engine("a"), Engine("b")) as made:
        yield made


async def ask(w, path, kind, *, body=None, status=200):
    method = "GET" if body is None else "POST"
    async with w.client.request(method, f"{w.url}/admin/v1{path}", json=body) as answer:
        text = await answer.read()
        assert answer.status == status, text
    return kind.model_validate_json(text)


async def test_monitors_say_where_hits_fall(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        trust = w.service.conductor.trust
        await until(lambda: all(trust.trust(slot) is Trust.EXACT for slot in (0, 1)))
        for _ in range(12):
            await w.complete([7] * 256, max_tokens=2)
            await w.complete([9] * 256, max_tokens=2)
        await w.settled()
        w.service.monitoring.sample()
        found = await ask(w, "/monitors", wire.MonitorList)
        values = {m.name: m.value for m in found.monitors}
        assert values["hit_achieved"] > 0.5 and values["hit_reachable"] >= values["hit_achieved"]
        assert values["decision_p99"] > 0 and values["panic"] == 0
        assert set(found.products) == {"a", "b"}
        assert sum(h.requests for h in found.nodes) == 24
        assert len(found.groups) == 2 and all(g.match_tokens > 0 for g in found.groups)
        alert = {m.name: (m.alert, m.limit) for m in found.monitors}
        assert alert["decision_p99"] == ("decisions_slow", 0.001)
        assert alert["decision_felt"] == ("decisions_slow", 0.2)
        assert values["decision_felt"] is None  # 24 decisions: too few
        service, now = w.service, w.service.clock.now()
        for _ in range(2_000):
            service.live.rejected(0.02, now)  # a refusal is a decision, too
        facts: dict = {}
        assert service.monitoring.values(now, facts)["decision_felt"] == pytest.approx(0.2, rel=0.1)
        assert facts["decision_felt"]["decisions"] == 2_024
        series = await ask(w, "/monitors/series?name=hit_achieved&name=panic", wire.MonitorSeries)
        assert series.points[-1].values == [pytest.approx(values["hit_achieved"]), 0.0]
        bad = await ask(w, "/monitors/series?name=luck", wire.ErrorBody, status=422)
        assert bad.error.param == "name"


async def test_an_alert_fires_is_acknowledged_and_resolves(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        service, now = w.service, w.service.clock.now()
        for n in range(30):
            service.monitoring.ended(now, bad=n == 7, error=False)
        service.monitoring.sample()
        found = await ask(w, "/alerts", wire.AlertList)
        burns = {a.name: a.state for a in found.alerts if a.name.startswith("slo_burn")}
        assert set(burns.values()) == {"inactive"}, burns  # one bad request is no reason
        for n in range(70):
            service.monitoring.ended(now, bad=n < 49, error=False)
        service.monitoring.sample()
        found = await ask(w, "/alerts", wire.AlertList)
        burn = next(a for a in found.alerts if a.name == "slo_burn_fast")
        assert (burn.state, burn.severity, burn.value) == ("firing", "page", pytest.approx(50.0))
        assert burn.evidence["short"] == [100, 50, 0]
        note = {"note": "a canary of ours", "author": "ada"}
        kept = await ask(w, "/alerts/slo_burn_fast/acknowledge", wire.AlertView, body=note)
        assert kept.acknowledged.note == "a canary of ours"
        shown = {a.name: a for a in (await ask(w, "/state", wire.FleetState)).alerts}
        assert (shown["slo_burn_fast"].severity, shown["slo_burn_fast"].acknowledged) == (
            "page",
            True,
        )
        await ask(w, "/alerts/panic/acknowledge", wire.ErrorBody, body=note, status=409)
        await ask(w, "/alerts/nothing/acknowledge", wire.ErrorBody, body=note, status=404)
        for _ in range(20_000):
            service.monitoring.ended(now, bad=False, error=False)
        service.monitoring.sample()
        service.recorder.drain()
        kinds = [kind for kind, _, data in w.sink.events if data.get("alert") == "slo_burn_fast"]
        assert kinds == ["alert.firing", "alert.acknowledged", "alert.resolved"]
        async with w.client.get(f"{w.url}/metrics") as answer:
            text = await answer.text()
        assert 'conductor_alert{alert="slo_burn_fast",severity="page",state="resolved"} 1.0' in text
        assert 'conductor_monitor{monitor="burn_fast"}' in text


async def test_a_doubted_cache_signal_is_timed_by_node(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        monitoring, conductor = w.service.monitoring, w.service.conductor
        trust = conductor.trust
        await until(lambda: all(trust.trust(s) is Trust.EXACT for s, _ in conductor.fleet.slots()))
        now = w.service.clock.now()
        conductor.cache_signal(NodeId("b"), Signal.LOST, now, cause="a test of it")
        evidence = {}
        assert monitoring.values(now, {})["signal_lost"] == 0.0
        assert monitoring.values(now + 301.0, evidence)["signal_lost"] == pytest.approx(301.0)
        assert evidence["signal_lost"] == {"node": "b", "nodes": 1}


async def test_a_dead_node_is_an_alert_until_somebody_takes_it_out(pair):
    async with gateway(*(e.spec() for e in pair)) as w:
        monitoring, conductor = w.service.monitoring, w.service.conductor
        now, evidence = w.service.clock.now(), {}
        assert monitoring.values(now, evidence)["nodes_dead"] == 0.0
        conductor.set_health(NodeId("b"), Health.DEAD, now)
        assert monitoring.values(now, evidence)["nodes_dead"] == 1.0
        assert evidence["nodes_dead"] == {"dead": ["b"]}
        conductor.drain(NodeId("b"), True, now)
        assert monitoring.values(now, {})["nodes_dead"] == 0.0


async def test_every_job_is_listed_with_what_it_did(pair):
    async with gateway(*(e.spec() for e in pair)) as w:

        def ran(name):
            return next(j.runs for j in w.service.jobs.states() if j.name == name) > 0

        await until(lambda: ran("control") and ran("upkeep"))
        found = {j.name: j for j in (await ask(w, "/jobs", wire.JobList)).jobs}
        assert {"control", "monitors", "migration", "upkeep"} <= set(found)
        control = found["control"]
        assert control.last_s >= 0 and None not in (control.last_at, control.next_at)
        assert found["upkeep"].kind == "loop" and found["upkeep"].runs > 0
        async with w.client.get(f"{w.url}/metrics") as answer:
            assert 'conductor_job_runs_total{job="control"}' in await answer.text()


# -- the webhook ----------------------------------------------------------------------------------


async def heard(statuses):
    """A server that answers with these statuses in turn, and what it was sent."""
    bodies = []

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        bodies.append(json.loads(await reader.readexactly(size)))
        status = statuses.pop(0) if statuses else 204
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1], bodies


async def test_alerts_are_told_and_told_again_where_that_failed():
    server, port, bodies = await heard([500, 302])
    guard = AddressGuard(networks(("10.0.0.0/8",)))
    async with server, Webhook(f"http://127.0.0.1:{port}/hook", guard, pause_s=0.01) as hook:
        hook.put({"alert": "panic", "state": "firing"})
        await until(lambda: hook.sent == 1)
        assert bodies == [{"alert": "panic", "state": "firing"}] * 3
        assert (hook.failures, hook.given_up, hook.last_error) == (2, 0, "")


async def test_an_alert_that_nobody_takes_is_given_up():
    async with Webhook("http://127.0.0.1:9/", AddressGuard(), pause_s=0.001) as hook:
        hook.put({"alert": "panic"})
        await until(lambda: hook.given_up == 1)
        assert hook.failures == TRIES and "ConnectError" in hook.last_error


def test_metadata_addresses_are_no_webhook():
    with pytest.raises(Forbidden, match="webhook"):
        check_webhook("http://169.254.169.254/latest")
    with pytest.raises(Invalid, match="webhook"):
        check_webhook("file:///etc/passwd")


async def test_the_forecast_is_shown_and_used_only_while_it_is_better(pair):
    tunables = Tunables().changed({"forecast.trend": 0.3, "forecast.damping": 1.0})
    tunables = tunables.changed({"slo.classes": "tenant=gold* ttft_s=9"})
    async with gateway(*(e.spec() for e in pair), tunables=tunables) as w:
        for n in range(4):
            tenant = "gold-1" if n % 2 else "other"
            await w.complete([n] * 64, max_tokens=2, headers={"x-conductor-tenant": tenant})
        await w.settled()
        forecaster = w.service.forecasting.forecaster
        now = w.service.clock.now()
        for step in range(1, 120):
            for _ in range(step):
                forecaster.observe(Key("tiny", "gold*"), 100)
            forecaster.tick(now + step * STEP_S)
        found = await ask(w, "/forecast", wire.ForecastView)
        total = next(s for s in found.series if not s.model and s.quantity == "prefill_tokens")
        arrivals = {s.tenant_class: s for s in found.series if s.model and s.quantity == "arrivals"}
        assert set(arrivals) == {"gold*", "default"}
        mine = arrivals["gold*"]
        assert total.compared > 24 and total.error_per_s < total.persistence_error_per_s
        assert mine.expected_per_s > mine.now_per_s > 0
        assert found.in_use and found.growth == 1.0  # the next turn of its job hands it over
        w.service.conductor.growth = forecaster.growth
        assert (await ask(w, "/forecast", wire.ForecastView)).growth > 1.0


async def test_commands_show_alerts_and_jobs(pair):
    async def command(*words):
        arguments = [*words, "--url", w.url]
        return await asyncio.to_thread(CliRunner().invoke, app, arguments, env={"COLUMNS": "300"})

    async with gateway(*(e.spec() for e in pair)) as w:
        for _ in range(100):
            w.service.monitoring.ended(w.service.clock.now(), bad=True, error=False)
        w.service.monitoring.sample()
        assert "slo_burn_fast" in (await command("alerts")).stdout
        note = ("acknowledge", "slo_burn_fast", "-m", "a load test", "--author", "ada")
        assert "a load test" in (await command(*note)).stdout
        assert "ada" in (await command("alerts", "--all")).stdout
        found = wire.JobList.model_validate_json((await command("jobs", "--json")).stdout)
        assert "monitors" in {j.name for j in found.jobs}
        assert "monitors" in (await command("jobs")).stdout
        refused = await command("acknowledge", "panic", "-m", "nothing yet")
        assert isinstance(refused.exception, Refused)
