"""Records of decisions and outcomes, their JSON texts, and the recorder in front of a sink."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.audit import (
    OpenDecision,
    Recorder,
    candidates_from_json,
    candidates_json,
    decision_record,
    excluded_from_json,
    excluded_json,
    open_decision,
    outcome_record,
)
from core.domain import (
    CandidateTable,
    Decision,
    DecisionId,
    NodeId,
    NodeSpec,
    Outcome,
    OutcomeKind,
    Prediction,
    Reason,
    Rejection,
    Request,
    RequestId,
    Slot,
    Telemetry,
)
from core.fleet.transition import TransitionEvent
from core.ports import DecisionRecord, OutcomeRecord, SinkCounters
from core.tunables import Slo

AT = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def table(size: int = 3, *, chosen: int = 0, sense: str = "min", tied: int = 1) -> CandidateTable:
    order = np.arange(size, dtype=np.float64)
    queue = 0.123456 + order
    prefill = np.full(size, 0.5)
    return CandidateTable(
        nodes=tuple(NodeId(f"p{i}") for i in range(size)),
        sense=sense,
        total=(queue + prefill) * (1 if sense == "min" else -1),
        columns={
            "match_tokens": np.arange(size, dtype=np.int64) * 16,
            "queued_tokens": order * 1000,
            "queue_s": queue,
            "prefill_s": prefill,
            "prefix_tokens": np.arange(size, dtype=np.int64) * 16,
            "fetch": np.zeros(size, np.bool_),
            "unheard_of": order + 0.5,
        },
        terms={"queue": queue, "transfer": np.zeros(size), "prefill": prefill},
        chosen=chosen,
        tied=tied,
    )


def request(**changes: object) -> Request:
    fields = {"id": RequestId("r-1"), "model": "m", "prompt_tokens": 100, "tenant": "acme"}
    return Request(**{**fields, **changes})  # type: ignore[arg-type]


def decision(**changes: object) -> Decision:
    fields = {
        "id": DecisionId("d-1"),
        "request": request(),
        "now_s": 5.0,
        "policy": "min_ttft",
        "revision": 7,
        "prefill": NodeId("p0"),
        "prefill_slot": Slot(0),
        "prefill_generation": 1,
        "decode": NodeId("d0"),
        "decode_slot": Slot(3),
        "decode_generation": 1,
        "match_tokens": 32,
        "reachable_tokens": 64,
        "prefix_tokens": 64,
        "fetch_from": NodeId("p2"),
        "fetch_tokens": 32,
        "predicted": Prediction(queue_s=0.1, transfer_s=0.02, prefill_s=0.3000001, tbt_s=0.01),
        "candidates": table(tied=2),
        "excluded": {Reason.ROLE: (NodeId("d0"),)},
        "notes": ("first", "second"),
    }
    return Decision(**{**fields, **changes})  # type: ignore[arg-type]


def rejection() -> Rejection:
    return Rejection(
        id=DecisionId("d-2"),
        request=request(tried=frozenset({NodeId("p1")}), ttft_slo_s=2.0),
        now_s=5.0,
        policy="min_ttft",
        revision=7,
        status=429,
        code="predicted_ttft_slo",
        message="too late everywhere",
        retry_after_s=3.5,
        predicted=Prediction(queue_s=9.0, transfer_s=0.0, prefill_s=1.0),
        reachable_tokens=48,
        candidates=table(),
        excluded={Reason.DRAINING: (NodeId("p9"),)},
    )


def test_decision_record_takes_every_figure_over():
    r = decision_record(decision(), AT, slo=Slo(ttft_s=4.0, tbt_s=0.05))
    assert (r.id, r.at, r.request_id, r.model, r.tenant) == ("d-1", AT, "r-1", "m", "acme")
    assert (r.policy, r.revision, r.signal, r.tied, r.attempt) == ("min_ttft", 7, "exact", 2, 0)
    assert (r.prefill_node, r.decode_node, r.fetch_from, r.fetch_tokens) == ("p0", "d0", "p2", 32)
    assert (r.match_tokens, r.reachable_tokens, r.prefix_tokens) == (32, 64, 64)
    assert (r.predicted_queue_s, r.predicted_prefill_s) == (0.1, 0.3)
    assert (r.predicted_ttft_s, r.predicted_tbt_s) == (0.42, 0.01)
    assert (r.ttft_slo_s, r.tbt_slo_s) == (4.0, 0.05)
    assert r.notes == "first\nsecond"
    assert excluded_from_json(r.excluded) == {"role": (["d0"], 0)}
    assert r.placed and r.status is None and r.code == "" and r.decode_candidates == ""


def test_rejection_record_has_status_prediction_and_no_node():
    r = decision_record(rejection(), AT)
    assert not r.placed
    assert (r.status, r.code, r.message) == (429, "predicted_ttft_slo", "too late everywhere")
    assert (r.retry_after_s, r.predicted_ttft_s, r.reachable_tokens) == (3.5, 10.0, 48)
    assert r.prefill_node is None and r.decode_node is None
    assert r.attempt == 1, "one node was tried before"
    assert r.ttft_slo_s == 2.0, "the request's own limit"
    assert r.tbt_slo_s == Slo().tbt_s


def test_session_names_stay_private():
    r = decision_record(decision(request=request(session="alice@example.org")), AT)
    assert len(r.session) == 16
    assert "alice" not in msgspec.json.encode(r).decode()
    again = decision_record(decision(request=request(session="alice@example.org")), AT)
    assert r.session == again.session


def test_a_decision_with_eight_candidates_is_below_a_kilobyte():
    r = decision_record(decision(candidates=table(8)), AT)
    assert len("".join(str(value) for value in msgspec.structs.astuple(r))) < 1000


@pytest.mark.parametrize(
    ("ttft_s", "tbt_s", "missed"),
    [(0.5, 0.01, ""), (1.5, 0.01, "ttft"), (0.5, 0.3, "tbt"), (1.5, 0.3, "ttft+tbt")],
)
def test_outcome_record_says_which_limits_were_missed(ttft_s: float, tbt_s: float, missed: str):
    opened = OpenDecision(id="d-1", at=AT, ttft_slo_s=1.0, tbt_slo_s=0.2)
    outcome = Outcome(
        kind=OutcomeKind.OK, ttft_s=ttft_s, tbt_s=tbt_s, cached_tokens=16, failed_node=NodeId("d0")
    )
    r = outcome_record(opened, outcome, AT + timedelta(seconds=2))
    assert r.slo_missed == missed
    assert (r.decision_id, r.decided_at, r.kind, r.cached_tokens) == ("d-1", AT, "ok", 16)
    assert r.failed_node == "d0"


def test_outcome_without_observations_misses_nothing_and_long_errors_are_cut():
    opened = open_decision(decision(), AT)
    r = outcome_record(opened, Outcome(kind=OutcomeKind.TIMEOUT, error="x" * 9999), AT)
    assert r.slo_missed == "" and r.ttft_s is None and len(r.error) == 500


def test_candidates_come_back_ranked_with_inputs_and_terms():
    found = candidates_from_json(candidates_json(table(3, chosen=1, tied=2)))
    assert found is not None
    assert (found.sense, found.size, found.tied) == ("min", 3, 2)
    assert [row.node for row in found.rows] == ["p0", "p1", "p2"]
    assert [row.chosen for row in found.rows] == [False, True, False]
    last = found.rows[2]
    assert last.total == 2.62346, "6 significant digits"
    assert last.inputs["queue_s"] == 2.123, "4 significant digits"
    assert last.inputs["queued_tokens"] == 2000
    assert last.inputs["match_tokens"] == last.inputs["prefix_tokens"] == 32
    assert last.inputs["unheard_of"] == 2.5, "columns without a short name keep their own"
    assert last.terms == {"queue": 2.123, "transfer": 0.0, "prefill": 0.5}
    assert "fetch" not in last.inputs, "0 throughout"


def test_equal_columns_are_stored_once():
    text = candidates_json(table(4))
    assert text.count("2.123") == 1
    assert '"queue":"=w"' in text


def test_the_chosen_one_is_kept_beside_the_sixteen_best():
    found = candidates_from_json(candidates_json(table(100, chosen=70)))
    assert found is not None and found.size == 100
    assert [row.node for row in found.rows] == [*(f"p{i}" for i in range(16)), "p70"]
    assert found.rows[-1].chosen


def test_highest_total_leads_where_the_highest_wins():
    found = candidates_from_json(candidates_json(table(5, sense="max")))
    assert found is not None
    totals = [row.total for row in found.rows]
    assert totals == sorted(totals, reverse=True)


def test_no_candidates_are_an_empty_text():
    assert candidates_json(None) == candidates_json(table(0)) == ""
    assert candidates_from_json("") is None
    assert excluded_json({}) == "" and excluded_from_json("") == {}


def test_many_excluded_nodes_are_counted():
    names = tuple(NodeId(f"n{i}") for i in range(40))
    assert excluded_from_json(excluded_json({Reason.UNHEALTHY: names})) == {
        "unhealthy": ([f"n{i}" for i in range(16)], 24)
    }


names = st.lists(
    st.text(max_size=4).map("node-".__add__) | st.integers(0, 200).map("n{:02d}".format),
    min_size=1,
    max_size=40,
    unique=True,
)


@given(st.dictionaries(st.sampled_from(list(Reason)), names))
def test_any_excluded_names_come_back(excluded):
    read = excluded_from_json(
        excluded_json({reason: tuple(map(NodeId, n)) for reason, n in excluded.items()})
    )
    assert read == {reason.value: (n[:16], max(len(n) - 16, 0)) for reason, n in excluded.items()}


def test_records_of_the_first_format_are_still_read():
    text = (
        '{"s":"max","k":9,"c":1,"e":2,"n":["a-1","a-2"],"v":[0.75,0.5],"i":{"w":[0.25,"inf"],'
        '"m":[16,32]},"t":{"queue":"=w","one":1}}'
    )
    found = candidates_from_json(text)
    assert found is not None
    assert (found.sense, found.size, found.tied) == ("max", 9, 2)
    best, other = found.rows
    assert (best.node, best.total, best.chosen, other.chosen) == ("a-1", 0.75, False, True)
    assert best.inputs == {"queue_s": 0.25, "match_tokens": 16}
    assert other.terms == {"queue": math.inf, "one": 1.0}
    old = '{"role":["d0","d1",3]}'
    assert excluded_from_json(old) == {"role": (["d0", "d1"], 3)}


numbers = st.one_of(
    st.floats(-1e300, 1e300),
    st.integers(-(10**6), 10**6).map(float),
    st.sampled_from([math.inf, -math.inf, math.nan]),
)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=24), st.data())
def test_any_table_survives_within_its_digits(rows, data):
    total, one, two = (np.array(column) for column in zip(*rows, strict=True))
    nodes = tuple(NodeId(f'n"{i}\\é') for i in range(len(rows)))
    chosen = data.draw(st.integers(0, len(rows) - 1))
    sense = data.draw(st.sampled_from(["min", "max"]))
    found = candidates_from_json(
        candidates_json(CandidateTable(nodes, sense, total, {"one": one}, {"two": two}, chosen))
    )
    assert found is not None and found.size == len(rows)
    assert len(found.rows) in (min(16, len(rows)), 17)
    assert [row.node for row in found.rows if row.chosen] == [nodes[chosen]]
    for row in found.rows:
        i = nodes.index(NodeId(row.node))
        assert _same(row.total, float(total[i]), 1e-5)
        assert _same(row.inputs.get("one", 0.0), float(one[i]), 1e-3)
        assert _same(row.terms["two"], float(two[i]), 1e-3)


def _same(read: float, written: float, relative: float) -> bool:
    if math.isnan(written):
        return math.isnan(read)
    return math.isclose(read, written, rel_tol=relative, abs_tol=0.0)


class ListSink:
    """Keeps what it is given, in order."""

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []

    def put_decision(self, record: DecisionRecord) -> None:
        self.rows.append(("decision", record.id, record.ttft_slo_s))

    def put_outcome(self, record: OutcomeRecord) -> None:
        self.rows.append(("outcome", record.decision_id, record.kind))

    def put_telemetry(self, node: str, at: datetime, reading: Telemetry) -> None:
        self.rows.append(("telemetry", node, reading.running))

    def put_event(self, kind: str, node: str, data: Mapping[str, object], at: datetime) -> None:
        self.rows.append(("event", kind, node))

    def put_node(self, spec: NodeSpec, state: str, at: datetime) -> None:
        self.rows.append(("node", spec.id, state))

    def put_standing(self, name: str, data: Mapping[str, Any], at: datetime) -> None:
        self.rows.append(("standing", name, dict(data)))

    def put_prompt(self, decision_id: str, at: datetime, render: Callable[[], str]) -> None:
        self.rows.append(("prompt", decision_id, render()))

    def counters(self) -> SinkCounters:
        return SinkCounters(queued=0, written=len(self.rows), dropped=0, failures=0)


def fill(recorder: Recorder) -> None:
    opened = recorder.decision(decision(), AT)
    recorder.outcome(opened, Outcome(kind=OutcomeKind.OK), AT)
    recorder.telemetry(NodeId("p0"), AT, Telemetry(running=3))
    recorder.event("breaker.opened", "p0", {"failures": 5}, AT)
    recorder.node(NodeSpec(id=NodeId("p0"), url="http://p0"), "active", AT)


EVERYTHING = [
    ("decision", "d-1", 9.0),
    ("outcome", "d-1", "ok"),
    ("telemetry", "p0", 3),
    ("event", "breaker.opened", "p0"),
    ("node", "p0", "active"),
]


def test_recorder_hands_on_in_order_when_drained():
    sink = ListSink()
    recorder = Recorder(sink, slo=lambda: Slo(ttft_s=9.0))
    fill(recorder)
    assert sink.rows == [] and recorder.depth == 5
    assert recorder.drain(2) == 2 and recorder.drain() == 3 and recorder.drain() == 0
    assert sink.rows == EVERYTHING


def test_transitions_become_events():
    class EventSink(ListSink):
        def put_event(self, kind: str, node: str, data: Mapping[str, object], at: datetime) -> None:
            self.rows.append((kind, node, dict(data), at))

    sink = EventSink()
    recorder = Recorder(sink)
    opened = TransitionEvent(
        now_s=10.0,
        machine="node_breaker",
        node=NodeId("p0"),
        before="closed",
        after="open",
        cause="consecutive_failures",
        until_s=40.0,
        data={"failures": 5},
    )
    recorder.transition(opened, AT)
    recorder.transition(
        TransitionEvent(now_s=1.0, machine="panic", before="off", after="on", cause="share"), AT
    )
    recorder.drain()
    causes = {"before": "closed", "cause": "consecutive_failures", "failures": 5, "ends_in_s": 30.0}
    assert sink.rows == [
        ("node_breaker.open", "p0", causes, AT),
        ("panic.on", "", {"before": "off", "cause": "share"}, AT),
    ]


def test_recorder_uses_the_limits_in_force_when_the_decision_was_made():
    sink, limits = ListSink(), [Slo(ttft_s=1.0)]
    recorder = Recorder(sink, slo=lambda: limits[0])
    recorder.decision(decision(), AT)
    limits[0] = Slo(ttft_s=2.0)
    recorder.drain()
    assert sink.rows == [("decision", "d-1", 1.0)]


def test_recorder_drops_and_counts_when_full():
    sink = ListSink()
    recorder = Recorder(sink, capacity=2)
    fill(recorder)
    assert (recorder.depth, recorder.dropped) == (2, 3)
    recorder.drain()
    assert [row[0] for row in sink.rows] == ["decision", "outcome"]


def test_one_bad_value_does_not_stop_the_records_behind_it():
    sink = ListSink()
    recorder = Recorder(sink)
    broken = CandidateTable((NodeId("p0"),), "min", np.array([1.0]), {"x": np.empty(0)}, {}, 0)
    recorder.decision(decision(candidates=broken), AT)
    recorder.event("after", "", {}, AT)
    assert recorder.drain() == 2
    assert sink.rows == [("event", "after", "")]
    assert recorder.failed == 1 and "IndexError" in recorder.last_error


async def test_recorder_task_drains_by_itself_and_flushes_when_cancelled():
    sink = ListSink()
    recorder = Recorder(sink, slo=lambda: Slo(ttft_s=9.0))
    task = asyncio.create_task(recorder.run(interval_s=0.001, slice_size=2))
    await asyncio.sleep(0)
    fill(recorder)
    async with asyncio.timeout(5):
        while recorder.depth:
            await asyncio.sleep(0.001)
    assert sink.rows == EVERYTHING
    recorder.event("last", "", {}, AT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sink.rows[-1] == ("event", "last", "")
