"""The contract of the record store, run against every database it supports."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_cases import T0, decision, keep, outcome, rejected
from sqlalchemy import event

from core.domain import EngineKind, EventEndpoints, LinkKind, NodeId, NodeSpec, Place, Telemetry
from core.errors import BadRequest, Conflict, NotFound, StoreError
from core.ports import (
    Cursor,
    DecisionQuery,
    DecisionRecord,
    OutcomeRecord,
    RecordSink,
    RecordStore,
    RevisionRecord,
    StoredDecision,
)
from storage import decisions
from storage.database import writer_engine
from storage.histogram import RELATIVE_ERROR
from storage.rollups import RollUp
from storage.store import Store, open_storage

HOSTILE = ["'", '"', "%", "_", "a%b", "'; DROP TABLE decisions; --", "\\", "é\u202e", "*"]


def numbers(rows: tuple[StoredDecision, ...]) -> list[int]:
    return [int(row.decision.id[4:]) for row in rows]


def found(store: Store, **query: Any) -> list[int]:
    return numbers(store.decisions(DecisionQuery(**query)).rows)


def test_the_two_sides_fit_the_ports(storage):
    sink: RecordSink = storage.sink
    store: RecordStore = storage.store
    assert sink.counters().available and store.counts().decisions == 0


def test_a_record_comes_back_as_it_was_put(storage):
    full = DecisionRecord(
        id="0197-x",
        at=T0 + timedelta(microseconds=123_457),
        request_id="r-é",
        model="m",
        policy="min_ttft",
        revision=3,
        prompt_tokens=2_000_000,
        output_tokens_expected=77,
        attempt=2,
        adapter="sql-lora",
        tenant="acme",
        priority=-1,
        session="0123456789abcdef",
        signal="approximate",
        status=503,
        code="no_candidates",
        message='it\'s "all" down\n',
        retry_after_s=1.5,
        prefill_node="p0",
        decode_node="d0",
        match_tokens=1,
        reachable_tokens=2,
        prefix_tokens=3,
        fetch_from="p1",
        fetch_tokens=4,
        predicted_queue_s=0.1,
        predicted_transfer_s=0.000001,
        predicted_prefill_s=1234.567891,
        predicted_ttft_s=3.0,
        predicted_tbt_s=0.0,
        ttft_slo_s=30.0,
        tbt_slo_s=0.2,
        tied=5,
        notes="one\ntwo",
        excluded='{"role":["d0"]}',
        decode_excluded='{"draining":["d1"]}',
        candidates='{"s":"min"}',
        decode_candidates='{"s":"max"}',
    )
    ended = OutcomeRecord(
        decision_id="0197-x",
        decided_at=full.at,
        finished_at=T0 + timedelta(seconds=9),
        kind="engine_error",
        ttft_s=0.5,
        tbt_s=0.02,
        tpot_s=0.01,
        e2e_s=8.0,
        prompt_tokens=2_000_000,
        cached_tokens=0,
        output_tokens=12,
        slo_missed="ttft+tbt",
        status=502,
        error="broke",
        failed_node="d0",
    )
    assert keep(storage, full, ended).decision("0197-x") == StoredDecision(full, ended)


def test_an_outcome_may_come_first_and_one_decision_has_one(storage):
    store = keep(storage, outcome(1, kind="timeout"))
    assert found(store) == []
    assert store.counts().outcomes == 1
    keep(storage, decision(1), outcome(1, kind="ok"))
    stored = store.decision("0197000001")
    assert stored.outcome is not None and stored.outcome.kind == "timeout", "the first one stays"


def test_pages_are_newest_first_and_complete(storage):
    store = keep(storage, *(decision(n) for n in random.Random(1).sample(range(25), 25)))
    seen: list[int] = []
    before: Cursor | None = None
    sizes = []
    while True:
        page = store.decisions(DecisionQuery(), before=before, limit=10)
        seen += numbers(page.rows)
        sizes.append(len(page.rows))
        if page.next is None:
            break
        before = page.next
    assert seen == list(range(24, -1, -1))
    assert sizes == [10, 10, 5]


def test_pages_split_equal_times_without_loss(storage):
    store = keep(storage, *(decision(n, at=T0) for n in range(7)))
    first = store.decisions(DecisionQuery(), limit=3)
    second = store.decisions(DecisionQuery(), before=first.next, limit=4)
    assert numbers(first.rows) + numbers(second.rows) == [6, 5, 4, 3, 2, 1, 0]
    assert second.next is None, "a page that is just full is the last one"


def test_new_decisions_do_not_disturb_paging(storage):
    store = keep(storage, *(decision(n) for n in range(6)))
    first = store.decisions(DecisionQuery(), limit=3)
    keep(storage, decision(7), decision(8))
    second = store.decisions(DecisionQuery(), before=first.next, limit=3)
    assert numbers(second.rows) == [2, 1, 0]


def test_every_filter_finds_its_own(storage):
    store = keep(
        storage,
        decision(0),
        outcome(0),
        decision(1, prefill_node="p1", decode_node="d1", policy="linear", revision=2),
        outcome(1, kind="timeout", slo_missed="ttft", prefill_node="p1"),
        decision(2, prefill_node="p1", decode_node="p1", model="n", match_tokens=10),
        outcome(2, slo_missed="tbt"),
        rejected(3, tenant="acme"),
        rejected(4, status=503, code="no_candidates"),
        decision(5, prefill_node="d1", decode_node="d1", tenant="acme"),
    )
    assert found(store) == [5, 4, 3, 2, 1, 0]
    assert found(store, node="p1") == [2, 1]
    assert found(store, node="d1") == [5, 1], "prefill or decode"
    assert found(store, policy="linear") == [1]
    assert found(store, revision=1) == [5, 4, 3, 2, 0]
    assert found(store, model="n") == [2]
    assert found(store, tenant="acme") == [5, 3]
    assert found(store, kind="ok") == [2, 0]
    assert found(store, kind="timeout") == [1]
    assert found(store, kind="client_abort") == []
    assert found(store, kind="open") == [5], "placed, not ended; rejections never are"
    assert found(store, code="*") == [4, 3]
    assert found(store, code="no_candidates") == [4]
    assert found(store, below_best_match=True) == [2], "rejections reuse nothing by nature"
    assert found(store, slo_missed=True) == [2, 1]
    assert found(store, slo_missed=True, kind="timeout") == [1]
    assert found(store, slo_missed=True, node="d1") == [1]
    assert found(store, text="r-2") == [2]
    assert found(store, text="01970000") == [5, 4, 3, 2, 1, 0]
    assert found(store, text="0197000003") == [3]
    assert found(store, start=T0 + timedelta(seconds=2), end=T0 + timedelta(seconds=4)) == [3, 2]
    assert found(store, node="p1", policy="linear", kind="timeout", slo_missed=True) == [1]
    assert found(store, node="p1", policy="linear", kind="ok") == []


def naive(rows: list[StoredDecision], q: DecisionQuery) -> list[int]:
    """The filters again, row by row."""

    def fits(d: DecisionRecord, o: OutcomeRecord | None) -> bool:
        kind = "open" if o is None and d.placed else o.kind if o else None
        return all(
            (
                q.start is None or d.at >= q.start,
                q.end is None or d.at < q.end,
                q.node is None or q.node in (d.prefill_node, d.decode_node),
                q.policy is None or d.policy == q.policy,
                q.model is None or d.model == q.model,
                q.tenant is None or d.tenant == q.tenant,
                q.revision is None or d.revision == q.revision,
                q.kind is None or kind == q.kind,
                q.code is None or (not d.placed and q.code in ("*", d.code)),
                not q.below_best_match or (d.placed and d.match_tokens < d.reachable_tokens),
                not q.slo_missed or (o is not None and o.slo_missed != ""),
            )
        )

    newest = sorted(rows, key=lambda row: (row.decision.at, row.decision.id), reverse=True)
    return numbers(tuple(row for row in newest if fits(row.decision, row.outcome)))


def mixed_rows(seed: int, count: int) -> list[StoredDecision]:
    rng = random.Random(seed)
    rows = []
    for n in range(count):
        at = T0 + timedelta(seconds=rng.randrange(30))
        if rng.random() < 0.2:
            code = rng.choice(["no_candidates", "predicted_ttft_slo"])
            rows.append(StoredDecision(rejected(n, at=at, code=code)))
            continue
        d = decision(
            n,
            at=at,
            prefill_node=rng.choice(["a", "b"]),
            decode_node=rng.choice(["a", "b", "c"]),
            policy=rng.choice(["x", "y", "min_ttft"]),
            model=rng.choice(["m", "n"]),
            tenant=rng.choice(["", "acme"]),
            revision=rng.choice([1, 2]),
            match_tokens=rng.choice([0, 600]),
        )
        kind = rng.choice(["ok", "ok", "ok", "timeout", "refused", None])
        missed = rng.choice(["", "", "ttft", "ttft+tbt"])
        told = rng.choice([d.prefill_node, d.prefill_node, None])
        o = outcome(n, decided_at=at, kind=kind, slo_missed=missed, prefill_node=told)
        rows.append(StoredDecision(d, o if kind else None))
    return rows


queries = st.builds(
    DecisionQuery,
    start=st.none() | st.integers(0, 30).map(lambda s: T0 + timedelta(seconds=s)),
    end=st.none() | st.integers(0, 30).map(lambda s: T0 + timedelta(seconds=s)),
    node=st.none() | st.sampled_from(["a", "b", "c", "z"]),
    policy=st.none() | st.sampled_from(["x", "y", "min_ttft"]),
    model=st.none() | st.sampled_from(["m", "n"]),
    kind=st.none() | st.sampled_from(["ok", "timeout", "refused", "lost", "open"]),
    code=st.none() | st.sampled_from(["*", "no_candidates"]),
    tenant=st.none() | st.sampled_from(["", "acme"]),
    revision=st.none() | st.sampled_from([1, 2]),
    below_best_match=st.booleans(),
    slo_missed=st.booleans(),
)


def test_rare_values_are_found_far_back_and_short_pages_lead_on(storage, monkeypatch, record_url):
    monkeypatch.setattr(decisions, "_WINDOW_MIN", 20)
    monkeypatch.setattr(decisions, "_WINDOW_MAX", 40)
    store = keep(
        storage,
        *(decision(n, at=T0 + timedelta(seconds=5 * n)) for n in range(1, 600)),
        decision(0, model="old", revision=7),
        decision(600, tenant="acme", model="old", at=T0 + timedelta(seconds=3_000)),
    )
    monkeypatch.setattr(decisions, "_BUDGET_S", 0.0)
    seen, pages, before = [], 0, None
    while pages == 0 or before is not None:
        page = store.decisions(DecisionQuery(model="old"), before=before)
        seen, pages, before = seen + numbers(page.rows), pages + 1, page.next
    assert seen == [600, 0] and pages > 5, "one window a page: nothing is known of the past yet"
    engine = writer_engine(record_url)
    RollUp(engine).run(budget_s=60.0)
    engine.dispose()
    first = store.decisions(DecisionQuery(model="old"))
    assert numbers(first.rows) == [600] and first.next is not None
    second = store.decisions(DecisionQuery(model="old"), before=first.next)
    assert numbers(second.rows) == [0], "straight to where the model occurs"
    assert found(store, model="old", revision=7) == [0]
    assert found(store, model="never") == []


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(query=queries, limit=st.integers(1, 20), budget_s=st.sampled_from([0.0, 10.0]))
def test_any_query_paged_equals_the_naive_filter(storage, monkeypatch, query, limit, budget_s):
    monkeypatch.setattr(decisions, "_WINDOW_MIN", 13)
    monkeypatch.setattr(decisions, "_BUDGET_S", budget_s)
    rows = mixed_rows(seed=3, count=120)
    if not storage.store.counts().decisions:
        records = [r for row in rows for r in (row.decision, row.outcome) if r is not None]
        keep(storage, *records[:150])
        engine = writer_engine(storage.store._url)
        RollUp(engine).run(budget_s=60.0)
        engine.dispose()
        keep(storage, *records[150:])
    seen: list[int] = []
    before: Cursor | None = None
    while True:
        page = storage.store.decisions(query, before=before, limit=limit)
        seen += numbers(page.rows)
        if page.next is None:
            break
        before = page.next
    assert seen == naive(rows, query)


def test_by_id_takes_a_unique_beginning(storage):
    store = keep(storage, decision(1), decision(2), decision(2, id="01970000021"))
    assert store.decision("0197000001").decision.request_id == "r-1"
    assert store.decision("01970000021").decision.id == "01970000021"
    assert store.decision("0197000002").decision.id == "0197000002", "whole id before longer ones"
    with pytest.raises(BadRequest, match="more than one") as caught:
        store.decision("0197")
    assert caught.value.field == "id"
    with pytest.raises(NotFound):
        store.decision("0198")
    with pytest.raises(BadRequest):
        store.decision("")


def test_a_request_with_retries_is_told_in_order(storage):
    store = keep(
        storage,
        decision(1, request_id="r", attempt=1),
        decision(0, request_id="r"),
        outcome(0, kind="engine_error"),
        outcome(1),
        decision(2),
    )
    tries = store.by_request("r")
    assert [(t.decision.attempt, t.outcome and t.outcome.kind) for t in tries] == [
        (0, "engine_error"),
        (1, "ok"),
    ]
    assert store.by_request("absent") == []


def test_hostile_text_is_only_text(storage):
    hostile = dict(enumerate(HOSTILE))
    kept = (decision(n, tenant=text, request_id=text) for n, text in hostile.items())
    store = keep(storage, *kept)
    for number, text in hostile.items():
        assert store.decision(f"0197{number:06d}").decision.tenant == text
        assert found(store, tenant=text) == [number]
        assert found(store, text=text) == [number]
        for field in ("node", "policy", "model", "code"):
            assert found(store, **{field: f"{text}?"}) == []
        assert store.events(kind=f"{text}*", node=text) == []


def test_limits_and_kinds_are_checked_by_name(storage):
    for limit in (0, 1001):
        with pytest.raises(BadRequest, match="limit"):
            storage.store.decisions(DecisionQuery(), limit=limit)
    with pytest.raises(BadRequest, match="kind") as caught:
        storage.store.decisions(DecisionQuery(kind="well"))
    assert caught.value.field == "kind"


def test_series_counts_sums_and_percentiles(storage):
    rng = random.Random(5)
    times = [rng.expovariate(2.0) for _ in range(50)]
    records: list[DecisionRecord | OutcomeRecord] = []
    for n, ttft_s in enumerate(times):
        records += [
            decision(n, prefill_node=f"p{n % 2}", match_tokens=100),
            outcome(
                n, ttft_s=ttft_s, tbt_s=0.01, prompt_tokens=1000, cached_tokens=90, output_tokens=7
            ),
        ]
    records += [
        rejected(50),
        decision(51, match_tokens=0),
        outcome(51, kind="timeout", slo_missed="ttft"),
        decision(52),
        outcome(52, kind="client_abort"),
        decision(60, prompt_tokens=10),
    ]
    store = keep(storage, *records)
    first, second = store.series(T0, T0 + timedelta(minutes=2))
    assert (first.start, second.start) == (T0, T0 + timedelta(minutes=1))
    assert (first.decisions, first.rejected, first.finished) == (53, 1, 52)
    assert (first.failed, first.aborted, first.slo_missed) == (1, 1, 1)
    assert (first.prompt_tokens, first.match_tokens) == (52_000, 50 * 100 + 600)
    assert first.reachable_tokens == 52 * 600
    assert (first.reported_prompt_tokens, first.cached_tokens) == (50_000, 4_500)
    assert first.output_tokens == 350
    assert first.per_node == {"p0": 27, "p1": 25}
    got = [first.ttft_p50_s, first.ttft_p90_s, first.ttft_p99_s]
    assert got == pytest.approx(list(np.quantile(times, [0.5, 0.9, 0.99])), rel=RELATIVE_ERROR)
    assert first.tbt_p50_s == pytest.approx(0.01, rel=RELATIVE_ERROR)
    assert (second.decisions, second.finished, second.ttft_p50_s) == (1, 0, None)
    assert second.prompt_tokens == 10


def test_series_of_one_node_and_another_step(storage):
    store = keep(
        storage,
        *(decision(n, prefill_node=f"p{n % 2}") for n in range(20)),
        *(outcome(n, ttft_s=float(n), prefill_node=f"p{n % 2}") for n in range(20)),
    )
    buckets = store.series(T0, T0 + timedelta(seconds=20), step_s=10, node="p1")
    assert [(b.decisions, b.finished, b.per_node) for b in buckets] == [(5, 5, {"p1": 5})] * 2
    medians = [b.ttft_p50_s for b in buckets]
    assert medians == pytest.approx([5.0, 15.0], rel=RELATIVE_ERROR)
    assert store.series(T0 - timedelta(days=1), T0) == []
    with pytest.raises(BadRequest, match="step_s"):
        store.series(T0, T0 + timedelta(days=30), step_s=1)
    with pytest.raises(BadRequest, match="step_s"):
        store.series(T0, T0 + timedelta(days=1), step_s=0)


def test_node_shares_count_placed_requests(storage):
    store = keep(
        storage,
        *(decision(n, prefill_node="a", match_tokens=n) for n in range(3)),
        decision(3, prefill_node="b"),
        rejected(4),
        decision(90, prefill_node="late"),
    )
    shares = store.node_shares(T0, T0 + timedelta(minutes=1))
    assert [(s.node, s.decisions, s.prompt_tokens, s.match_tokens) for s in shares] == [
        ("a", 3, 3000, 3),
        ("b", 1, 1000, 600),
    ]


def test_telemetry_comes_back_in_order(storage):
    reading = Telemetry(running=3, waiting=0, kv_usage=0.5, prompt_tokens_total=1e9)
    for second in range(5):
        at = T0 + timedelta(seconds=second)
        storage.sink.put_telemetry("a", at, reading)
        storage.sink.put_telemetry("b", at, Telemetry(running=second))
    assert storage.sink.flush()
    store, end = storage.store, T0 + timedelta(seconds=5)
    assert len(store.telemetry(T0, end)) == 10
    points = store.telemetry(T0 + timedelta(seconds=1), end, node="a")
    assert [p.at.second for p in points] == [1, 2, 3, 4]
    assert all(p.reading == reading and p.node == "a" for p in points)
    newest = store.telemetry(T0, end, node="b", limit=2)
    assert [p.reading.running for p in newest] == [3, 4]


def test_events_are_found_by_kind_node_and_time(storage):
    for second, (kind, node) in enumerate(
        [("breaker.opened", "a"), ("breaker.closed", "a"), ("trust.degraded", "b")]
    ):
        at = T0 + timedelta(seconds=second)
        storage.sink.put_event(kind, node, {"n": second, "deep": {"x": [1, None]}}, at)
    assert storage.sink.flush()
    store = storage.store
    assert [e.data["n"] for e in store.events()] == [2, 1, 0]
    assert [e.kind for e in store.events(kind="breaker.*")] == ["breaker.closed", "breaker.opened"]
    assert [e.kind for e in store.events(kind="breaker.opened")] == ["breaker.opened"]
    assert [e.node for e in store.events(node="b")] == ["b"]
    assert [e.data["n"] for e in store.events(start=T0 + timedelta(seconds=1), limit=1)] == [2]
    assert [e.data["n"] for e in store.events(end=T0 + timedelta(seconds=1))] == [0]
    assert store.events()[0].data["deep"] == {"x": [1, None]}


def test_nodes_come_back_whole(storage):
    spec = NodeSpec(
        id=NodeId("p0"),
        url="http://p0:8000",
        engine=EngineKind.SGLANG,
        models=("m",),
        adapters={"l": "m"},
        place=Place(host="h", rack="r"),
        links=(LinkKind.NVLINK, LinkKind.TCP),
        events=EventEndpoints(live="tcp://p0:5557"),
        tenants=frozenset({"acme", "beta"}),
    )
    storage.sink.put_node(spec, "active", T0)
    storage.sink.put_node(spec, "removed", T0 + timedelta(hours=1))
    assert storage.sink.flush()
    (node,) = storage.store.nodes()
    assert node.spec == spec and node.state == "removed"
    assert (node.first_seen_at, node.updated_at) == (T0, T0 + timedelta(hours=1))


def revision(number: int, base: int) -> RevisionRecord:
    return RevisionRecord(
        number=number,
        base=base,
        at=T0,
        author="ada",
        reason="less queueing",
        changes={"linear.alpha": [0.5, 0.7]},
        values={"policy": "linear"},
    )


def test_revisions_follow_one_another(storage):
    store = storage.store
    store.add_revision(revision(2, base=1))
    store.add_revision(revision(3, base=2))
    with pytest.raises(Conflict, match="not the newest"):
        store.add_revision(revision(4, base=2))
    with pytest.raises(Conflict, match="does not follow"):
        store.add_revision(revision(3, base=3))
    assert [r.number for r in store.revisions()] == [3, 2]
    assert store.revisions(limit=1) == [revision(3, base=2)]


def test_counts(storage):
    store = keep(storage, decision(1), decision(2), outcome(1), rejected(3))
    counts = store.counts()
    assert (counts.decisions, counts.rejections, counts.outcomes) == (3, 1, 1)
    assert counts.open == 1


def test_records_survive_a_new_start(record_url):
    with open_storage(record_url) as one:
        keep(one, decision(1), outcome(1))
    with open_storage(record_url) as two:
        keep(two, decision(2))
        assert found(two.store) == [2, 1]


def test_reading_while_the_writer_writes(storage):
    store = keep(storage, *(decision(n) for n in range(100)))
    for n in range(100, 3000):
        storage.sink.put_decision(decision(n))
        if n % 500 == 0:
            rows = store.decisions(DecisionQuery(), limit=50).rows
            assert numbers(rows) == sorted(numbers(rows), reverse=True)
    assert storage.sink.flush(60)
    assert store.counts().decisions == 3000


def test_many_threads_read_at_once(storage):
    store = keep(storage, *(decision(n) for n in range(50)))
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(found, store, node="p0") for _ in range(60)]
        assert all(answer.result() == list(range(49, -1, -1)) for answer in asked)


def test_a_store_that_is_away_says_so_and_comes_back(tmp_path):
    folder = tmp_path / "state"
    folder.write_text("a file where the folder should be")
    with open_storage(f"sqlite:///{folder / 'records.db'}") as storage:
        storage.sink.put_decision(decision(1))
        with pytest.raises(StoreError, match="cannot be read"):
            storage.store.decisions(DecisionQuery())
        with pytest.raises(StoreError):
            storage.store.add_revision(revision(2, base=1))
        folder.unlink()
        assert storage.sink.flush(30)
        assert found(storage.store) == [1]


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ({}, "ix_decisions_at_us"),
        ({"node": "p0"}, "ix_decisions_prefill_node_at_us"),
        ({"code": "*"}, "ix_decisions_rejected_at_us"),
        ({"below_best_match": True}, "ix_decisions_below_best_at_us"),
        ({"kind": "timeout"}, "ix_outcomes_failed_decided_us"),
        ({"slo_missed": True}, "ix_outcomes_slo_missed_decided_us"),
        ({"kind": "timeout", "node": "p0"}, "ix_outcomes_failed_decided_us"),
        ({"tenant": "acme"}, "ix_decisions_tenant_at_us"),
        ({"tenant": "acme", "node": "p0", "policy": "x"}, "ix_decisions_tenant_at_us"),
        ({"node": "p0", "policy": "x", "revision": 3}, "ix_decisions_policy_at_us"),
        ({"node": "p0", "policy": "min_ttft"}, "ix_decisions_prefill_node_at_us"),
        ({"policy": "x"}, "ix_decisions_policy_at_us"),
        ({"policy": "min_ttft"}, "ix_decisions_at_us"),
        ({"slo_missed": True, "node": "p0"}, "ix_outcomes_slo_missed_decided_us"),
        ({"slo_missed": True, "tenant": "a"}, "ix_outcomes_slo_missed_decided_us"),
        ({"slo_missed": True, "tenant": "a", "policy": "x"}, "ix_decisions_tenant_at_us"),
        ({"tenant": "a", "policy": "x", "node": "p0"}, "ix_decisions_tenant_at_us"),
        ({"policy": "x", "below_best_match": True}, "ix_decisions_policy_at_us"),
        ({"kind": "ok", "below_best_match": True}, "ix_decisions_below_best_at_us"),
        ({"text": "r-1"}, "ix_decisions_request_id"),
    ],
)
def test_pages_walk_the_index_meant_for_them(tmp_path, query, index):
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    with open_storage(url) as storage:
        keep(storage, *(decision(n) for n in range(50)), *(outcome(n) for n in range(50)))
        plans = _plans(storage.store, DecisionQuery(**query))
    assert f"INDEX {index} " in plans[0] + " ", plans
    assert not any("SCAN" in step and "INDEX" not in step for step in plans), plans


def test_a_walk_begins_at_the_window_not_at_the_end_of_the_range(tmp_path):
    """SQLite walks from the first bound it reads, so no statement may hold a wider one as well."""
    url = f"sqlite:///{tmp_path / 'plans.db'}"
    asked = {"node": "p0", "revision": 1, "end": T0 + timedelta(seconds=40)}
    with open_storage(url) as storage:
        keep(storage, *(decision(n) for n in range(50)))
        first = storage.store.decisions(DecisionQuery(**asked), limit=5)
        read = _statements(storage.store, DecisionQuery(**asked), before=first.next)
    assert read and all(sql.count("decisions.at_us < ?") == 2 for sql, _ in read), read
    # once as the bound, once to tell rows of the cursor's own time apart


def _plans(store: Store, query: DecisionQuery) -> list[str]:
    """SQLite's plan of the first statement that reads rows, outermost loop first."""
    sql, parameters = _statements(store, query)[0]
    with store._reader.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters)
        return [row[3] for row in plan]


def _statements(store: Store, query: DecisionQuery, **page: Any) -> list[tuple[str, Any]]:
    """Statements that read whole rows for a page, with their parameters."""
    read: list[tuple[str, Any]] = []

    def note(connection, cursor, statement, parameters, context, executemany):
        if "decisions.candidates" in statement:
            read.append((statement, parameters))

    event.listen(store._reader, "before_cursor_execute", note)
    store.decisions(query, **page)
    event.remove(store._reader, "before_cursor_execute", note)
    return read


def test_shares_group_the_newest_requests_and_say_how_far_back_they_reach(storage):
    end = T0 + timedelta(hours=1)
    store = keep(
        storage,
        *(decision(n, tenant="a" if n % 3 else "b", decode_node="d0") for n in range(9)),
        rejected(9, tenant="a"),
        outcome(0),
        outcome(1, slo_missed="ttft"),
        outcome(2, slo_missed="ttft+tbt"),
        outcome(4, kind="engine_error"),
        outcome(5, kind="client_abort"),
    )
    whole = store.shares(T0, end)
    assert (whole.decisions, whole.covered_from) == (10, T0)
    first, *rest = whole.groups
    assert (first.tenant, first.prefill_node, first.decode_node) == ("a", "p0", "d0")
    counts = (first.decisions, first.finished, first.failed, first.aborted)
    assert counts == (6, 4, 1, 1)
    assert (first.ttft_missed, first.tbt_missed, first.slo_missed) == (2, 1, 2)
    assert (first.prompt_tokens, first.match_tokens) == (6000, 3600)
    assert {(g.tenant, g.rejected, g.decisions) for g in rest} == {("a", 1, 1), ("b", 0, 3)}
    owners = store.shares(T0, end, by_node=False)
    assert (owners.decisions, owners.covered_from) == (10, T0)
    found = {(g.tenant, g.prefill_node, g.decisions, g.rejected) for g in owners.groups}
    assert found == {("a", "", 7, 1), ("b", "", 3, 0)}
    newest = store.shares(T0, end, limit=4)
    assert (newest.decisions, newest.covered_from) == (4, T0 + timedelta(seconds=6))
    nothing = store.shares(T0 - timedelta(hours=2), T0)
    assert (nothing.groups, nothing.decisions, nothing.covered_from) == ((), 0, None)
    with pytest.raises(BadRequest):
        store.shares(T0, end, limit=0)


def test_shares_of_many_pairs_of_nodes_still_add_up(storage, monkeypatch):
    monkeypatch.setattr("storage.shares.PAIRS_MAX", 3)
    store = keep(
        storage,
        *(decision(n, tenant="a", decode_node=f"d{n % 5}") for n in range(10)),
        *(outcome(n, slo_missed="ttft" if n == 9 else "") for n in range(10)),
    )
    shares = store.shares(T0, T0 + timedelta(hours=1))
    assert [(g.others, g.decode_node) for g in shares.groups] == [
        (False, "d0"), (False, "d1"), (False, "d2"), (True, ""),
    ]  # fmt: skip
    assert (shares.decisions, sum(g.decisions for g in shares.groups)) == (10, 10)
    assert [(g.decisions, g.finished, g.slo_missed) for g in shares.groups][-1] == (4, 4, 1)


def test_timings_have_what_was_promised_expected_and_observed(storage):
    store = keep(
        storage,
        decision(0, predicted_ttft_s=0.5, predicted_tbt_s=0.02, ttft_slo_s=1.0, tbt_slo_s=0.1),
        decision(1),
        decision(2),
        outcome(0, ttft_s=0.6, tbt_s=0.03),
        outcome(1, ttft_s=0.7),
        outcome(2, kind="timeout"),
    )
    found = store.timings(T0, T0 + timedelta(minutes=1))
    assert [(t.ttft_s, t.tbt_s) for t in found.requests] == [(0.7, None), (0.6, 0.03)]
    first = found.requests[-1]
    assert (first.predicted_ttft_s, first.predicted_tbt_s) == (0.5, 0.02)
    assert (first.ttft_slo_s, first.tbt_slo_s, first.prefill_node) == (1.0, 0.1, "p0")
    assert found.covered_from == T0
    assert found.complete
    newest = store.timings(T0, T0 + timedelta(minutes=1), limit=1)
    assert (newest.requests, newest.complete) == ((), False)
