"""State machines and planners under arbitrary inputs, against naive twins and invariants."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain import BlockKey, NodeId, OutcomeKind, RequestId, Slot, Trust
from core.fleet import switch, trust
from core.fleet.breaker import BreakerBoard
from core.fleet.hotspot import BUCKETS, GROUP_TABLE, Heat, HotspotDetector, Sign
from core.fleet.switch import EJECTED, MANUAL, State, Switch
from core.fleet.trust import SHOWN, TrustBoard
from core.index.types import HotPrefix
from core.plan.batching import ColdPrefixBoard, Pending, form_batches
from core.plan.budget import Bucket
from core.plan.cpp import CppModel, CppNode, plan, wanted
from core.plan.crowding import Traffic, others_delay_s
from core.plan.migration import BURST_S, MigrationNode, MigrationPlanner
from core.plan.pipeline import chunk_times, equal_cost_chunks, finish_times, layer_shares
from core.tunables import Batching, Breaker, Cpp, Hotspot, Migration, TrustRules

relaxed = settings(max_examples=50, deadline=None)
seconds = st.floats(0.0, 30.0, allow_nan=False)
steps = st.floats(0.0, 40.0, allow_nan=False)

# -- breakers --------------------------------------------------------------------------------


@relaxed
@given(st.lists(st.tuples(st.sampled_from(list(switch.Signal)), steps, seconds), max_size=60))
def test_a_switch_follows_its_table_and_never_shortens_an_operators_act(moves):
    s, now = Switch(0.0), 0.0
    for signal, wait, lasts in moves:
        now += wait
        if signal is switch.Signal.TIMER and not s.due(now):
            continue
        expected = switch.following(s.state, signal)
        state, until = s.state, s.until_s
        before = s.apply(signal, now, open_s=5.0, open_max_s=40.0, until_s=now + lasts)
        assert (before, s.state) == (state, expected)
        if state in (State.TRIPPED, State.HELD) and signal not in MANUAL and s.state is state:
            assert s.until_s == until
        if s.state is State.OPEN and state is not State.OPEN:
            assert s.until_s is not None and 4.999 <= s.until_s - now <= 40.001
        assert s.streak >= 0


acts = st.one_of(
    st.tuples(st.just("begin"), st.integers(0, 5), st.none()),
    st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from(list(OutcomeKind))),
    st.tuples(st.just("first"), st.integers(0, 5), st.none()),
    st.tuples(st.just("wait"), st.integers(0, 60), st.none()),
    st.tuples(st.just("trip"), st.integers(0, 5), st.sampled_from([None, 5.0, 50.0])),
    st.tuples(st.just("reset"), st.integers(0, 5), st.sampled_from([None, 20.0])),
    st.tuples(st.just("dead"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("replace"), st.integers(0, 5), st.none()),
)


@relaxed
@given(st.lists(acts, max_size=120), st.sampled_from([0.0, 0.34, 0.5, 1.0]))
def test_breaker_board_invariants(script, share):
    rules = Breaker(consecutive_failures=2, ejected_share_max=share, half_open_successes=2)
    board, now = BreakerBoard(rules, slots=6), 0.0
    for slot in range(6):
        board.add(Slot(slot), NodeId(f"n{slot}"), now)
    seen = {f"n{slot}": "closed" for slot in range(6)}
    open_tickets: list[tuple[int, int]] = []
    trips: dict[int, float] = {}
    for act, number, extra in script:
        slot, out_before = Slot(number % 6), board.ejected
        events: tuple = ()
        if act == "begin":
            open_tickets.append((slot, board.begin(slot)))
        elif act == "end" and open_tickets:
            owner, ticket = open_tickets.pop(number % len(open_tickets))
            events = board.record(Slot(owner), extra, now, ticket=ticket)
        elif act == "first" and open_tickets:
            owner, ticket = open_tickets[number % len(open_tickets)]
            events = board.first_byte(Slot(owner), now, ticket=ticket)
        elif act == "wait":
            now += number
            events = board.tick(now)
        elif act == "trip":
            events = board.trip(slot, now, reason="x", actor="y", for_s=extra)
            trips[slot] = math.inf if extra is None else now + extra
        elif act == "reset":
            events = board.reset(slot, now, reason="x", actor="y", hold_s=extra)
            trips.pop(slot, None)
        elif act == "dead":
            board.set_dead(slot, extra)
        elif act == "replace":
            board.remove(slot)
            board.add(slot, NodeId(f"n{slot}"), now)
            seen[f"n{slot}"] = "closed"
            trips.pop(slot, None)
        allowed = board.allowed(now)
        for event in (*events, *board.tick(now)):
            if event.machine != "node_breaker":
                continue
            assert event.node is not None and seen[event.node] == event.before
            assert event.after in switch.TABLE[State(event.before)] or event.cause.startswith("max")
            seen[event.node] = event.after
            if event.before == "closed" and event.after == "open":
                assert out_before < board.ejected_cap
        for node in range(6):
            state = board.switch(Slot(node)).state
            assert seen[f"n{node}"] == state
            if trips.get(node, -1.0) > now:
                assert state is State.TRIPPED
            if state is State.TRIPPED:
                assert not allowed[node]
            elif board.panic or state in (State.CLOSED, State.HELD):
                assert allowed[node]
            elif state is State.OPEN:
                assert not allowed[node]


@relaxed
@given(st.lists(st.sampled_from(list(OutcomeKind)), max_size=200), st.integers(2, 9))
def test_ejections_stop_at_the_cap(kinds, nodes):
    board = BreakerBoard(Breaker(consecutive_failures=1, ejected_share_max=0.5))
    for slot in range(nodes):
        board.add(Slot(slot), NodeId(str(slot)), 0.0)
    for i, kind in enumerate(kinds):
        slot = Slot(i % nodes)
        board.record(slot, kind, 1.0, ticket=board.begin(slot))
        assert board.ejected <= board.ejected_cap < nodes
        assert board.allowed(1.0)[:nodes].any()
    states = [board.switch(Slot(s)).state for s in range(nodes)]
    assert sum(s in EJECTED for s in states) == board.ejected


@relaxed
@given(st.lists(st.tuples(st.booleans(), steps), max_size=80))
def test_rate_window_equals_the_outcomes_of_its_time(outcomes):
    window, now, log = switch.RateWindow(), 0.0, []
    for failed, wait in outcomes:
        now += wait
        window.add(failed, now, 30.0)
        log.append((now, failed))
        total, bad = window.totals(now, 30.0)
        surely = [f for t, f in log if now - t <= 27.0]
        perhaps = [f for t, f in log if now - t <= 30.0]
        assert len(surely) <= total <= len(perhaps)
        assert sum(surely) <= bad <= sum(perhaps)


# -- trust -----------------------------------------------------------------------------------


trust_acts = st.one_of(
    st.tuples(st.just("signal"), st.sampled_from(list(trust.Signal)), st.just(0)),
    st.tuples(st.just("observe"), st.integers(0, 500), st.integers(0, 500)),
    st.tuples(st.just("wait"), st.integers(0, 100), st.just(0)),
)


@relaxed
@given(st.lists(trust_acts, max_size=150), st.sampled_from(list(Trust)))
def test_trust_follows_its_table_and_the_naive_window(script, start):
    board, now = TrustBoard(TrustRules(window=4, cooldown_s=10.0)), 0.0
    board.add(Slot(0), NodeId("n"), now, signal=start)
    standing, samples = board.node(Slot(0)).standing, []
    for act, a, b in script:
        events: tuple = ()
        if act == "signal":
            events = board.signal(Slot(0), a, now)
        elif act == "wait":
            now += a
            events = board.tick(now)
        else:
            if a > 16 and board.trust(Slot(0)) in (Trust.EXACT, Trust.APPROXIMATE):
                samples.append((a, a - b if b < a - 16 else 0))
            events = board.observe(Slot(0), now, predicted=a, reported=b, slack_tokens=16)
        for event in events:
            assert event.before == standing
            assert event.after in trust.TABLE[standing]
            standing = trust.Standing(event.after)
            if event.cause == "phantom_credit":
                last = samples[-4:]
                assert len(last) == 4
                assert sum(p for _, p in last) > 0.2 * sum(c for c, _ in last)
            samples.clear()
        node = board.node(Slot(0))
        assert (node.standing, len(node.samples)) == (standing, min(len(samples), 4))
        assert bool(board.credited[0]) == (SHOWN[standing] in (Trust.EXACT, Trust.APPROXIMATE))
        assert (node.until_s is not None) == (standing in trust.COOLING)


# -- hotspots --------------------------------------------------------------------------------


@relaxed
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 7), st.sets(st.integers(0, 7)), st.floats(0.0, 3.0)
        ),
        max_size=250,
    )
)
def test_hotspot_detector_invariants(placements):
    d, now, log = HotspotDetector(Hotspot(requests_min=3, trips_to_open=2), 0.0), 0.0, []
    heats: dict[str, str] = {}
    for group, chosen, holders, wait in placements:
        now += wait
        log.append((now, group))
        excluded = {g: d.excluded(g, now) for g in range(4)}
        for event in d.observe(group, now, chosen=chosen, holders=holders, nodes=8):
            if event.machine == "hotspot":
                key = event.data["group"]
                assert heats.get(key, "calm") == event.before
                assert Heat(event.after) in GROUP_TABLE[Heat(event.before)]
                heats[key] = event.after
        for g in range(4):
            after = d.excluded(g, now)
            assert after in (excluded[g], frozenset(), frozenset(holders))
            assert len(after) < 8
            assert bool(after) == (heats.get(f"{g:016x}") == "filtered")
        for seen in d.groups(now):
            surely = sum(g == seen.group and now - t <= 60 * (1 - 1 / BUCKETS) for t, g in log)
            perhaps = sum(g == seen.group and now - t <= 60 for t, g in log)
            assert surely <= seen.requests <= perhaps


def test_no_heat_without_a_row():
    assert all(len(GROUP_TABLE[heat]) == len(Sign) for heat in Heat)


# -- pipelines -------------------------------------------------------------------------------


@relaxed
@given(
    uncached=st.integers(1, 300_000),
    prefix=st.integers(0, 300_000),
    count=st.integers(1, 200),
    c1=st.floats(1e-6, 1e-3),
    c2=st.sampled_from([0.0, 1e-10, 2e-9]),
)
def test_chunks_are_whole_positive_and_even(uncached, prefix, count, c1, c2):
    count = min(count, uncached)
    chunks = equal_cost_chunks(uncached, prefix, count, c1=c1, c2=c2)
    assert (len(chunks), int(chunks.sum())) == (count, uncached)
    assert chunks.min() >= 1
    times = chunk_times((0.0, c1, c2), 1.0, prefix, chunks)
    a_token = c1 + 2 * c2 * (uncached + prefix)
    assert times.max() - times.min() <= 2.01 * a_token + 1e-9 * times.sum()


@relaxed
@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8), st.integers(8, 120))
def test_layers_are_all_given_out(speeds, layers):
    shares = layer_shares(speeds, layers)
    assert sum(shares) == layers and min(shares) >= 1
    ranked = sorted(zip(speeds, shares, strict=True))
    for (slow, fewer), (fast, more) in pairwise(ranked):
        assert fewer <= more + 1 or slow == fast


@relaxed
@given(st.data())
def test_finish_times_equal_the_naive_recurrence(data):
    stages, count = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 10))
    row = st.lists(st.floats(0.0, 5.0), min_size=count, max_size=count)
    times = [data.draw(row) for _ in range(stages)]
    handoff = [data.draw(row) for _ in range(stages)]
    ready = data.draw(st.lists(seconds, min_size=stages, max_size=stages))
    got = finish_times([np.array(t) for t in times], ready, [np.array(h) for h in handoff])
    finish: dict[tuple[int, int], float] = {}
    for s in range(stages):
        for j in range(count):
            arrival = finish[s - 1, j] + handoff[s][j] if s else 0.0
            own = finish[s, j - 1] if j else ready[s]
            finish[s, j] = max(arrival, own) + times[s][j]
            assert got[s][j] == pytest.approx(finish[s, j])


nodes_of_a_fleet = st.lists(
    st.tuples(seconds, st.integers(0, 3), st.sampled_from([1.0, 1.0, 0.5])), max_size=9
)


@relaxed
@given(
    queues=nodes_of_a_fleet,
    tokens=st.integers(1, 200_000),
    prefix=st.integers(0, 100_000),
    arrivals=st.floats(0.0, 10.0),
    slo=st.sampled_from([5.0, 30.0, 1e9]),
    group_max=st.integers(2, 6),
)
def test_every_plan_keeps_its_promises(queues, tokens, prefix, arrivals, slo, group_max):
    c1, c2 = 9.5e-5, 2.1e-9
    nodes = [
        CppNode(
            slot=i, prefill=(0.01, c1 / v, c2 / v), queue_s=q, match_tokens=min(m * 1000, prefix)
        )
        for i, (q, m, v) in enumerate(queues)
    ]
    alone = [
        n.queue_s
        + 0.01
        + n.prefill[1] * tokens
        + n.prefill[2] * ((tokens + prefix) ** 2 - prefix**2)
        for n in nodes
    ]
    single = min(alone, default=1.0)
    queue = nodes[alone.index(single)].queue_s if nodes else 0.0
    rules = Cpp(group_max=group_max)
    found = plan(
        nodes,
        uncached_tokens=tokens,
        prefix_tokens=prefix,
        source=0,
        model=CppModel(layers=80, kv_bytes_per_token=327_680, hidden_bytes_per_token=16_384),
        links=lambda _: (np.zeros(9), np.full(9, 1e-11)),
        single_queue_s=queue,
        single_ttft_s=single,
        ttft_slo_s=slo,
        rules=rules,
        traffic=Traffic(arrivals_per_s=arrivals, mean_prefill_s=1.0),
    )
    if not wanted(tokens, single, slo, rules):
        assert found is None
    if found is None:
        return
    slots = [s.slot for s in found.stages]
    assert 2 <= len(set(slots)) == len(slots) <= group_max
    assert found.gain >= rules.gain_min - 1e-9
    assert sum(found.chunks) == tokens and max(found.chunks) <= rules.chunk_tokens
    assert sum(s.layers for s in found.stages) == 80
    free = [s.queue_s for s in found.stages]
    assert max(free) - min(free) <= rules.slack_s
    assert all(s.queue_s <= s.start_s <= s.end_s <= found.ttft_s + 1e-9 for s in found.stages)
    assert found.home in slots and 0.0 <= found.bubble_share < 1.0


@relaxed
@given(
    spans=st.lists(st.tuples(seconds, seconds).map(sorted).map(tuple), max_size=6),
    more=st.tuples(seconds, seconds).map(sorted).map(tuple),
    rate=st.floats(0.0, 12.0),
    backlog=seconds,
)
def test_reserving_more_never_helps_others(spans, more, rate, backlog):
    t = Traffic(arrivals_per_s=rate, mean_prefill_s=1.0)
    base = others_delay_s(spans, nodes=8, backlog_s=backlog, traffic=t)
    extra = others_delay_s([*spans, more], nodes=8, backlog_s=backlog, traffic=t)
    assert 0.0 <= base <= extra + 1e-6 * max(extra, 1.0)
    worse = others_delay_s(spans, nodes=8, backlog_s=backlog + 1.0, traffic=t)
    assert worse >= base - 1e-9


# -- migration -------------------------------------------------------------------------------


@relaxed
@given(st.lists(st.tuples(st.floats(0.0, 1000.0), steps), max_size=60))
def test_a_bucket_never_spends_beyond_rate_and_burst(spends):
    b, now, spent, dearest = Bucket(rate_per_s=10.0, burst=100.0, now=0.0), 0.0, 0.0, 0.0
    for amount, wait in spends:
        now += wait
        if b.spend(amount, now):
            spent += amount
            dearest = max(dearest, amount)
        assert spent <= 100.0 + 10.0 * now + dearest + 1e-6


hot_prefixes = st.lists(
    st.builds(
        lambda key, tokens, rate, holders: HotPrefix(
            key=BlockKey(key), depth_blocks=tokens // 16, tokens=tokens, rate_per_s=rate, hits=1,
            holders=tuple(Slot(h) for h in sorted(holders)),
        ),
        st.integers(1, 4), st.integers(16, 9000), st.floats(0.0, 50.0), st.sets(st.integers(0, 5)),
    ),
    max_size=5, unique_by=lambda p: p.key,
)  # fmt: skip


@relaxed
@given(
    st.lists(
        st.tuples(
            hot_prefixes,
            st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5),
            steps,
            st.sampled_from(["ok", "failed", "keep", "cancel", "leave"]),
        ),
        max_size=25,
    )
)
def test_migration_keeps_its_limits(script):
    rules = Migration(replicas_max=3, budget_tokens_per_s=500.0, plans_per_minute=6)
    p, now, started, tokens = MigrationPlanner(rules, 0.0), 0.0, 0, 0
    for hot, loads, wait, end in script:
        now += wait
        nodes = [
            MigrationNode(slot=Slot(i), load=x, queue_s=20 * x, room_tokens=8000.0 * (1 - x),
                          prefill=(0.0, 1e-3, 0.0))
            for i, x in enumerate(loads)
        ]  # fmt: skip
        before = {(plan.key, plan.target) for plan in p.running}
        scan = p.scan(hot, nodes, now, move_s=lambda n, _, __: n * 1e-6)
        mean = sum(loads) / len(loads)
        for made in scan.plans:
            prefix = next(h for h in hot if h.key == made.key)
            assert (made.key, made.target) not in before
            assert made.target not in prefix.holders and made.source in prefix.holders
            assert loads[made.target] < mean and loads[made.source] > 1.2 * mean
            assert made.rate_per_s >= rules.rate_min_per_s and made.tokens >= rules.min_tokens
            assert made.benefit_s > 0 and made.copies < rules.replicas_max
        started += len(scan.plans)
        tokens += sum(plan.tokens for plan in scan.plans)
        assert started <= 6 + 6 * now / 60 + 1
        assert tokens <= 500 * (BURST_S + now) + 9000
        pairs = [(plan.key, plan.target) for plan in p.running]
        assert len(set(pairs)) == len(pairs)
        for running in p.running[:1]:
            if end in ("ok", "failed"):
                p.finished(running, now, ok=end == "ok")
            elif end == "cancel":
                p.cancel(running, now)
            elif end == "leave":
                p.forget_node(running.target)
                assert all(slot != running.target for _, slot in p.replicas)


# -- batching --------------------------------------------------------------------------------


pendings = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]), st.integers(0, 3), st.integers(0, 80), st.integers(0, 60),
        st.floats(0.0, 0.02), st.integers(0, 2),
    ),
    max_size=60,
)  # fmt: skip


@relaxed
@given(pendings, st.sampled_from([0.0, 0.9]), st.integers(1, 10))
def test_every_pending_request_ends_in_one_place(drawn, load, size_max):
    rules = Batching(enabled=True, size_max=size_max, shared_tokens_min=256)
    pending = [
        Pending(
            id=RequestId(str(i)), model=model, prompt_tokens=16 * blocks + 3, block_size=16,
            keys=[family * 1000 + b for b in range(blocks)],
            reachable_tokens=16 * min(held, blocks), arrived_s=at, priority=priority,
        )
        for i, (model, family, blocks, held, at, priority) in enumerate(drawn)
    ]  # fmt: skip
    formed = form_batches(pending, 0.02, rules=rules, load=load)
    placed = [r.id for b in formed.batches for r in b.requests]
    assert sorted(placed + [r.id for r in formed.waiting]) == sorted(r.id for r in pending)
    assert (formed.due_s == math.inf) == (not formed.waiting)
    for batch in formed.batches:
        assert 1 <= len(batch.requests) <= size_max
        assert {r.model for r in batch.requests} == {batch.model}
        if batch.group is not None:
            assert {r.keys[batch.depth_blocks - 1] for r in batch.requests} == {batch.group}
            assert all(r.reachable_tokens < 16 * batch.depth_blocks for r in batch.requests)
        ranks = [(-r.priority, r.prompt_tokens) for r in batch.requests]
        assert ranks == sorted(ranks)
    if not load:
        assert formed.waiting == ()


@relaxed
@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(0.0, 0.5)), max_size=120),
    st.integers(1, 3),
    st.integers(1, 6),
)
def test_at_most_so_many_nodes_compute_a_prefix_at_a_time(arrivals, copies_max, nodes):
    """A fleet of FIFO queues fed through the board."""
    board = ColdPrefixBoard(Batching(enabled=True, copies_max=copies_max))
    free, now = np.zeros(nodes), 0.0
    computing: dict[int, list[tuple[int, float]]] = {0: [], 1: [], 2: []}
    for family, wait in arrivals:
        now += wait
        keys = [family * 100 + b for b in range(40)]
        queue, warm, cold = np.maximum(free - now, 0.0), np.full(nodes, 0.1), np.full(nodes, 1.0)
        found = board.find(keys, now)
        slot = None
        if found is not None:
            slot = board.follow(
                found, queue_s=queue, warm_s=warm, cold_s=cold, allowed=np.ones(nodes, np.bool_)
            )
        if slot is not None:
            free[slot] = now + queue[slot] + 0.1
            continue
        slot = Slot(int(queue.argmin()))
        free[slot] = now + queue[slot] + 1.0
        board.led(keys, 32, block_size=16, slot=slot, due_s=float(free[slot]))
        computing[family].append((slot, float(free[slot])))
        busy = {s for s, until in computing[family] if until > now}
        assert len(busy) <= copies_max
