"""The event feed: order, loss, resuming, filters, bounds, ends."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest

from core.errors import Overloaded
from core.gateway.event_feed import EventFeed

AT = datetime(2026, 5, 12, tzinfo=UTC)


def publish(feed: EventFeed, *kinds: str) -> None:
    for kind in kinds:
        feed.publish(kind, "a", {"reason": "r"}, AT)


def parsed(frame: bytes) -> tuple[int | None, str, dict]:
    fields = dict(line.split(": ", 1) for line in frame.decode().strip().split("\n"))
    number = int(fields["id"]) if "id" in fields else None
    return number, fields["event"], json.loads(fields["data"])


async def taken(stream, count: int) -> list[tuple[int | None, str, dict]]:
    """The next `count` events; the greeting and heartbeats left out."""
    out: list = []
    async with asyncio.timeout(10):
        while len(out) < count:
            frame = await anext(stream)
            if b"data: " in frame:
                out.append(parsed(frame))
    return out


async def test_events_come_in_order_with_their_data():
    feed = EventFeed()
    publish(feed, "before")
    stream = feed.subscribe()
    assert await anext(stream) == b"retry: 2000\n: connected\n\n"
    waiting = asyncio.create_task(taken(stream, 2))
    await asyncio.sleep(0)
    publish(feed, "x.one", "x.two")
    (first, second) = await waiting
    assert (first[0], first[1], second[0], second[1]) == (2, "x.one", 3, "x.two")
    assert first[2] == {
        "at": "2026-05-12T00:00:00+00:00", "kind": "x.one", "node": "a", "reason": "r",
    }  # fmt: skip


async def test_every_subscriber_gets_everything():
    feed = EventFeed()
    streams = [feed.subscribe() for _ in range(5)]
    tasks = [asyncio.create_task(taken(s, 50)) for s in streams]
    for n in range(50):
        publish(feed, f"k{n}")
        if n % 7 == 0:
            await asyncio.sleep(0)
    for task in tasks:
        assert [kind for _, kind, _ in await task] == [f"k{n}" for n in range(50)]


async def test_a_slow_reader_is_told_what_it_lost_and_memory_stays_bounded():
    feed = EventFeed(kept=10)
    stream = feed.subscribe()
    await anext(stream)
    publish(feed, *(f"k{n}" for n in range(1, 36)))
    lost, *rest = await taken(stream, 11)
    assert lost == (None, "lost", {"kind": "lost", "events": 25})
    assert [number for number, _, _ in rest] == list(range(26, 36))
    assert len(feed._ring) == 10


async def test_resuming_after_a_number():
    feed = EventFeed(kept=10)
    publish(feed, *(f"k{n}" for n in range(1, 8)))
    assert [e[0] for e in await taken(feed.subscribe(after=4), 3)] == [5, 6, 7]
    # The number of another process' life: everything kept.
    assert [e[0] for e in await taken(feed.subscribe(after=999), 7)] == list(range(1, 8))
    assert [e[0] for e in await taken(feed.subscribe(after=0), 7)] == list(range(1, 8))


async def test_a_prefix_filters():
    feed = EventFeed()
    publish(feed, "node.a", "breaker.b", "node.c")
    assert [e[0] for e in await taken(feed.subscribe(after=0, prefix="node."), 2)] == [1, 3]


async def test_heartbeats_come_when_nothing_happens():
    stream = EventFeed().subscribe(heartbeat_s=0.01)
    await anext(stream)
    assert await anext(stream) == b": nothing new\n\n"


async def test_closing_ends_everybody_after_what_is_there():
    feed = EventFeed()
    waiting = asyncio.create_task(collect(feed.subscribe()))
    late = feed.subscribe()
    await anext(late)
    await asyncio.sleep(0)
    publish(feed, "last")
    feed.close()
    async with asyncio.timeout(10):
        assert len(await waiting) == 2
        assert len(await collect(late)) == 1
    assert feed.subscribers == 0


async def collect(stream) -> list[bytes]:
    return [frame async for frame in stream]


async def test_the_number_of_subscribers_is_bounded_and_given_back():
    feed = EventFeed(subscribers_max=2)
    streams = [feed.subscribe(), feed.subscribe()]
    for stream in streams:
        await anext(stream)
    with pytest.raises(Overloaded):
        feed.subscribe()
    await streams[0].aclose()
    await anext(feed.subscribe())


async def test_values_json_does_not_know_are_told_as_text():
    feed = EventFeed()
    feed.publish("k", "", {"x": {1}, 2: "n"}, AT)
    ((_, _, data),) = await taken(feed.subscribe(after=0), 1)
    assert data["x"] == "{1}" and data["2"] == "n"
