"""Two schedulers on one database: what one changes is live in the other within a second."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from gateway_world import until

from core import wire
from core.control.revisions import StaleBase
from core.domain import NodeId, NodeSpec
from core.fleet.switch import State
from core.gateway.breaker_acts import switch_global, switch_node
from core.settings import load_settings
from core.wiring import running_service


async def nothing():
    pass


WHY = {"author": "op", "reason": "a test of it"}


@asynccontextmanager
async def two(url, tmp_path):
    """Two whole services, each with a state directory of its own."""
    one, other = (
        load_settings(None, state_dir=tmp_path / name, database_url=url) for name in ("a", "b")
    )
    async with running_service(one) as a, running_service(other) as b:
        await until(lambda: a.control.loaded and b.control.loaded)
        yield a, b


async def test_a_revision_of_one_is_live_in_the_other(record_url, tmp_path):
    heard = []
    async with two(record_url, tmp_path) as (a, b):
        b.control.on_act = lambda kind, data: heard.append((kind, data["revision"]))
        base = a.conductor.revision
        made = await a.control.change({"linear.alpha": 0.25}, base=base, **WHY)
        began_s = time.monotonic()
        await until(lambda: b.conductor.revision == made.number)
        print(f"followed after {time.monotonic() - began_s:.2f} s")
        assert b.conductor.tunables.linear.alpha == 0.25
        assert b.control.book.live.reason == "a test of it"
        back = await b.control.rollback(None, base=made.number, **WHY)
        await until(lambda: a.conductor.revision == back.number)
        assert a.conductor.tunables.linear.alpha != 0.25
        assert heard == [("tunables.changed", made.number), ("tunables.rolled_back", back.number)]
        assert len(a.store.revisions()) == 3


class TooEarly:
    """A store whose first look finds it empty: another process writes right after it."""

    def __init__(self, store):
        self._store, self._looked = store, False

    def revisions(self, limit):
        found = self._store.revisions(limit=limit) if self._looked else []
        self._looked = True
        return found

    def __getattr__(self, name):
        return getattr(self._store, name)


async def test_of_two_that_start_at_once_one_writes_the_first_revision(record_url, tmp_path):
    async with two(record_url, tmp_path) as (a, b):
        late = b.control
        late.loaded, late._reload_at_s, late._store = False, 0.0, TooEarly(b.store)
        await late.start()
        assert late.loaded
        assert late.book.live.number == a.conductor.revision
        assert [r.kind for r in a.store.revisions()] == ["start"]


async def test_of_two_changes_at_once_the_later_hears_what_the_other_did(record_url, tmp_path):
    async with two(record_url, tmp_path) as (a, b):
        base = a.conductor.revision
        b.control.catch_up = nothing  # not told yet: only the database knows
        made = await a.control.change({"linear.alpha": 0.3}, base=base, **WHY)
        with pytest.raises(StaleBase) as stale:
            await b.control.change({"linear.alpha": 0.4}, base=base, **WHY)
        assert stale.value.theirs["linear.alpha"][1] == 0.3
        assert stale.value.yours["linear.alpha"][1] == 0.4
        assert b.conductor.revision == made.number
        again = await b.control.change({"linear.alpha": 0.4}, base=made.number, **WHY)
        await until(lambda: a.conductor.revision == again.number)


async def test_what_was_missed_is_taken_up_after_the_watch_comes_back(record_url, tmp_path):
    """Whoever was not told finds it at the next look at the database."""
    async with two(record_url, tmp_path) as (a, b):
        b.control._store, kept = None, b.control._store
        made = await a.control.change({"linear.alpha": 0.3}, base=a.conductor.revision, **WHY)
        await until(lambda: "keeps no records" in b.control.last_error)
        b.control._store = kept
        again = await a.control.change({"linear.alpha": 0.4}, base=made.number, **WHY)
        await until(lambda: b.conductor.revision == again.number)
        assert [r.number for r in b.control.book.history()][:2] == [again.number, made.number]


async def test_a_scheduled_change_is_carried_out_once(record_url, tmp_path):
    async with two(record_url, tmp_path) as (a, b):
        base = a.conductor.revision
        due = datetime.now(UTC) + timedelta(seconds=1)
        await a.control.schedule({"linear.alpha": 0.3}, due=due, until=None, **WHY)
        await until(lambda: a.conductor.revision == b.conductor.revision == base + 1)
        await until(lambda: not a.control.pending and not b.control.pending)
        assert [r.kind for r in a.store.revisions()] == ["scheduled", "start"]
        assert not [job.last_error for w in (a, b) for job in w.jobs.states() if job.failures]


def node(name, **more):
    return NodeSpec(id=NodeId(name), url="http://127.0.0.1:9", models=("m",), **more)


def draining(s, name):
    return bool(s.conductor.fleet.draining[s.conductor.fleet.slot(NodeId(name))])


def tripped(s, name):
    slot = s.conductor.fleet.slot(NodeId(name))
    return s.conductor.breakers.switch(slot).state is State.TRIPPED


async def test_what_operators_arrange_through_one_holds_in_the_other(record_url, tmp_path):
    """Registered, cordoned, weighed, noted, tripped and removed, in turns through either."""
    trip = wire.BreakerAction(action="trip", reason="a fan is loud", seconds=600)
    reset = wire.BreakerAction(action="reset", reason="it is quiet")
    x = NodeId("x")
    async with two(record_url, tmp_path) as (a, b):
        await a.add_node(node("x"))
        await until(lambda: b.conductor.fleet.has(x))
        await b.node_acts.cordon(x, drain=False, reason="it is loud", author="ada")
        await until(lambda: draining(a, "x"))
        assert a.lifecycle.drain_view(x).actor == "ada"
        await b.node_acts.change(x, wire.NodeChange(weight=2.5, note="new fan"), author="bob")
        await until(lambda: a.conductor.fleet.spec(x).weight == 2.5)
        assert a.lifecycle.note(x).text == "new fan"
        await a.node_acts.resume(x, reason="quiet again")
        await until(lambda: not draining(b, "x"))
        assert b.conductor.fleet.spec(x).weight == 2.5
        await a.node_acts.change(x, wire.NodeChange(note=""), author="bob")
        await until(lambda: b.lifecycle.note(x) is None)
        await switch_node(a, x, trip)
        await until(lambda: tripped(b, "x"))
        await switch_node(b, x, reset)
        await until(lambda: not tripped(a, "x"))
        await switch_global(b, trip)
        await until(lambda: a.conductor.detector.breaker.switch.state is State.TRIPPED)
        await switch_global(a, reset)
        await until(lambda: b.conductor.detector.breaker.switch.state is not State.TRIPPED)
        await b.node_acts.remove(x, reason="sold")
        await until(lambda: not a.conductor.fleet.has(x))
        assert not a.counters["following.failed"] + b.counters["following.failed"]


async def test_who_did_not_hear_yet_overrules_nothing(record_url, tmp_path):
    """A weight set through one keeps the cordon that the other has just made, and a drain that
    ends keeps whatever was said since it began."""
    x = NodeId("x")
    async with two(record_url, tmp_path) as (a, b):
        await a.add_node(node("x"))
        await until(lambda: b.conductor.fleet.has(x))
        b.follower.heard, heard = nothing, b.follower.heard
        await a.node_acts.cordon(x, drain=True, reason="it is loud")
        await b.node_acts.change(x, wire.NodeChange(weight=2.5), author="bob")
        assert draining(b, "x") and b.conductor.fleet.spec(x).weight == 2.5
        await until(lambda: a.conductor.fleet.spec(x).weight == 2.5)
        assert draining(a, "x") and a.lifecycle.drain_view(x).reason == "it is loud"
        await a.node_acts.resume(x, reason="quiet again")
        b.lifecycle.save(x)  # as when its drain ends: b has not heard yet
        b.recorder.drain()
        assert await asyncio.to_thread(b.sink.flush)
        await heard()
        assert not draining(a, "x") and not draining(b, "x")
        await heard()
        assert not a.counters["following.failed"] + b.counters["following.failed"]


async def test_what_ends_while_a_word_is_stored_does_not_replace_it(record_url, tmp_path):
    x, loop = NodeId("x"), asyncio.get_running_loop()
    async with two(record_url, tmp_path) as (a, b):
        await a.add_node(node("x"))
        await until(lambda: b.conductor.fleet.has(x))
        commit, saved = b.store.commit_act, threading.Event()

        def save():
            b.lifecycle.save(x)  # as when a drain ends just now
            saved.set()

        def slow(**more):
            commit(**more)
            loop.call_soon_threadsafe(save)
            assert saved.wait(20)

        b.store.commit_act = slow
        await b.node_acts.change(x, wire.NodeChange(weight=2.5), author="bob")
        b.store.commit_act = commit
        b.recorder.drain()
        assert await asyncio.to_thread(b.sink.flush)
        assert {s.name: s.data for s in b.store.standings()}["x"]["weight"] == 2.5
        await until(lambda: a.conductor.fleet.spec(x).weight == 2.5)


async def test_replicas_do_not_answer_each_other(record_url, tmp_path):
    """A drain that ends in both is said by both, and then nobody says anything more."""
    x = NodeId("x")
    async with two(record_url, tmp_path) as (a, b):
        await a.add_node(node("x"))
        await until(lambda: b.conductor.fleet.has(x))
        await a.node_acts.cordon(x, drain=True, reason="it is loud")
        ended = [lambda s=s: (v := s.lifecycle.drain_view(x)) and v.done for s in (a, b)]
        await until(lambda: all(done() for done in ended))
        taken = [s.counters["following.taken"] for s in (a, b)]
        await asyncio.sleep(2.0)  # long enough for several answers
        more = [s.counters["following.taken"] - n for s, n in zip((a, b), taken, strict=True)]
        assert max(more) <= 2
        assert all(done() for done in ended) and draining(a, "x") and draining(b, "x")


async def test_a_node_at_a_forbidden_address_is_not_taken_over(tmp_path):
    url, x = f"sqlite:///{tmp_path / 'records.db'}", NodeId("x")
    async with two(url, tmp_path) as (a, b):
        b.limits = replace(b.limits, allowed_networks=())
        await a.add_node(node("x"))
        await until(lambda: b.counters["following.failed"] > 0)
        assert not b.conductor.fleet.has(x)
