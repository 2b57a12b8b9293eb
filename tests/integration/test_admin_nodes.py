"""Node life cycle, breakers and the event stream of the admin API, before real processes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from gateway_world import PATIENT, Engine, engines, gateway, until
from typer.testing import CliRunner

from core import wire
from core.admin_call import Refused
from core.cli import app
from core.engines.addresses import networks
from core.errors import BadRequest, Invalid
from core.settings import Settings
from core.tunables import Tunables
from core.wiring import check_nodes, running_service
from storage.store import open_storage


@pytest.fixture(scope="module")
def pair():
    with engines(Engine("a"), Engine("b")) as made:
        yield made


def world(pair, **more):
    return gateway(*(e.spec() for e in pair), **more)


async def ask(w, method, path, body=None, *, kind=wire.NodeView, status=200):
    async with w.client.request(method, f"{w.url}/admin/v1{path}", json=body) as answer:
        text = await answer.read()
        assert answer.status == status, text
    return kind.model_validate_json(text) if status < 400 else refused(text)


def refused(text) -> wire.ErrorDetail:
    return wire.ErrorBody.model_validate_json(text).error


def events(w, kind: str) -> list[dict]:
    w.service.recorder.drain()
    return [{"node": node, **data} for k, node, data in w.sink.events if k == kind]


async def event(w, kind: str) -> dict:
    await until(lambda: events(w, kind))
    return events(w, kind)[-1]


# -- breakers -------------------------------------------------------------------------------------


async def test_a_trip_is_in_the_events_with_who_why_and_how_long(pair):
    async with world(pair) as w:
        trip = {"action": "trip", "reason": "fan is loud", "author": "ada", "seconds": 90}
        node = await ask(w, "POST", "/nodes/a/breaker", trip)
        assert (node.breaker.state, node.breaker.actor) == ("tripped", "ada")
        found = await event(w, "node_breaker.tripped")
        assert (found["node"], found["actor"], found["reason"]) == ("a", "ada", "fan is loud")
        assert (found["before"], found["cause"]) == ("closed", "manual_trip")
        assert found["ends_in_s"] == pytest.approx(90)
        await ask(w, "POST", "/nodes/a/breaker", {"action": "reset", "reason": "quiet again"})
        found = await event(w, "node_breaker.closed")
        assert (found["before"], found["actor"]) == ("tripped", "anonymous")


async def test_failures_never_shorten_a_manual_trip(pair):
    async with world(pair) as w:
        conductor = w.service.conductor
        trip = {"action": "trip", "reason": "replaced tonight", "seconds": 3600}
        ended = (await ask(w, "POST", "/nodes/a/breaker", trip)).breaker.until_s
        slot = conductor.fleet.slot("a")
        until_s = conductor.breakers.switch(slot).until_s
        conductor.restarted("a", w.service.clock.now())
        for _ in range(conductor.tunables.breaker.consecutive_failures + 1):
            now = w.service.clock.now()
            ticket = conductor.breakers.begin(slot)
            conductor.breakers.record(slot, "engine_error", now, ticket=ticket)
        assert conductor.breakers.switch(slot).until_s == until_s
        view = await ask(w, "GET", "/nodes/a")
        assert view.breaker.state == "tripped" and 3500 < view.breaker.until_s <= ended


@pytest.mark.parametrize("detector", [False, True])
async def test_the_global_breaker_trips_to_round_robin_and_back(pair, detector):
    tunables = Tunables().changed({"hotspot.enabled": detector})
    async with world(pair, tunables=tunables) as w:
        assert (await ask(w, "GET", "/breaker", kind=wire.BreakerView)).state == "closed"
        trip = {"action": "trip", "reason": "the policy misbehaves", "author": "ada"}
        tripped = await ask(w, "POST", "/breaker", trip, kind=wire.BreakerView)
        assert (tripped.state, tripped.manual, tripped.until_s) == ("tripped", True, None)
        # The detector's own firings change nothing about it.
        w.service.conductor.detector.breaker.fired(w.service.clock.now(), in_a_row=99)
        for n in range(4):
            await w.complete([n + 1] * 64, max_tokens=2)
        await w.settled()
        assert [d.policy for d in w.sink.decisions] == ["round_robin"] * 4
        state = await ask(w, "GET", "/state", kind=wire.FleetState)
        assert state.breaker == tripped
        assert (await event(w, "global_breaker.tripped"))["actor"] == "ada"
        reset = {"action": "reset", "reason": "understood", "author": "bob"}
        assert (await ask(w, "POST", "/breaker", reset, kind=wire.BreakerView)).state == "closed"
        assert (await event(w, "global_breaker.closed"))["actor"] == "bob"
        await w.complete("x", max_tokens=2)
        await w.settled()
        assert w.sink.decisions[-1].policy == "min_ttft"


BAD_ACTS = [
    ({"reason": ""}, "reason"),
    ({"reason": "    "}, "reason"),
    ({"seconds": 0}, "seconds"),
    ({"seconds": 1e9}, "seconds"),
    ({"action": "open"}, "action"),
    ({"action": "hold"}, "seconds"),
    ({"action": "reset", "seconds": 5}, "seconds"),
    ({"expiry": 5}, "expiry"),
]


async def test_bad_acts_on_breakers_name_the_field():
    async with gateway() as w:
        url = "http://127.0.0.1:9"
        await ask(w, "POST", "/nodes", {"id": "a", "url": url, "engine": "emulated"}, status=201)
        for path in ("/breaker", "/nodes/a/breaker"):
            for change, field in BAD_ACTS:
                act = {"action": "trip", "reason": "a good one", **change}
                assert (await ask(w, "POST", path, act, status=422)).param == field
        assert (await ask(w, "GET", "/breaker", kind=wire.BreakerView)).state == "closed"
        assert (await ask(w, "GET", "/nodes/a")).breaker.state == "closed"


async def test_an_unknown_node_has_no_breaker():
    async with gateway() as w:
        act = {"action": "trip", "reason": "a good one"}
        assert (await ask(w, "POST", "/nodes/none/breaker", act, status=404)).param == "node"


# -- addresses ------------------------------------------------------------------------------------

BAD_ADDRESSES = [
    ({"url": "http://169.254.169.254/latest"}, 403, "url"),
    ({"url": "http://8.8.8.8:8000"}, 403, "url"),
    ({"url": "http://metadata.google.internal"}, 403, "url"),
    ({"url": "http://2130706433:8000"}, 422, "url"),
    ({"url": "http://[::ffff:127.0.0.1]:8000"}, 422, "url"),
    ({"url": "http://user@127.0.0.1:8000"}, 422, "url"),
    ({"url": "http://127.0.0.1:8000/#x"}, 422, "url"),
    ({"url": "http://127.0.0.1.:8000"}, 422, "url"),
    ({"url": "http://no-such-name.invalid"}, 422, "url"),
    ({"url": "gopher://127.0.0.1:70"}, 422, "url"),
    ({"events": {"live": "tcp://169.254.169.254:80"}}, 403, "events.live"),
    ({"events": {"live": "tcp://127.0.0.1:5", "replay": "tcp://0.0.0.0:6"}}, 403, "events.replay"),
    ({"events": {"live": "tcp://*:5557"}}, 422, "events.live"),
]


async def test_registrations_at_bad_addresses_are_refused_before_anything_connects():
    async with gateway() as w:
        for change, status, field in BAD_ADDRESSES:
            body = {"id": "x", "url": "http://127.0.0.1:9", **change}
            assert (await ask(w, "POST", "/nodes", body, status=status)).param == field, change
        assert not len(w.service.conductor.fleet) and not w.supervisor.statuses()
        publisher = {
            "endpoint": "tcp://169.254.169.254:80", "type": "vLLM", "modelname": "m",
            "instance_id": "i", "block_size": 16,
        }  # fmt: skip
        async with w.client.post(f"{w.url}/register", json=publisher) as answer:
            assert answer.status == 403
        assert not len(w.service.conductor.fleet)


async def test_every_address_of_a_name_is_judged_and_networks_are_a_setting():
    narrow = replace(PATIENT, allowed_networks=networks(["10.0.0.0/8"]))
    async with gateway(limits=narrow) as w:
        body = {"id": "x", "url": "http://localhost:9", "engine": "emulated"}
        error = await ask(w, "POST", "/nodes", body, status=403)
        assert error.param == "url" and "allowed_networks" in error.message
    async with gateway() as w:
        await ask(w, "POST", "/nodes", body, status=201)


async def test_nodes_of_the_settings_file_are_trusted_but_not_with_metadata():
    settings = Settings(nodes=({"id": "n", "url": "http://169.254.169.254"},))
    with pytest.raises(Invalid, match=r"nodes\.n\.url") as caught:
        async with running_service(settings):
            pass
    assert caught.value.field == "nodes.n.url"
    check_nodes(Settings(nodes=({"id": "n", "url": "http://8.8.8.8:8000"},)))


# -- cordon, drain, weight, note, removal ---------------------------------------------------------

SLOW = ("--profile", "generic-7b-1gpu")


async def fault(w, engine, **values):
    async with w.client.post(f"{engine.url}/emulated/faults", json=values) as answer:
        assert answer.status == 200


async def test_a_drain_under_load_tells_its_progress_and_its_end():
    with engines(Engine("a", *SLOW), Engine("b", *SLOW)) as (a, b):
        async with gateway(a.spec(kv_transfer=""), b.spec(kv_transfer="")) as w:
            body = {"prompt": "x", "max_tokens": 250, "stream": True}
            opened = await asyncio.gather(*(w.post("/v1/completions", body) for _ in range(6)))
            assert {s.headers["x-conductor-node"] for s in opened} == {"a", "b"}
            on_a = [s for s in opened if s.headers["x-conductor-node"] == "a"]
            await fault(w, a, hang="engine")  # its requests run on until we let them
            why = {"reason": "new driver", "author": "ada"}
            node = await ask(w, "POST", "/nodes/a/drain", why)
            assert (node.drain.state, node.drain.done, node.eligible) == ("draining", False, False)
            running = node.drain.running
            assert 1 <= running == node.drain.running_at_start <= len(on_a)
            assert (node.drain.reason, node.drain.actor) == ("new driver", "ada")
            more = [await w.complete("x", max_tokens=2) for _ in range(4)]
            assert {s.headers["x-conductor-node"] for s in more} == {"b"}
            assert not events(w, "node.drained")
            await fault(w, a, hang="")
            for stream in opened:
                assert (await stream.read()).rstrip().endswith(b"data: [DONE]")
            found = await event(w, "node.drained")
            assert (found["node"], found["ran"], found["actor"]) == ("a", running, "ada")
            node = await ask(w, "POST", "/nodes/a/drain")  # asked again: nothing starts over
            assert (node.drain.state, node.drain.done, node.drain.running) == ("drained", True, 0)
            assert node.drain.finished_at >= node.drain.since and node.drain.actor == "ada"
            node = await ask(w, "POST", "/nodes/a/undrain", {"author": "bob"})
            assert node.drain is None and node.eligible
            assert (await event(w, "node.resumed"))["actor"] == "bob"
            assert len(events(w, "node.drained")) == len(events(w, "node.draining")) == 1
            await w.settled()


async def test_a_cordon_waits_for_nobody_and_can_become_a_drain(pair):
    async with world(pair) as w:
        node = await ask(w, "POST", "/nodes/a/cordon", {"reason": "noisy"})
        assert (node.drain.state, node.drain.done, node.draining) == ("cordoned", False, True)
        assert (await event(w, "node.cordoned"))["reason"] == "noisy"
        assert (await w.complete("x", max_tokens=2)).headers["x-conductor-node"] == "b"
        w.service.upkeep.beat(w.service.clock.now())
        assert not events(w, "node.drained")
        assert (await ask(w, "POST", "/nodes/a/drain")).drain.state == "drained"
        assert (await ask(w, "POST", "/nodes/a/cordon")).drain.state == "drained"
        assert (await ask(w, "POST", "/nodes/a/uncordon")).drain is None
        assert (await ask(w, "POST", "/nodes/none/cordon", status=404)).param == "node"


async def test_weight_and_note_change_while_running_and_survive_discovery(pair):
    async with world(pair) as w:
        ask_change = {"weight": 7.5, "note": "fan replaced 12 May", "author": "ada", "reason": "x"}
        node = await ask(w, "PATCH", "/nodes/a", ask_change)
        assert (node.weight, node.note.text, node.note.author) == (
            7.5, "fan replaced 12 May", "ada",
        )  # fmt: skip
        found = await event(w, "node.changed")
        assert (found["weight"], found["actor"]) == ([1.0, 7.5], "ada")
        supervisor = w.supervisor._supervisors["a"]
        await supervisor._discover()
        conductor = w.service.conductor
        assert conductor.fleet.spec("a").weight == 7.5
        assert conductor.fleet.weight[conductor.fleet.slot("a")] == 7.5
        assert conductor.fleet.weighted
        state = await ask(w, "GET", "/state", kind=wire.FleetState)
        assert [n.note and n.note.text for n in state.nodes] == ["fan replaced 12 May", None]
        node = await ask(w, "PATCH", "/nodes/a", {"note": ""})
        assert node.note is None and node.weight == 7.5
        for change, field in (
            ({}, "weight"),
            ({"weight": 0}, "weight"),
            ({"weight": -1}, "weight"),
            ({"weight": "heavy"}, "weight"),
            ({"note": "n" * 1001}, "note"),
            ({"url": "http://127.0.0.1:1"}, "url"),
        ):
            assert (await ask(w, "PATCH", "/nodes/a", change, status=422)).param == field


async def test_a_removed_node_appears_nowhere_again():
    with engines(Engine("stays"), Engine("leaves-us")) as (stays, leaves):
        async with gateway(stays.spec(), leaves.spec()) as w:
            await ask(w, "PATCH", "/nodes/leaves-us", {"note": "to be sold", "weight": 50})
            for n in range(6):
                assert (await w.complete([n + 1] * 320, max_tokens=2)).status == 200
            await ask(w, "POST", "/nodes/leaves-us/drain")
            await w.settled()
            path = "/nodes/leaves-us?reason=sold&author=ada"
            assert (await ask(w, "DELETE", path, kind=wire.Done)).ok
            found = await event(w, "node.removed")
            assert (found["reason"], found["actor"], found["running"]) == ("sold", "ada", 0)
            probes = w.supervisor.status("stays").probes
            await until(lambda: w.supervisor.status("stays").probes > probes + 3)
            decided = len(w.sink.decisions)
            for n in range(6):
                answer = await w.complete([n + 1] * 320, max_tokens=2)
                assert answer.headers["x-conductor-node"] == "stays"
            await w.settled()
            for record in w.sink.decisions[decided:]:
                assert "leaves-us" not in f"{record}"
            for page in ("/admin/v1/state", "/admin/v1/nodes", "/admin/v1/cache/hot", "/metrics"):
                async with w.client.get(f"{w.url}{page}") as answer:
                    text = await answer.text()
                assert "leaves-us" not in text, page
            assert (await ask(w, "GET", "/nodes/leaves-us", status=404)).param == "node"
            again = await ask(
                w, "POST", "/nodes", {"id": "leaves-us", "url": leaves.url}, status=201
            )
            assert (again.note, again.drain, again.weight) == (None, None, 1.0)


# -- the event feed -------------------------------------------------------------------------------


async def told(answer, *kinds: str) -> list[dict]:
    """The next events of these kinds, in this order; others (of engines) are passed over."""
    out: list = []
    async with asyncio.timeout(20):
        while len(out) < len(kinds):
            block = (await answer.content.readuntil(b"\n\n")).decode()
            fields = dict(line.split(": ", 1) for line in block.strip().split("\n"))
            if fields.get("event") == kinds[len(out)]:
                out.append(json.loads(fields["data"]))
    return out


async def test_everything_that_changes_is_streamed(pair, tmp_path):
    with open_storage(f"sqlite:///{tmp_path}/records.db") as storage:
        async with world(pair, store=storage.store, sink=storage.sink) as w:
            url = f"{w.url}/admin/v1/events"
            async with w.client.get(url) as answer, w.client.get(f"{url}?kind=node.") as nodes:
                assert answer.content_type == "text/event-stream"
                await answer.content.readuntil(b"\n\n")
                await nodes.content.readuntil(b"\n\n")
                trip = {"action": "trip", "reason": "fan is loud", "author": "ada"}
                await ask(w, "POST", "/nodes/a/breaker", trip)
                (data,) = await told(answer, "node_breaker.tripped")
                assert (data["node"], data["actor"], data["reason"]) == ("a", "ada", "fan is loud")
                await ask(w, "PATCH", "/nodes/b", {"weight": 2, "author": "bob"})
                base = w.service.conductor.revision
                change = {"base": base, "changes": {"linear.alpha": 0.7}, "reason": "try it"}
                await ask(w, "PUT", "/tunables", change, kind=wire.TunablesView)
                await ask(w, "DELETE", "/nodes/b?author=bob", kind=wire.Done)
                kinds = ("node.changed", "tunables.changed", "node.removed")
                changed, revision, removed = await told(answer, *kinds)
                assert changed["weight"] == [1.0, 2.0]
                assert revision["revision"] == base + 1
                assert revision["changes"] == {"linear.alpha": [0.5, 0.7]}
                assert removed["actor"] == "bob"
                await told(nodes, "node.changed", "node.removed")
            async with w.client.get(url, headers={"last-event-id": "0"}) as answer:
                await told(answer, "node.registered", "node_breaker.tripped", "node.removed")
                w.service.stop_accepting()
                async with asyncio.timeout(20):
                    await answer.read()
            await until(lambda: w.service.feed.subscribers == 0)
            async with w.client.get(url, headers={"last-event-id": "x"}) as answer:
                assert answer.status == 422
                assert refused(await answer.read()).param == "Last-Event-ID"


# -- commands -------------------------------------------------------------------------------------


async def command(w, *words: str):
    """A command against the world's service, in a thread beside it."""
    arguments = [*words, "--url", w.url]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments, env={"COLUMNS": "200"})


async def test_commands_act_on_a_running_service(pair):
    async with world(pair) as w:
        for _ in range(3):
            await w.complete(list(range(4000, 4320)), max_tokens=2)
            await until(lambda: w.service.conductor.index.stats().entries >= 9)
        listed = await command(w, "nodes", "--json")
        assert [n.id for n in wire.NodeList.model_validate_json(listed.stdout).nodes] == ["a", "b"]
        hot = wire.HotPrefixes.model_validate_json((await command(w, "hot", "--json")).stdout)
        shown = (await command(w, "hot")).stdout
        assert hot.prefixes and hot.prefixes[0].key in shown and hot.prefixes[0].holders[0] in shown
        done = await command(w, "trip", "a", "-m", "fan is loud", "--for", "60", "--author", "ada")
        assert done.exit_code == 0 and "tripped for 60 s by ada (fan is loud)" in done.stdout
        assert "fan is loud" in (await command(w, "nodes")).stdout
        await command(w, "reset", "a", "-m", "quiet again")
        assert w.service.conductor.breakers.switch(0).state == "closed"
        held = await command(w, "reset", "a", "-m", "watched", "--hold", "60")
        assert "held for 60 s" in held.stdout
        await command(w, "trip", "--global", "-m", "odd decisions")
        assert w.service.conductor.detector.breaker.tripped
        await command(w, "reset", "--global", "-m", "understood")
        assert not w.service.conductor.detector.breaker.tripped
        done = await command(w, "drain", "b", "-m", "new driver", "--wait", "20")
        assert (done.exit_code, done.stdout) == (0, "b: drained\n")
        assert (await command(w, "undrain", "b")).stdout == "b: healthy\n"


async def test_commands_say_what_is_wrong(pair):
    async with world(pair) as w:
        for words, kind, text in (
            (["trip", "none", "-m", "a reason"], Refused, "unknown node 'none'"),
            (["trip", "a"], Refused, "reason"),
            (["trip", "a", "-m", "a reason", "--for", "-1"], Refused, "seconds"),
            (["trip", "-m", "a reason"], BadRequest, "--global"),
            (["reset", "a", "--global", "-m", "a reason"], BadRequest, "--global"),
            (["drain", "none"], Refused, "unknown node"),
        ):
            result = await command(w, *words)
            assert type(result.exception) is kind and text in result.exception.message, words
        url = w.url
    for address in (url, "http://[", "nonsense"):
        result = CliRunner().invoke(app, ["nodes", "--url", address])
        assert type(result.exception) is Refused and address in result.exception.message


async def test_a_drain_that_does_not_end_in_time_is_code_1():
    with engines(Engine("a", *SLOW)) as (a,):
        async with gateway(a.spec()) as w:
            body = {"prompt": "x", "max_tokens": 2000, "stream": True}
            stream = await w.post("/v1/completions", body)
            result = await command(w, "drain", "a", "--wait", "0.2")
            assert result.exit_code == 1 and "a: draining: 1 of 1 requests left" in result.stdout
            stream.close()
            await event(w, "node.drained")
