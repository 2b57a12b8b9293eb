"""Connections that trickle, flood or stall, on real sockets."""

import asyncio
import json
import socket
from dataclasses import replace

import pytest
from gateway_world import MODEL, PATIENT, Engine, engines, gateway, until

LIMITS = replace(PATIENT, head_timeout_s=0.3, idle_timeout_s=0.6)


async def connect(w):
    host, port = w.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize("begun", [b"", b"POST /v1/comp", b"GET / HTTP/1.1\r\nhost: x\r\nx-a: "])
async def test_slow_heads_are_cut(begun):
    async with gateway(limits=LIMITS) as w:
        reader, writer = await connect(w)
        writer.write(begun)
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 408")
        writer.close()


async def test_a_second_head_on_the_same_connection_has_the_same_deadline():
    async with gateway(limits=LIMITS) as w:
        reader, writer = await connect(w)
        writer.write(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readexactly(15)
        writer.write(b"GET /health")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 408")
        writer.close()


async def test_answers_are_sent_at_once_on_a_socket_that_was_handed_over():
    async with gateway(limits=LIMITS) as w:
        _, writer = await connect(w)
        connections = w.server.server_state.connections
        await until(lambda: bool(connections))
        (connection,) = connections
        found = connection.transport.get_extra_info("socket")
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


UPGRADE = (
    b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)
SENT = (
    (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),  # TLS, spoken to a plain port
    (b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length : 2\r\n\r\n{}", b"400"),
    (UPGRADE, b"200"),
)


async def test_what_is_not_our_protocol_is_answered_in_our_shape():
    async with gateway(limits=replace(LIMITS, head_timeout_s=60)) as w:
        for sent, status in SENT:
            reader, writer = await connect(w)
            writer.write(sent)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert head.startswith(b"HTTP/1.1 " + status)
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            assert ("error" in body) == (status == b"400")
            writer.close()


async def test_lateness_of_before_the_first_request_is_nobodys():
    async with gateway() as w:
        upkeep = w.service.upkeep
        upkeep._lags.append(5.0)
        upkeep._due_s -= 500.0  # as if the loop had been held all that time
        upkeep.serving()
        await until(lambda: len(upkeep._lags) > 0)
        assert upkeep.worst_lag_s < 5.0
        upkeep._due_s -= 500.0
        await until(lambda: upkeep.worst_lag_s > 400.0)


async def test_endless_heads_are_cut():
    async with gateway(limits=replace(LIMITS, head_timeout_s=60)) as w:
        reader, writer = await connect(w)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nx-long: ")
        for _ in range(100):
            writer.write(b"a" * 1024)
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 431")
        writer.close()


async def test_heads_that_arrive_in_pieces_are_fine():
    async with gateway(limits=replace(LIMITS, head_timeout_s=60)) as w:
        reader, writer = await connect(w)
        for piece in (b"GET /hea", b"lth/live HTTP/1.1\r\nho", b"st: x\r\n", b"\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_stalled_clients_connection_is_dropped_and_its_buffer_with_it():
    with engines(Engine("a", "--context-max", "1000000")) as (engine,):
        async with gateway(engine.spec(), limits=LIMITS) as w:
            body = {"model": MODEL, "prompt": "x", "max_tokens": 500_000, "stream": True}
            data = json.dumps(body).encode()
            _, writer = await connect(w)
            writer.transport.pause_reading()
            length = b"content-length: %d\r\n\r\n" % len(data)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + length + data)
            await until(lambda: w.service.live.total.decisions == 1)
            await until(lambda: not w.service.conductor.ledger.open)
            await until(lambda: len(w.server.server_state.connections) <= 1)
            await w.settled()
            writer.transport.abort()
            assert "stopped reading" in w.sink.outcomes[-1].error
