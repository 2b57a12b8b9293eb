"""A publisher that speaks the observed event wire, with the faults a test asks for."""

import asyncio
import threading
from typing import Self

import zmq
import zmq.asyncio

from core.domain import EventEndpoints

END = b"\xff" * 8


class WirePublisher:
    """PUB and ROUTER on loopback ports, buffering what it publishes.

    drop: sequence numbers that are buffered but never sent live. framing: "new" has the topic
    in replay answers, "old" has not. silent: never answer replays. forget_below: batches that
    have left the buffer.
    """

    def __init__(
        self, *, topic: str = "kv", framing: str = "new", live_port: int = 0, replay_port: int = 0
    ) -> None:
        self.topic = topic.encode()
        self.framing = framing
        self.silent = False
        self.replays = True
        self.replay_endpoint = ""
        self.forget_below = 0
        self.asked: list[int] = []
        self.next = 0
        self.buffer: list[tuple[int, bytes]] = []
        self._ports = live_port, replay_port

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._pub = self._bind(zmq.PUB, self._ports[0])
        self._router = self._bind(zmq.ROUTER, self._ports[1])
        self._ports = tuple(
            int(s.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").rsplit(b":", 1)[1])
            for s in (self._pub, self._router)
        )
        self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for socket in (self._pub, self._router):
            socket.close(linger=0)
        self._context.term()

    def _bind(self, kind: int, port: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        return socket

    @property
    def endpoints(self) -> EventEndpoints:
        live, replay = (f"tcp://127.0.0.1:{p}" for p in self._ports)
        replay = self.replay_endpoint or replay
        return EventEndpoints(
            live=live, replay=replay if self.replays else None, topic=self.topic.decode()
        )

    @property
    def ports(self) -> dict[str, int]:
        return {"live_port": self._ports[0], "replay_port": self._ports[1]}

    async def publish(self, payload: bytes, *, live: bool = True) -> int:
        sequence, self.next = self.next, self.next + 1
        self.buffer.append((sequence, payload))
        if live:
            await self.send(sequence, payload)
        return sequence

    async def drop_link(self) -> None:
        """Close the live socket, as a broken network does; the buffer stays."""
        self._pub.close(linger=0)

    def restore_link(self) -> None:
        """Publish on the same port again."""
        self._pub = self._bind(zmq.PUB, self._ports[0])

    async def send(self, sequence: int, payload: bytes) -> None:
        await self._pub.send_multipart([self.topic, sequence.to_bytes(8, "big"), payload])

    async def _serve(self) -> None:
        while True:
            peer, _, start = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if self.silent:
                continue
            for sequence, payload in list(self.buffer):
                if sequence >= max(self.asked[-1], self.forget_below):
                    await self._answer(peer, self.topic, sequence.to_bytes(8, "big"), payload)
            await self._answer(peer, b"", END, b"")

    async def _answer(self, peer: bytes, topic: bytes, sequence: bytes, payload: bytes) -> None:
        middle = [topic] if self.framing == "new" else []
        await self._router.send_multipart([peer, b"", *middle, sequence, payload])


async def until(condition, *, within_s: float = 10.0, what: str = "") -> None:
    """Poll a condition until it holds; fail with the last state where it never does."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {within_s} s: {what or condition}")
        await asyncio.sleep(0.01)


class HastyReplay(threading.Thread):
    """Answers replays as vLLM does: in one go, with a short queue whose overflow is dropped."""

    def __init__(self, batches: list[bytes], *, queue: int) -> None:
        super().__init__(daemon=True)
        self._batches = batches
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.SNDHWM, queue)
        self._router.setsockopt(zmq.SNDBUF, 4096)
        self._router.bind("tcp://127.0.0.1:*")
        self.endpoint = self._router.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        self.asked: list[int] = []
        self._stopping = False

    def run(self) -> None:
        while not self._stopping:
            if not self._router.poll(20):
                continue
            peer, _, start = self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for sequence in range(self.asked[-1], len(self._batches)):
                number = sequence.to_bytes(8, "big")
                self._router.send_multipart([peer, b"", b"t", number, self._batches[sequence]])
            self._router.send_multipart([peer, b"", b"", END, b""])

    def stop(self) -> None:
        self._stopping = True
        self.join()
        self._router.close(linger=0)
        self._context.term()
