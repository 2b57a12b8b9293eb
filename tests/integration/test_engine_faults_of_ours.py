"""When our own code or a registration is wrong: one node suffers, and says so."""

import pytest

from core.conductor import Conductor
from core.domain import EventEndpoints, Health, NodeId, NodeSpec, Trust
from core.engines.supervisor import FleetSupervisor
from core.index.ingest import NodeIngest
from tests.integration.engine_fleet import emulated
from tests.integration.engine_watch import NODE, PROMPT, QUICK, watching
from tests.integration.engine_wire import until


async def test_an_address_that_is_none_leaves_the_node_without_stream_and_with_a_note():
    async with emulated() as engine, watching() as w:
        events = EventEndpoints(live="tcp://no port here")
        await w.fleet.add(NodeSpec(id=NODE, url=engine.url, events=events))
        await w.healthy()
        assert w.trust is Trust.DEGRADED
        assert "event stream is not followed" in w.fleet.notes[NODE][-1]
        await engine.complete(PROMPT)
        assert w.match() == 0


async def test_a_fault_in_ingest_costs_the_nodes_credit_until_a_new_stream_is_made(monkeypatch):
    real, broken = NodeIngest.apply, [True]

    def apply(self, batch, limit):
        if broken[0]:
            raise RuntimeError("a bug")
        return real(self, batch, limit)

    monkeypatch.setattr(NodeIngest, "apply", apply)
    async with emulated() as engine, watching() as w:
        await w.add(engine)
        await w.healthy()
        await engine.complete(PROMPT)
        await until(lambda: w.trust is Trust.DEGRADED and w.fleet.notes[NODE], what="the doubt")
        assert "stopped by RuntimeError: a bug" in w.fleet.notes[NODE][0]
        assert w.health() is Health.HEALTHY
        broken[0] = False
        w.fleet._supervisors[NODE]._discovered_s = float("-inf")
        w.fleet.poke(NODE)
        await until(lambda: w.match() == 992, what="a new stream")
        assert w.trust is Trust.EXACT


async def test_nodes_are_added_inside_the_context_only():
    fleet = FleetSupervisor(Conductor(), rules=QUICK)
    with pytest.raises(RuntimeError, match="enter the FleetSupervisor's context"):
        await fleet.add(NodeSpec(id=NodeId("n"), url="http://h"))
