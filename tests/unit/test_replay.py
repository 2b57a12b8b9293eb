"""Traces as real requests: prompts that share what ids share, and what the client measures."""

import asyncio

import numpy as np
import pytest
from engine_here import engine_here

from core.errors import EngineUnreachable, NotFound
from core.replay import PromptMaker, Replay, Seen, report, report_lines
from core.simulation.traces import Trace, TraceRequest

BLOCK = 64


def one(ids, *, at=0.0, tokens=None, output=4, session=""):
    return TraceRequest(
        arrival_s=at,
        prompt_tokens=len(ids) * BLOCK if tokens is None else tokens,
        output_tokens=output,
        hash_ids=list(ids),
        session=session,
    )


def trace(*requests):
    return Trace(name="t", block_tokens=BLOCK, requests=list(requests))


SHARED = trace(
    one([1, 2, 3]),
    one([1, 2, 4], at=0.2),
    one([1, 2, 3, 5], at=0.4),
    one([9], at=0.6, tokens=40),
)


def maker(salt=1, vocabulary=2000):
    return PromptMaker(BLOCK, salt=salt, vocabulary=vocabulary)


# -- prompts ------------------------------------------------------------------------------------


def test_prompts_share_exactly_the_blocks_that_their_ids_share():
    make = maker()
    a, b = make.tokens(one([1, 2, 3])), make.tokens(one([1, 2, 4, 3]))
    assert np.array_equal(a[: 2 * BLOCK], b[: 2 * BLOCK])
    assert not np.array_equal(a[2 * BLOCK :], b[2 * BLOCK : 3 * BLOCK])
    assert np.array_equal(a[2 * BLOCK :], b[3 * BLOCK :])


def test_different_ids_give_different_blocks():
    make = maker()
    blocks = {make.tokens(one([i])).tobytes() for i in range(2000)}
    assert len(blocks) == 2000


@pytest.mark.parametrize("vocabulary", [101, 300, 32_000, 200_000])
def test_tokens_stay_in_the_vocabulary_above_the_special_ones(vocabulary):
    tokens = maker(vocabulary=vocabulary).tokens(one(range(50)))
    assert tokens.dtype == np.uint32
    assert tokens.min() >= 100
    assert tokens.max() < vocabulary


def test_a_salt_makes_another_run_of_prompts():
    a, b = maker(1).tokens(one([1, 2])), maker(2).tokens(one([1, 2]))
    assert not np.array_equal(a, b)
    assert np.array_equal(a, maker(1).tokens(one([1, 2])))


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 127, 128, 500])
def test_prompts_are_as_long_as_the_trace_says(tokens):
    r = one([1, 2], tokens=tokens)
    made = maker().tokens(r)
    assert len(made) == tokens
    whole = maker().tokens(one([1, 2]))
    assert np.array_equal(made[:128], whole[:tokens])


def test_a_prompt_without_ids_has_its_length_too():
    assert len(maker().tokens(one([], tokens=70))) == 70


# -- numbers ------------------------------------------------------------------------------------


def test_time_between_tokens_is_the_mean_of_the_longest_tenth():
    assert Seen(1).tbt_s is None
    assert Seen(1, gaps_s=[0.5]).tbt_s == 0.5
    assert Seen(1, gaps_s=[0.1] * 18 + [1.0, 3.0]).tbt_s == 2.0


def test_the_report_counts_tokens_errors_and_shares():
    seen = [
        Seen(100, status=200, ttft_s=0.1, gaps_s=[0.02], cached_tokens=60, node="a"),
        Seen(300, status=200, ttft_s=0.3, gaps_s=[0.04], node="b", decode_node="d"),
        Seen(100, status=429, error="HTTP 429: slow down", node=""),
        Seen(100, error="ClientOSError: gone"),
    ]  # fmt: skip
    found = report(seen, SHARED, 12.0)
    assert (found["requests"], found["errors"], found["rejected"]) == (4, 2, 1)
    assert found["hit_ratio"] == 0.1
    assert found["hit_reported"] == 1
    assert found["per_node"] == {"a": 0.25, "b": 0.25}
    assert found["per_decode_node"] == {"d": 0.25}
    assert found["ttft_s"]["p50"] == pytest.approx(0.2)
    assert found["tbt_ms"]["p50"] == pytest.approx(30.0)
    assert set(found["error_samples"]) == {"HTTP 429: slow down", "ClientOSError: gone"}
    assert found["reachable_hit_ratio"] == pytest.approx(5 * BLOCK / (10 * BLOCK + 40), abs=1e-6)
    lines = dict(report_lines(found))
    assert lines["requests"] == "4"
    assert "rejected 1" in lines["errors"]


def test_a_report_of_nothing_is_a_report():
    found = report([], trace(), 0.0)
    assert found["requests"] == found["errors"] == 0
    assert found["hit_ratio"] == found["reachable_hit_ratio"] == 0.0
    assert list(report_lines(found))


# -- against an engine --------------------------------------------------------------------------


async def test_a_trace_is_replayed_with_its_reuse():
    done = []
    async with engine_here(block_size=16) as (url, engine):
        replay = Replay(SHARED, url + "/", speed=4.0, salt=3)
        found = await replay.run(done.append)
        assert engine.config.model == "tiny"
    assert (found["requests"], found["errors"]) == (4, 0), found["error_samples"]
    assert len(done) == 4
    # Blocks 1 2 of the second, 1 2 3 of the third; the engine computes the last token anew.
    assert found["hit_ratio"] == pytest.approx(5 * BLOCK / (10 * BLOCK + 40), abs=0.03)
    assert found["hit_reported"] == 4
    assert found["ttft_s"]["p50"] > 0
    assert all(len(s.gaps_s) >= 3 for s in replay.seen)


async def test_a_cap_on_output_is_kept():
    async with engine_here() as (url, _):
        replay = Replay(trace(one([1], output=50)), url, salt=1, output_tokens_max=2, model="tiny")
        await replay.run()
    assert replay.seen[0].error == ""
    assert len(replay.seen[0].gaps_s) <= 2


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"error_rate": 1.0, "error_status": 503}, "HTTP 503"),
        ({"drop_streams": 1, "drop_after_tokens": 1}, ""),
    ],
)
async def test_failures_are_counted_and_named(faults, says):
    async with engine_here(faults=faults) as (url, _):
        found = await Replay(trace(one([1], output=20)), url, salt=1, model="tiny").run()
    assert found["errors"] == 1
    assert says in found["error_samples"][0]


async def test_an_answer_that_does_not_parse_is_an_error_of_its_request():
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            b"data: {nonsense\n\n"
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        found = await Replay(trace(one([1])), url, salt=1, model="m").run()
    assert found["errors"] == 1
    assert "JSONDecodeError" in found["error_samples"][0]


async def test_stopping_drops_what_is_in_flight():
    async with engine_here(faults={"hang": "engine"}) as (url, _):
        slow = trace(one([1]), one([2], at=3600.0))
        replay = Replay(slow, url, salt=1, model="tiny")
        running = asyncio.create_task(replay.run())
        async with asyncio.timeout(20):
            while not replay.seen:
                await asyncio.sleep(0.01)
            replay.stop()
            found = await running
    assert found["requests"] == 1
    assert found["error_samples"] == ["stopped"]


async def test_nobody_at_the_address_is_said_plainly():
    with pytest.raises(EngineUnreachable, match="nothing answers at http://127"):
        await Replay(trace(one([1])), "http://127.0.0.1:9").run()


async def test_a_service_without_models_is_said_plainly():
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"data": []}'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(NotFound, match="no model"):
            await Replay(trace(one([1])), url).run()
