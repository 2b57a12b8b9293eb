"""Nodes behind a DNS name come, stay through failed look-ups, go, and heed operators."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager

import pytest
from gateway_world import Engine, engines, gateway, until

from core.domain import EngineKind, Health, NodeId, NodeSpec
from core.engines.members import ABSENCES_MAX
from core.errors import EngineUnreachable, Invalid
from core.gateway.dns_nodes import DnsNodes, Pool
from core.settings import DiscoverySettings, Settings
from core.wiring import check_nodes, dns_pools

TEMPLATE = NodeSpec(id=NodeId("x"), url="", engine=EngineKind.EMULATED, profile="tiny-emulated")


class Names:
    def __init__(self):
        self.answer: list[str] | None = None

    async def __call__(self, host):
        assert host == "engines.example"
        if self.answer is None:
            raise socket.gaierror("away")
        return self.answer


@asynccontextmanager
async def pool(port):
    names = Names()
    async with gateway() as w:
        made = Pool(
            name="p", host="engines.example", port=port, refresh_s=3600.0, template=TEMPLATE
        )
        nodes = DnsNodes(w.service, made, lookup=names)
        nodes.watch()
        yield w, nodes, names


def ids(w) -> list[str]:
    return sorted(spec.id for spec in w.service.conductor.fleet.nodes())


async def test_an_address_becomes_a_node_that_serves():
    with engines(Engine("e")) as (engine,):
        port = int(engine.url.rsplit(":", 1)[1])
        async with pool(port) as (w, _, names):
            names.answer = ["127.0.0.1"]
            await w.service.jobs.run("dns.p")
            fleet = w.service.conductor.fleet
            assert (
                ids(w) == ["p-127.0.0.1"] and w.service.lifecycle.origin(NodeId(ids(w)[0])) == "dns"
            )
            await until(lambda: fleet.health(NodeId("p-127.0.0.1")) is Health.HEALTHY)
            assert (await w.complete("hello", max_tokens=2)).status == 200
            await w.settled()


async def test_failed_and_empty_answers_take_nobody_away():
    async with pool(9) as (w, nodes, names):
        names.answer = ["127.0.0.2", "127.0.0.3"]
        await nodes.refresh()
        for answer in (None, []):
            names.answer = answer
            for _ in range(2 * ABSENCES_MAX):
                with pytest.raises(EngineUnreachable):
                    await nodes.refresh()
        assert ids(w) == ["p-127.0.0.2", "p-127.0.0.3"]
        await w.service.jobs.run("dns.p")
        (job,) = [j for j in w.service.jobs.states() if j.name == "dns.p"]
        assert job.failures == 1 and "its nodes stay" in job.last_error
        names.answer = ["127.0.0.3"]
        for _ in range(ABSENCES_MAX):
            assert len(ids(w)) == 2
            await nodes.refresh()
        assert ids(w) == ["p-127.0.0.3"]


async def test_what_operators_said_holds_when_a_node_returns():
    async with pool(9) as (w, nodes, names):
        lifecycle = w.service.lifecycle
        names.answer = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
        await nodes.refresh()
        await w.service.node_acts.cordon(NodeId("p-127.0.0.2"), drain=False, reason="noisy")
        await w.service.node_acts.remove(NodeId("p-127.0.0.3"), reason="broken")
        names.answer = ["127.0.0.4"]
        for _ in range(ABSENCES_MAX):
            await nodes.refresh()
        assert ids(w) == ["p-127.0.0.4"]
        names.answer = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
        for _ in range(3):
            await nodes.refresh()
        assert ids(w) == ["p-127.0.0.2", "p-127.0.0.4"]
        assert lifecycle.drain_view(NodeId("p-127.0.0.2")).reason == "noisy"


async def test_addresses_that_no_node_can_have_are_left():
    async with pool(9) as (w, nodes, names):
        names.answer = ["169.254.169.254", "127.0.0.2", "224.0.0.1"]
        await nodes.refresh()
        assert ids(w) == ["p-127.0.0.2"] and w.service.counters["dns_addresses_refused"] == 2


def test_a_pool_is_stated_in_the_settings():
    settings = Settings(
        discovery=(
            DiscoverySettings(
                name="gpu",
                dns="engines.ns.svc.cluster.local",
                port=8000,
                node={"role": "prefill", "models": ["m"], "events": "off", "rack": "r1"},
            ),
        )
    )
    check_nodes(settings)
    (made,) = dns_pools(settings)
    spec = made.spec("10.0.0.7")
    assert (spec.id, spec.url) == ("gpu-10.0.0.7", "http://10.0.0.7:8000")
    assert (spec.role, spec.models, spec.place.rack) == ("prefill", ("m",), "r1")
    assert made.spec("fd00::7").url == "http://[fd00::7]:8000" and not made.discover_events
    bad = settings.model_copy(
        update={"discovery": (DiscoverySettings(name="a", dns="me@host", port=1),)}
    )
    with pytest.raises(Invalid, match=r"discovery\.a\.dns"):
        check_nodes(bad)
