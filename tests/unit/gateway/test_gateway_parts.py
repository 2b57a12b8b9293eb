"""Budget, flights, live statistics, sequence hashes, error bodies: pure parts of the gateway."""

import asyncio
import itertools
import math

import numpy as np
import orjson
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from core.domain import NodeId, Prediction
from core.errors import BadRequest, EngineUnreachable, Overloaded
from core.gateway.budget import WINDOW_S, RetryBudget
from core.gateway.errors import from_exception, from_fault, retry_after
from core.gateway.flights import Flights, Interrupt
from core.gateway.live import BUCKETS, STEP_S, Live, LogHistogram
from core.gateway.sequence import SequenceBook, sequence_hashes
from core.hashing import chain, root_key

# --- retry budget ------------------------------------------------------------------------------


def test_minimum_is_always_there():
    budget = RetryBudget(share=0.2, minimum=3)
    assert [budget.allow(0.0) for _ in range(5)] == [True, True, True, False, False]
    assert (budget.granted, budget.refused) == (3, 2)


def test_share_of_recent_requests():
    budget = RetryBudget(share=0.2, minimum=3)
    for n in range(100):
        budget.request(n * 0.05)
    assert sum(budget.allow(5.0) for _ in range(50)) == 20
    assert not budget.allow(5.0)
    assert budget.allow(5.0 + 2 * WINDOW_S)


@given(st.lists(st.tuples(st.floats(0, 0.5), st.booleans()), max_size=300))
def test_never_above_share_in_any_window(steps):
    budget, now, log = RetryBudget(share=0.2, minimum=3), 0.0, []
    for wait, fails in steps:
        now += wait
        budget.request(now)
        log.append((now, fails and budget.allow(now)))
    for start, _ in log:
        seen = [granted for at, granted in log if start <= at < start + WINDOW_S - 1]
        asked = [at for at, _ in log if start - WINDOW_S <= at < start + WINDOW_S]
        assert sum(seen) <= max(3, 0.2 * len(asked))


# --- flights -----------------------------------------------------------------------------------


async def waiting(flights, handled):
    number, flight = flights.enter(asyncio.current_task())
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        handled.append(flight.handled())
    finally:
        flights.leave(number)


async def started(flights, n=1):
    handled = []
    tasks = [asyncio.create_task(waiting(flights, handled)) for _ in range(n)]
    await asyncio.sleep(0)
    return tasks, handled


async def test_deadline_ends_the_wait_with_its_reason():
    flights = Flights()
    tasks, handled = await started(flights)
    next(iter(flights)).wait(5.0, Interrupt.IDLE_TIMEOUT)
    assert flights.sweep(4.9) == 0
    assert flights.sweep(5.0) == 1
    await tasks[0]
    assert handled == [Interrupt.IDLE_TIMEOUT]
    assert not tasks[0].cancelled() and not tasks[0].cancelling()
    assert len(flights) == 0


async def test_stronger_reason_replaces_a_pending_one_and_cancels_once():
    flights = Flights()
    tasks, handled = await started(flights)
    flight = next(iter(flights))
    flight.interrupt(Interrupt.NODE_DEAD)
    flight.interrupt(Interrupt.CLIENT_GONE)
    flight.interrupt(Interrupt.IDLE_TIMEOUT)
    await tasks[0]
    assert handled == [Interrupt.CLIENT_GONE]
    assert tasks[0].cancelling() == 0


async def test_foreign_cancellation_has_no_reason():
    flights = Flights()
    tasks, handled = await started(flights)
    tasks[0].cancel()
    await tasks[0]
    assert handled == [Interrupt.NONE]


async def test_a_swallowed_interrupt_is_raised_again():
    flights, seen = Flights(), []

    async def careless():
        number, flight = flights.enter(asyncio.current_task())
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("swallowed")
        try:
            flight.check()
        except asyncio.CancelledError:
            seen.append(flight.handled())
        flight.check()
        flights.leave(number)

    task = asyncio.create_task(careless())
    await asyncio.sleep(0)
    next(iter(flights)).interrupt(Interrupt.CLIENT_GONE)
    await task
    assert seen == ["swallowed", Interrupt.CLIENT_GONE]
    assert task.cancelling() == 0


async def test_only_waiting_requests_move_from_a_dead_node():
    flights = Flights()
    tasks, handled = await started(flights, 3)
    first, second, third = flights
    first.nodes, first.movable = (NodeId("a"),), True
    second.nodes, second.movable = (NodeId("a"),), False
    third.nodes, third.movable = (NodeId("b"),), True
    assert flights.node_died(NodeId("a")) == 1
    await tasks[0]
    assert handled == [Interrupt.NODE_DEAD]
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks)
    assert flights.peak == 3


# --- live statistics ---------------------------------------------------------------------------


@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_quantiles_are_right_to_a_bin(values, q):
    h = LogHistogram()
    for value in values:
        h.add(value)
    exact = sorted(values)[max(math.ceil(q * len(values)) - 1, 0)]
    assert h.quantile(q) == pytest.approx(exact, rel=0.06)
    assert h.mean == pytest.approx(sum(values) / len(values))


@given(st.lists(st.floats(1e-6, 1e3)), st.lists(st.floats(1e-6, 1e3)))
def test_merged_histograms_count_both(a, b):
    one, other, both = LogHistogram(), LogHistogram(), LogHistogram()
    for value in a:
        one.add(value)
        both.add(value)
    for value in b:
        other.add(value)
        both.add(value)
    one.merge(other)
    assert (one.bins, one.count) == (both.bins, both.count)


def test_ring_keeps_five_minutes_and_fills_holes():
    live = Live(100.0)
    live.rejected(1e-4, 101.0)
    live.rejected(1e-4, 101.0 + 3 * STEP_S)
    assert [b.decisions for b in live.buckets(118.0)] == [1, 0, 0, 1]
    assert live.window(118.0, STEP_S).decisions == 1
    assert live.window(118.0, 60.0).decisions == 2
    late = 118.0 + 10 * BUCKETS * STEP_S
    buckets = live.buckets(late)
    assert len(buckets) == BUCKETS
    assert sum(b.decisions for b in buckets) == 0
    steps = {round(b.start_s - a.start_s, 6) for a, b in itertools.pairwise(buckets)}
    assert steps == {STEP_S}
    assert buckets[-1].start_s <= late < buckets[-1].start_s + STEP_S
    assert live.total.decisions == 2


# --- sequence hashes ---------------------------------------------------------------------------

tokens_of = st.lists(st.integers(0, 2**32 - 1), max_size=64).map(lambda t: np.array(t, np.uint32))


def naive_sequence(tokens, size, seed):
    out = []
    for i in range(len(tokens) // size):
        block = b"".join(int(t).to_bytes(4, "little") for t in tokens[i * size : (i + 1) * size])
        local = xxhash.xxh3_64_intdigest(block, seed)
        if out:
            pair = out[-1].to_bytes(8, "little") + local.to_bytes(8, "little")
            local = xxhash.xxh3_64_intdigest(pair, seed)
        out.append(local)
    return out


@given(tokens_of, st.sampled_from([1, 4, 16]), st.sampled_from([0, 7]))
def test_sequence_hashes_follow_the_rfc(tokens, size, seed):
    assert sequence_hashes(tokens, size, seed=seed) == naive_sequence(tokens, size, seed)


@given(tokens_of, st.integers(0, 12))
def test_book_learns_whole_or_in_parts(tokens, cut):
    size, root = 4, root_key("m", block_size=4)
    cut = min(cut, len(tokens) // size) * size
    whole = chain(tokens, size, root)
    book = SequenceBook()
    book.learn(tokens[:cut], whole[: cut // size], size, parent=None, root=root)
    if cut:
        book.learn(tokens[cut:], whole[cut // size :], size, parent=whole[cut // size - 1], root=0)
        assert book.keys_of(root, naive_sequence(tokens, size, 0)) == whole
    other = root_key("n", block_size=4)
    assert book.keys_of(other, naive_sequence(tokens, size, 0)) == []


def test_book_is_bounded_and_ignores_unknown_parents():
    book, root = SequenceBook(entries_max=100), root_key("m", block_size=1)
    tokens = np.arange(1000, dtype=np.uint32)
    keys = chain(tokens, 1, root)
    for i in range(0, 1000, 10):
        book.learn(
            tokens[i : i + 10], keys[i : i + 10], 1, parent=keys[i - 1] if i else None, root=root
        )
        assert len(book) <= 110
    book.learn(tokens, keys, 1, parent=12345, root=0)
    assert len(book) <= 110


# --- error bodies ------------------------------------------------------------------------------


def test_our_errors_have_openais_shape():
    status, body, retry = from_exception(BadRequest("no", field="model"), request_id="r")
    error = orjson.loads(body)["error"]
    assert (status, retry) == (400, None)
    assert error == {
        "message": "no", "type": "invalid_request_error", "param": "model",
        "code": "invalid_request_error", "request_id": "r",
    }  # fmt: skip


def test_capacity_errors_say_when_to_come_back():
    status, body, retry = from_exception(Overloaded("full", retry_after_s=2.5), request_id="r")
    assert (status, retry, retry_after(retry)) == (429, 2.5, b"3")
    assert orjson.loads(body)["error"]["retry_after_s"] == 2.5


def test_unexpected_exceptions_tell_nothing():
    secret = RuntimeError("SELECT * FROM users at /srv/app/secret.py")
    status, body, _ = from_exception(secret, request_id="r-1")
    assert status == 500
    assert b"SELECT" not in body and b"/srv" not in body and b"r-1" in body


def test_faults_name_request_and_decision():
    body = from_fault(EngineUnreachable("gone"), request_id="r", decision_id="d")
    error = orjson.loads(body)["error"]
    assert (error["code"], error["decision_id"]) == ("engine_unreachable", "d")
    assert error["type"] == "server_error"


def test_prediction_is_in_rejections():
    from core.gateway.errors import prediction

    found = prediction(Prediction(queue_s=1.0, transfer_s=0.0, prefill_s=2.0, tbt_s=0.1))
    assert found["ttft_s"] == 3.0
    assert prediction(None) is None
