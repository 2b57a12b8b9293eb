"""Node life cycle, breakers and the event stream of the admin API, before real processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gateway_world import PATIENT, Engine, engines, gateway, until

from core import wire
from core.engines.addresses import networks
from core.errors import Invalid
from core.settings import Settings
from core.tunables import Tunables
from core.wiring import check_nodes, running_service


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
        assert found["for_s"] == pytest.approx(90)
        await ask(w, "POST", "/nodes/a/breaker", {"action": "reset", "reason": "quiet again"})
        found = await event(w, "node_breaker.closed")
        assert (found["before"], found["actor"]) == ("tripped", "operator")


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
