"""A node's event stream over real ZMQ connections: order, gaps, replay, restart, lost links."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
import zmq.asyncio

from core.clock import SystemClock
from core.conductor import Conductor
from core.domain import EngineKind, NodeId, NodeSpec, Trust
from core.engines.sockets import SocketLimits
from core.engines.stream_tools import StreamRules, StreamTools
from core.engines.transport import NodeStream
from core.hashing import chain, root_key, token_array
from core.index import event_stream
from core.index.event_stream import Status
from tests.integration.engine_wire import HastyReplay, WirePublisher, until

NODE = NodeId("n")
SIZE = 16
QUICK = {"sockets": SocketLimits(replay_idle_s=0.3), "tick_s": 0.05, "audit_s": 0.3}


def tokens(name: int, blocks: int) -> list[int]:
    return [name * 10_000 + i for i in range(SIZE * blocks)]


def stored(name: int, blocks: int, *, start: int = 0) -> bytes:
    """The batch of an engine that fills blocks start..blocks of prompt `name`."""
    hashes = [name * 1000 + i for i in range(blocks)]
    event = {
        "type": "BlockStored",
        "block_hashes": hashes[start:],
        "parent_block_hash": hashes[start - 1] if start else None,
        "token_ids": tokens(name, blocks)[start * SIZE :],
        "block_size": SIZE,
        "medium": "GPU",
    }
    return msgspec.msgpack.encode([1.0, [event], 0])


def removed(name: int, block: int) -> bytes:
    event = {"type": "BlockRemoved", "block_hashes": [name * 1000 + block], "medium": "GPU"}
    return msgspec.msgpack.encode([1.0, [event], 0])


class Followed:
    """A conductor with one node whose stream is followed."""

    def __init__(self, publisher: WirePublisher, context: zmq.asyncio.Context, **rules) -> None:
        self.conductor = Conductor()
        self.restarts = 0
        self.links_lost = 0
        self.publisher = publisher
        now = SystemClock().now()
        spec = NodeSpec(
            id=NODE,
            url="http://127.0.0.1:1",
            engine=EngineKind.VLLM,
            models=("m",),
            block_size=SIZE,
            events=publisher.endpoints,
        )
        self.slot = self.conductor.register(spec, now)
        tools = StreamTools(
            conductor=self.conductor,
            clock=SystemClock(),
            context=context,
            rules=StreamRules(**{**QUICK, **rules}),
        )
        self.stream = NodeStream(spec, tools, on_restart=self._restarted, on_lost_link=self._lost)

    def _restarted(self) -> None:
        self.restarts += 1

    def _lost(self) -> None:
        self.links_lost += 1

    def match(self, name: int, blocks: int = 8) -> int:
        ids = token_array(tokens(name, blocks))
        keys = {SIZE: chain(ids, SIZE, root_key("m", block_size=SIZE))}
        return int(self.conductor.match(keys)[self.slot])

    @property
    def trust(self) -> Trust:
        return self.conductor.trust.trust(self.slot)

    async def listening(self) -> None:
        """Publish until a live message came through: the subscription has arrived."""
        await until(lambda: self.stream.status.state is Status.LIVE, what="a live stream")
        seen = self.stream.status.messages
        while self.stream.status.messages == seen:
            await self.publisher.publish(msgspec.msgpack.encode([1.0, [], 0]))
            await asyncio.sleep(0.01)


@asynccontextmanager
async def followed(publisher: WirePublisher, **rules):
    with zmq.asyncio.Context() as context:
        one = Followed(publisher, context, **rules)
        async with one.stream:
            yield one


async def test_a_replay_that_waits_for_others_is_not_late(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_stream, "REPLAY_IDLE_S", 0.2)
    at_once = StreamRules().replays_at_once
    async with WirePublisher() as publisher:
        await publisher.publish(stored(1, 4), live=False)
        with zmq.asyncio.Context() as context:
            node = Followed(publisher, context)
            others = node.stream._tools.replays
            for _ in range(at_once):
                await others.acquire()
            async with node.stream:
                began = SystemClock().now()
                await until(lambda: SystemClock().now() - began > 0.7, what="time to pass")
                assert node.stream.status.cursor.replays == 1
                assert node.stream.status.state is Status.REPLAYING
                monkeypatch.undo()
                for _ in range(at_once):
                    others.release()
                await until(lambda: node.match(1) == 64, what="the replay")


async def test_what_was_published_before_is_replayed_and_then_believed():
    async with WirePublisher() as publisher:
        for name in range(5):
            await publisher.publish(stored(name, 4), live=False)
        async with followed(publisher) as node:
            assert node.trust is Trust.DEGRADED
            await until(lambda: node.trust is Trust.EXACT, what="belief")
            assert [node.match(name) for name in range(6)] == [64] * 5 + [0]


async def test_live_batches_are_applied_as_they_come():
    async with WirePublisher() as publisher, followed(publisher) as node:
        await node.listening()
        await publisher.publish(stored(1, 2))
        await until(lambda: node.match(1) == 32)
        await publisher.publish(stored(1, 5, start=2))
        await until(lambda: node.match(1) == 80)
        await publisher.publish(removed(1, 4))
        await until(lambda: node.match(1) == 64)


async def test_a_gap_is_filled_by_replay_before_anything_later_counts():
    async with WirePublisher() as publisher, followed(publisher) as node:
        await node.listening()
        await publisher.publish(stored(1, 2), live=False)
        await publisher.publish(stored(2, 2), live=False)
        await publisher.publish(stored(1, 3, start=2))
        await until(lambda: node.match(1) == 48 and node.match(2) == 32, what="the repair")
        assert node.stream.status.cursor.gaps == 1
        assert node.stream.status.cursor.forgotten == 0
        assert node.trust is Trust.EXACT


async def test_a_loss_before_silence_is_found_by_the_audit():
    async with WirePublisher() as publisher, followed(publisher) as node:
        await node.listening()
        await publisher.publish(stored(1, 2), live=False)
        await until(lambda: node.match(1) == 32, what="the audit's find")
        assert node.stream.status.catch_ups == 1
        assert node.stream.status.cursor.gaps == 0


async def test_lost_history_drops_what_was_known():
    async with WirePublisher() as publisher, followed(publisher, audit_s=99.0) as node:
        await node.listening()
        await publisher.publish(stored(1, 2))
        await until(lambda: node.match(1) == 32)
        await publisher.publish(removed(1, 1), live=False)
        publisher.forget_below = publisher.next
        await publisher.publish(stored(2, 2))
        await until(lambda: node.match(2) == 32, what="relearning")
        assert node.match(1) == 0


async def test_a_silent_replay_socket_ends_credit():
    async with WirePublisher() as publisher, followed(publisher, audit_s=99.0) as node:
        await node.listening()
        await publisher.publish(stored(1, 2))
        await until(lambda: node.match(1) == 32)
        publisher.silent = True
        await publisher.publish(stored(2, 2), live=False)
        await publisher.publish(stored(3, 2))
        await until(lambda: node.trust is Trust.DEGRADED, what="the doubt")
        assert [node.match(n) for n in (1, 2, 3)] == [0, 0, 0]
        assert "no replay answer" in node.stream.status.problem


async def test_a_sequence_that_goes_back_is_a_restart():
    async with WirePublisher() as publisher, followed(publisher, audit_s=99.0) as node:
        await node.listening()
        await publisher.publish(stored(1, 2))
        await until(lambda: node.match(1) == 32)
        publisher.buffer.clear()
        publisher.next = 0
        await publisher.publish(stored(2, 2))
        await until(lambda: node.match(2) == 32, what="the new life")
        assert node.match(1) == 0
        assert node.restarts == 1


async def test_a_restart_told_from_outside_forgets_at_once_and_relearns():
    async with WirePublisher() as publisher, followed(publisher) as node:
        await node.listening()
        await publisher.publish(stored(1, 2))
        await until(lambda: node.match(1) == 32)
        publisher.buffer.clear()
        publisher.next = 0
        await publisher.publish(stored(2, 2), live=False)
        node.stream.restarted(SystemClock().now())
        assert node.match(1) == 0, "no await may pass before the old cache is forgotten"
        await until(lambda: node.match(2) == 32, what="the new life")
        assert node.restarts == 0, "whoever told it knows"


async def test_batches_under_way_do_not_survive_a_restart():
    async with WirePublisher() as publisher, followed(publisher, slice_blocks=1) as node:
        await node.listening()
        await publisher.publish(stored(1, 500))
        await until(lambda: node.match(1, 500) > 0, what="the first slices")
        publisher.buffer.clear()
        publisher.next = 0
        node.stream.restarted(SystemClock().now())
        await until(lambda: node.stream.status.state is Status.LIVE, what="a live stream")
        await until(lambda: not node.stream._pending and not node.stream._inbox)
        assert node.match(1, 500) == 0


async def test_a_lost_connection_is_told_and_what_was_missed_is_fetched_on_return():
    async with WirePublisher() as publisher, followed(publisher, audit_s=99.0) as node:
        await node.listening()
        await publisher.publish(stored(1, 2))
        await until(lambda: node.match(1) == 32)
        await publisher.drop_link()
        await until(lambda: node.links_lost == 1, what="the loss")
        await publisher.publish(stored(2, 2), live=False)
        publisher.restore_link()
        await until(lambda: node.match(2) == 32, what="what was missed")
        assert node.match(1) == 32, "the process is the same: nothing is forgotten"


async def test_a_connection_away_for_long_voids_credit_until_it_is_back():
    async with WirePublisher() as publisher:
        rules = {"audit_s": 99.0, "link_lost_s": 0.3, "reopen_s": 0.2}
        async with followed(publisher, **rules) as node:
            await node.listening()
            await publisher.publish(stored(1, 2))
            await until(lambda: node.match(1) == 32)
            await publisher.drop_link()
            await until(lambda: node.trust is Trust.DEGRADED, what="the doubt")
            assert node.match(1) == 0
            assert "no connection" in node.stream.status.problem
            publisher.restore_link()
            await until(lambda: node.trust is Trust.EXACT, what="belief")
            await until(lambda: node.match(1) == 32)
            assert node.stream.status.problem == ""


async def test_sockets_are_made_anew_where_libzmq_gave_up():
    async with WirePublisher() as publisher:
        limits = SocketLimits(message_bytes=2_000, replay_idle_s=0.3)
        async with followed(publisher, audit_s=99.0, reopen_s=0.2, sockets=limits) as node:
            await node.listening()
            await publisher.send(publisher.next, b"x" * 100_000)
            await until(lambda: node.links_lost == 1, what="the end of the connection")
            await until(lambda: node.stream.status.connected, what="a new connection")
            await node.listening()
            await publisher.publish(stored(1, 2))
            await until(lambda: node.match(1) == 32, what="life after the monster")


async def test_doubt_relearns_once_and_clearing_from_outside_counts_at_once():
    async with WirePublisher() as publisher, followed(publisher, audit_s=99.0) as node:
        await node.listening()
        await publisher.publish(stored(1, 2))
        await until(lambda: node.match(1) == 32)
        now = SystemClock().now()
        node.stream.doubted(True, now)
        node.stream.doubted(True, now)
        await until(lambda: node.match(1) == 32, what="relearning")
        assert publisher.asked.count(0) == 2, "once at the start, once for the doubt"
        node.stream.cleared(now)
        assert node.match(1) == 0


async def test_a_node_without_replay_takes_the_stream_as_it_comes():
    async with WirePublisher() as publisher:
        publisher.replays = False
        async with followed(publisher) as node:
            await node.listening()
            await publisher.publish(stored(1, 2))
            await until(lambda: node.match(1) == 32)
            assert node.trust is Trust.EXACT
            assert publisher.asked == []


async def test_replies_that_a_publisher_drops_are_asked_for_again():
    hasty = HastyReplay([stored(name, 4) for name in range(3000)], queue=200)
    hasty.start()
    try:
        async with WirePublisher() as publisher:
            publisher.replay_endpoint = hasty.endpoint
            patient = SocketLimits(replay_idle_s=1.5)
            async with followed(publisher, audit_s=99.0, sockets=patient) as node:
                await until(lambda: node.trust is Trust.EXACT, within_s=40, what="all of it")
                assert node.match(0) == node.match(1500) == node.match(2999) == 64
                assert node.stream.status.cursor.applied == 3000
                assert len(hasty.asked) > 1, "nothing was dropped: the queue is too long to tell"
                assert node.stream.status.cursor.forgotten == 0
    finally:
        hasty.stop()


async def test_a_storm_leaves_the_loop_to_others():
    async with WirePublisher() as publisher:
        for name in range(400):
            await publisher.publish(stored(name, 64), live=False)
        async with followed(publisher) as node:
            rounds = 0
            while node.trust is not Trust.EXACT:
                await asyncio.sleep(0)
                rounds += 1
            assert node.match(399, 64) == 64 * SIZE
            # 25,600 blocks in turns of at most a few slices: the loop came round in between.
            assert rounds > 50


@pytest.mark.parametrize("junk", [b"", b"\xff\xff", b"\x93\x01\x02", b"x" * 1000])
async def test_junk_is_survived(junk):
    async with WirePublisher() as publisher, followed(publisher) as node:
        await node.listening()
        await publisher.publish(junk)
        await publisher.publish(stored(1, 2))
        await until(lambda: node.match(1) == 32, what="life after junk")
