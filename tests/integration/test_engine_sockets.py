"""Event sockets against a publisher over real ZMQ connections."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import zmq.asyncio

from core.engines.sockets import EventSockets, ReplayTimeout, SocketLimits
from core.index.events import REPLAY_END, Frame, parse_live, parse_replay
from tests.integration.engine_wire import WirePublisher, until


@asynccontextmanager
async def connected(publisher: WirePublisher, **limits):
    links: list[bool] = []
    with zmq.asyncio.Context() as context:
        sockets = EventSockets(
            publisher.endpoints,
            context=context,
            on_link=links.append,
            limits=SocketLimits(**limits),
        )
        async with sockets:
            await until(lambda: links and links[-1], what="a connection")
            yield sockets, links


async def subscribed(publisher: WirePublisher, sockets: EventSockets) -> None:
    """Publish marks until one arrives: a subscription reaches the publisher some time later."""

    async def mark() -> None:
        while True:
            await publisher.send(999, b"mark")
            await asyncio.sleep(0.01)

    task = asyncio.create_task(mark())
    await sockets.receive()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def replayed(sockets: EventSockets, start: int) -> list[tuple[int, bytes]]:
    frames = [parse_replay(f) async for f in sockets.replay(start)]
    return [(f.seq, f.payload) for f in frames]


async def gathered(sockets: EventSockets, count: int) -> list[Frame]:
    found: list[Frame] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            parsed = [parse_live(f) for f in await sockets.receive()]
            found += [m for m in parsed if m.payload != b"mark"]
    return found


async def test_live_messages_arrive_in_order_and_in_bounded_gulps():
    async with WirePublisher() as publisher, connected(publisher, drain_messages=10) as (s, _):
        await subscribed(publisher, s)
        for i in range(50):
            await publisher.publish(b"%d" % i)
        assert [m.seq for m in await gathered(s, 50)] == list(range(50))


async def test_other_topics_are_not_received():
    async with WirePublisher() as publisher, connected(publisher) as (s, _):
        await subscribed(publisher, s)
        publisher.topic = b"other"
        await publisher.publish(b"no")
        publisher.topic = b"kv"
        await publisher.publish(b"yes")
        assert [m.payload for m in await gathered(s, 1)] == [b"yes"]


@pytest.mark.parametrize("framing", ["new", "old"])
async def test_replay_gives_the_buffer_from_where_it_was_asked(framing):
    async with WirePublisher(framing=framing) as publisher, connected(publisher) as (s, _):
        for i in range(5):
            await publisher.publish(b"%d" % i)
        assert await replayed(s, 3) == [(3, b"3"), (4, b"4"), (REPLAY_END, b"")]
        assert await replayed(s, 99) == [(REPLAY_END, b"")]
        assert publisher.asked == [3, 99]


async def test_a_silent_replay_socket_times_out():
    async with WirePublisher() as publisher, connected(publisher, replay_idle_s=0.2) as (s, _):
        publisher.silent = True
        with pytest.raises(ReplayTimeout, match=r"0\.2 s"):
            _ = [m async for m in s.replay(0)]


async def test_nobody_on_the_replay_port_times_out():
    async with WirePublisher() as publisher:
        endpoints = publisher.endpoints
    with zmq.asyncio.Context() as context:
        limits = SocketLimits(replay_idle_s=0.2)
        async with EventSockets(
            endpoints, context=context, on_link=lambda _: None, limits=limits
        ) as s:
            with pytest.raises(ReplayTimeout):
                _ = [m async for m in s.replay(0)]


async def test_a_lost_connection_is_reported_at_once_and_comes_back():
    async with WirePublisher() as publisher, connected(publisher) as (_, links):
        ports = publisher.ports
        publisher._pub.close(linger=0)
        await until(lambda: links[-1] is False, what="the loss")
        async with WirePublisher(live_port=ports["live_port"]):
            await until(lambda: links[-1] is True, what="the reconnection")


async def test_an_oversized_message_ends_the_connection_not_the_process():
    async with WirePublisher() as publisher, connected(publisher, message_bytes=1000) as (s, links):
        await subscribed(publisher, s)
        await publisher.publish(b"x" * 100_000)
        await until(lambda: links[-1] is False, what="the disconnection")
