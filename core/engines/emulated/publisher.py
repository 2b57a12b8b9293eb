"""The two ZMQ sockets of an engine: live events (PUB) and replay (ROUTER).

Nothing polls: the live socket is written when a step ends, the replay socket is read when its
descriptor becomes readable. That descriptor signals edges only, so reads drain the socket.
"""

from __future__ import annotations

import asyncio
import logging
import struct

import zmq

from core.engines.emulated.events import NO_BATCH, Batch, EventLog, encode_seq

log = logging.getLogger(__name__)
HWM = 100_000


class EventPublisher:
    """Binds both sockets; `live_port` and `replay_port` tell where."""

    def __init__(self, host: str, *, live_port: int, replay_port: int | None, topic: str) -> None:
        self._context = zmq.Context(io_threads=1)
        self._topic = topic.encode()
        wildcard = "*" if host in ("0.0.0.0", "") else host
        self._live = self._bind(zmq.PUB, wildcard, live_port, hwm=HWM)
        self.live_port = _bound_port(self._live)
        self._replay: zmq.Socket[bytes] | None = None
        self.replay_port: int | None = None
        if replay_port is not None:
            # Replies to one question may be many; the buffer that feeds them is bounded.
            self._replay = self._bind(zmq.ROUTER, wildcard, replay_port, hwm=0)
            self.replay_port = _bound_port(self._replay)

    def _bind(self, kind: int, host: str, port: int, *, hwm: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 200)
        socket.setsockopt(zmq.SNDHWM, hwm)
        socket.bind(f"tcp://{host}:{port or '*'}")
        return socket

    def publish(self, batch: Batch) -> None:
        """Send one batch to whoever listens."""
        self._live.send_multipart((self._topic, encode_seq(batch.seq), batch.payload), zmq.NOBLOCK)

    def serve_replay(self, loop: asyncio.AbstractEventLoop, events: EventLog) -> None:
        """Answer replay questions from `events` whenever they come."""
        if self._replay is not None:
            loop.add_reader(self._replay.FD, self._drain, events)
            self._drain(events)

    def _drain(self, events: EventLog) -> None:
        assert self._replay is not None
        while int(self._replay.get(zmq.EVENTS)) & zmq.POLLIN:
            self._answer(self._replay.recv_multipart(zmq.NOBLOCK), events)

    def _answer(self, frames: list[bytes], events: EventLog) -> None:
        assert self._replay is not None
        if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
            log.warning("replay question of %d frames ignored; expected empty, start", len(frames))
            return
        peer, _, start = frames
        for batch in events.since(struct.unpack(">q", start)[0]):
            reply = (peer, b"", self._topic, encode_seq(batch.seq), batch.payload)
            self._replay.send_multipart(reply, zmq.NOBLOCK)
        self._replay.send_multipart((peer, b"", b"", NO_BATCH, b""), zmq.NOBLOCK)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close both sockets; what was published still leaves for a moment."""
        if self._replay is not None:
            loop.remove_reader(self._replay.FD)
            self._replay.close()
        self._live.close()
        self._context.term()


def _bound_port(socket: zmq.Socket[bytes]) -> int:
    endpoint = bytes(socket.get(zmq.LAST_ENDPOINT))
    return int(endpoint.rstrip(b"\0").rsplit(b":", 1)[1])
