"""What operators arranged outlives the service: nodes, cordons, weights, notes, breakers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from gateway_world import until

from core import wire
from core.domain import NodeId, NodeSpec
from core.errors import StoreError
from core.fleet.switch import State
from core.gateway.breaker_acts import switch_global, switch_node
from core.gateway.standing import FLEET, from_data
from core.settings import NodeSettings, Settings
from core.wiring import running_service
from storage.store import Store

NOWHERE = "http://127.0.0.1:9"
A, B = NodeId("a"), NodeId("b")


def settings(folder, *, nodes=(), **more) -> Settings:
    return Settings(state_dir=folder, nodes=nodes, **more)


def stated(name, **more) -> NodeSettings:
    return NodeSettings(id=name, url=NOWHERE, **more)


@asynccontextmanager
async def service(folder, **more):
    async with running_service(settings(folder, **more)) as running:
        yield running


def trip(reason="a fan is loud", **more) -> wire.BreakerAction:
    return wire.BreakerAction(action="trip", reason=reason, **more)


def switch(s, node):
    return s.conductor.breakers.switch(s.conductor.fleet.slot(node))


async def arranged(s, node) -> None:
    """Everything an operator can say of a node."""
    await s.node_acts.change(
        node, wire.NodeChange(weight=2.5, note="new fan on Monday"), author="bob"
    )
    await s.node_acts.cordon(node, drain=True, reason="it is loud", author="ada")
    await switch_node(s, node, trip(seconds=3600), author="ada")


def holds(s, node) -> None:
    assert s.conductor.fleet.spec(node).weight == 2.5
    assert (s.lifecycle.note(node).text, s.lifecycle.note(node).author) == (
        "new fan on Monday",
        "bob",
    )
    drain = s.lifecycle.drain_view(node)
    assert (drain.state, drain.reason, drain.actor) == ("drained", "it is loud", "ada")
    assert s.conductor.fleet.draining[s.conductor.fleet.slot(node)]
    found = switch(s, node)
    assert (found.state, found.reason, found.actor) == (State.TRIPPED, "a fan is loud", "ada")
    assert 3500 < found.until_s - s.clock.now() <= 3600


@pytest.mark.parametrize("origin", ["file", "api"])
async def test_acts_on_nodes_hold_after_two_restarts(tmp_path, origin):
    nodes = (stated("a"),) if origin == "file" else ()
    async with service(tmp_path, nodes=nodes) as s:
        if origin == "api":
            await s.add_node(NodeSpec(id=A, url=NOWHERE, models=("m",), queue_max=77))
        await arranged(s, A)
    for _ in range(2):
        async with service(tmp_path, nodes=nodes) as s:
            holds(s, A)
            assert s.lifecycle.origin(A) == origin
            if origin == "api":
                spec = s.conductor.fleet.spec(A)
                assert (spec.models, spec.queue_max) == (("m",), 77)
    async with service(tmp_path) as s:  # each start was told of once, with what it came up with
        starts = [e.data["nodes"] for e in s.store.events(kind="service.started")]
        assert starts[-3:] == [1, 1, 1 if origin == "file" else 0]


async def test_what_was_taken_back_stays_so(tmp_path):
    async with service(tmp_path, nodes=(stated("a"),)) as s:
        await arranged(s, A)
    async with service(tmp_path, nodes=(stated("a"),)) as s:
        await s.node_acts.resume(A)
        await s.node_acts.change(A, wire.NodeChange(note=""))
        await switch_node(s, A, wire.BreakerAction(action="reset", reason="quiet again"))
    async with service(tmp_path, nodes=(stated("a"),)) as s:
        assert s.lifecycle.drain_view(A) is None and s.lifecycle.note(A) is None
        assert switch(s, A).state is State.CLOSED
        assert s.conductor.fleet.spec(A).weight == 2.5


async def test_a_trip_that_ran_out_meanwhile_is_over(tmp_path):
    async with service(tmp_path, nodes=(stated("a"),)) as s:
        await switch_node(s, A, trip(seconds=0.001))
    async with service(tmp_path, nodes=(stated("a"),)) as s:
        assert switch(s, A).state is State.CLOSED


async def test_alerts_fire_on_with_who_knows_of_them(tmp_path):
    async with service(tmp_path) as s:
        for _ in range(100):
            s.monitoring.ended(s.clock.now(), bad=True, error=False)
        s.monitoring.sample()
        await s.monitoring.acknowledge("slo_burn_fast", author="ada", note="a canary of ours")
        before = s.monitoring.board.get("slo_burn_fast")
    async with service(tmp_path) as s:
        board = s.monitoring.board
        found = board.get("slo_burn_fast")
        assert found.state == "firing" and found.since == found.fired_at
        assert abs(found.since - before.since) < timedelta(seconds=2)
        assert (found.acknowledged.author, found.acknowledged.note) == ("ada", "a canary of ours")
        assert found.worst == before.worst
        s.monitoring.sample()  # too young a process to say that it is over
        assert board.get("slo_burn_fast").state == "firing"
        for _ in range(20_000):
            s.monitoring.ended(s.clock.now(), bad=False, error=False)
        s.monitoring.sample()
        assert board.get("slo_burn_fast").state == "resolved"
    async with service(tmp_path) as s:
        found = s.monitoring.board.get("slo_burn_fast")
        assert found.state == "resolved" and found.acknowledged is None


async def test_the_global_breaker_stays_tripped(tmp_path):
    async with service(tmp_path) as s:
        await switch_global(s, trip("the policy misbehaves"), author="ada")
    async with service(tmp_path) as s:
        found = s.conductor.detector.breaker.switch
        assert (found.state, found.actor, found.until_s) == (State.TRIPPED, "ada", None)
        await switch_global(s, wire.BreakerAction(action="reset", reason="understood"))
    async with service(tmp_path) as s:
        assert s.conductor.detector.breaker.switch.state is State.CLOSED


async def test_a_removed_node_never_comes_back_by_itself(tmp_path):
    async with service(tmp_path, nodes=(stated("a"),)) as s:
        await s.add_node(NodeSpec(id=B, url=NOWHERE))
        await s.remove_node(A)
        await s.remove_node(B)
    async with service(tmp_path, nodes=(stated("a"),)) as s:
        assert not s.conductor.fleet.nodes()
        # An operator may bring it back, and then it starts afresh.
        await s.add_node(NodeSpec(id=B, url=NOWHERE))
    async with service(tmp_path, nodes=(stated("a"),)) as s:
        assert [n.id for n in s.conductor.fleet.nodes()] == [B]
    # Changed settings are a newer word than the removal.
    async with service(tmp_path, nodes=(stated("a", rack="r2"),)) as s:
        assert {n.id for n in s.conductor.fleet.nodes()} == {A, B}


async def test_the_settings_file_wins_over_what_was_registered(tmp_path):
    async with service(tmp_path) as s:
        await s.add_node(NodeSpec(id=A, url=NOWHERE, queue_max=5))
        await s.node_acts.change(A, wire.NodeChange(weight=3.0))
    async with service(tmp_path, nodes=(stated("a", weight=0.5, queue_max=9),)) as s:
        spec = s.conductor.fleet.spec(A)
        assert (spec.queue_max, spec.weight, s.lifecycle.origin(A)) == (9, 0.5, "file")
    # A node that the file does not name any more is gone with it.
    async with service(tmp_path) as s:
        assert not s.conductor.fleet.has(A)


async def test_a_node_whose_address_is_not_allowed_any_more_stays_out(tmp_path):
    async with service(tmp_path) as s:
        await s.add_node(NodeSpec(id=A, url=NOWHERE))
    async with service(tmp_path, registration={"allowed_networks": ["10.0.0.0/8"]}) as s:
        assert not s.conductor.fleet.has(A)
    async with service(tmp_path) as s:
        assert s.conductor.fleet.has(A)


async def test_a_store_that_comes_late_is_heard(tmp_path, monkeypatch):
    """Nodes of the file serve at once; what was said of them holds once it can be read, and until
    then it is neither replaced nor added to."""
    nodes = (stated("a"), stated("b"))
    async with service(tmp_path, nodes=nodes) as s:
        await s.add_node(NodeSpec(id=NodeId("c"), url=NOWHERE))
        await s.node_acts.cordon(A, drain=False, reason="from before")
    readable = Store.nodes

    def away(_self):
        raise StoreError("away")

    monkeypatch.setattr(Store, "nodes", away)
    async with service(tmp_path, nodes=nodes) as s:
        assert {n.id for n in s.conductor.fleet.nodes()} == {A, B}
        with pytest.raises(StoreError, match="cannot be read"):
            await s.node_acts.cordon(A, drain=True, reason="from now")
        assert s.lifecycle.drain_view(A) is None
        await s.jobs.run("restore")
        (job,) = [j for j in s.jobs.states() if j.name == "restore"]
        assert job.failures == 1 and "cannot be read" in job.last_error
        # How the file states them is stored by now: it must not stand for an operator's word.
        s.recorder.drain()
        assert await asyncio.to_thread(s.sink.flush)
        assert kept(s, "a").cordon.reason == "from before"
        monkeypatch.setattr(Store, "nodes", readable)
        await s.node_acts.cordon(A, drain=True, reason="from now")
        assert s.conductor.fleet.has(NodeId("c"))
        assert s.lifecycle.drain_view(A).reason == "from now"
        assert "restore" not in [j.name for j in s.jobs.states()]
    async with service(tmp_path, nodes=nodes) as s:
        assert s.lifecycle.drain_view(A).reason == "from now"


def kept(s, name):
    (found,) = [record for record in s.store.standings() if record.name == name]
    return from_data(found.data)


async def test_a_standing_that_makes_no_sense_is_told_and_left(tmp_path, caplog):
    async with service(tmp_path, nodes=(stated("a"),)) as s:
        s.recorder.standing("a", {"cordon": "yes"}, s.clock.wall())
        s.recorder.standing(FLEET, {"state": "molten"}, s.clock.wall())
    async with service(tmp_path, nodes=(stated("a"),)) as s:
        assert s.lifecycle.drain_view(A) is None
    assert "standing of a cannot be read" in caplog.text


async def test_ranks_keep_their_standing_and_their_absence(tmp_path):
    """Data-parallel ranks join when the server tells of them: some time after the start."""
    ranks = [NodeId("a#0"), NodeId("a#1")]

    async def split(s):
        for rank in ranks:
            await s.fleet.add(NodeSpec(id=rank, url=NOWHERE, engine_group="a"))
        s.lifecycle.beat(s.clock.now())

    async with service(tmp_path) as s:
        await split(s)
        await s.node_acts.cordon(ranks[0], drain=False, reason="noisy")
        await s.remove_node(ranks[1])
    async with service(tmp_path) as s:
        await split(s)
        assert s.lifecycle.drain_view(ranks[0]).reason == "noisy"
        await until(lambda: not s.conductor.fleet.has(ranks[1]))
