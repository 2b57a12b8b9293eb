"""Decisions and outcomes as flat records, and the bounded queue that carries them to a sink.

`decision_record` and `outcome_record` are pure. A `Recorder` keeps their cost off the decision
path: it queues the values as they are and renders them when drained.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from core.audit_json import (
    Candidate,
    StoredCandidates,
    candidates_from_json,
    candidates_json,
    excluded_from_json,
    excluded_json,
)
from core.domain import (
    CandidateTable,
    Decision,
    NodeId,
    NodeSpec,
    Outcome,
    Prediction,
    Rejection,
    Telemetry,
)
from core.fleet.transition import TransitionEvent
from core.kept_prompts import prompt_text, redacted
from core.ports import DecisionRecord, OutcomeRecord, RecordSink
from core.tunables import Slo

__all__ = [
    "Candidate",
    "DecisionRecord",
    "OpenDecision",
    "OutcomeRecord",
    "Recorder",
    "StoredCandidates",
    "candidates_from_json",
    "candidates_json",
    "decision_record",
    "excluded_from_json",
    "excluded_json",
    "open_decision",
    "outcome_record",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDecision:
    """What an outcome must know of its decision: id, UTC time, limits in force, prefill node."""

    id: str
    at: datetime
    ttft_slo_s: float
    tbt_slo_s: float
    prefill_node: str | None = None


def decision_record(
    decision: Decision | Rejection, at: datetime, *, slo: Slo | None = None
) -> DecisionRecord:
    """The row of a decision or rejection made at `at` (aware UTC).

    `slo` gives the limits of requests that bring none (default: the tunables' defaults).
    """
    request = decision.request
    limits = open_decision(decision, at, slo=slo)
    shared: dict[str, Any] = {
        "id": decision.id,
        "at": at,
        "request_id": request.id,
        "model": request.model,
        "policy": decision.policy,
        "revision": decision.revision,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens_expected": request.output_tokens_expected,
        "attempt": len(request.tried),
        "adapter": request.adapter,
        "tenant": request.tenant,
        "priority": request.priority,
        "session": session_digest(request.session),
        "reachable_tokens": decision.reachable_tokens,
        "ttft_slo_s": limits.ttft_slo_s,
        "tbt_slo_s": limits.tbt_slo_s,
        "excluded": excluded_json(decision.excluded),
        "decide_s": _micros(decision.decide_s),
        **_predicted(decision.predicted),
        **_table("candidates", decision.candidates),
    }
    if isinstance(decision, Rejection):
        return DecisionRecord(**shared, **_rejected(decision))
    return DecisionRecord(**shared, **_placed(decision))


def open_decision(
    decision: Decision | Rejection, at: datetime, *, slo: Slo | None = None
) -> OpenDecision:
    """The handle by which the outcome of `decision` is recorded later."""
    limits, request = slo or Slo(), decision.request
    placed = decision if isinstance(decision, Decision) else None
    return OpenDecision(
        id=decision.id,
        at=at,
        ttft_slo_s=limits.ttft_s if request.ttft_slo_s is None else request.ttft_slo_s,
        tbt_slo_s=limits.tbt_s if request.tbt_slo_s is None else request.tbt_slo_s,
        prefill_node=placed.prefill if placed else None,
    )


def outcome_record(opened: OpenDecision, outcome: Outcome, finished_at: datetime) -> OutcomeRecord:
    """The row of an outcome that ended at `finished_at` (aware UTC)."""
    missed = []
    if outcome.ttft_s is not None and outcome.ttft_s > opened.ttft_slo_s:
        missed.append("ttft")
    if outcome.tbt_s is not None and outcome.tbt_s > opened.tbt_slo_s:
        missed.append("tbt")
    return OutcomeRecord(
        decision_id=opened.id,
        decided_at=opened.at,
        finished_at=finished_at,
        kind=outcome.kind.value,
        ttft_s=_micros(outcome.ttft_s),
        tbt_s=_micros(outcome.tbt_s),
        tpot_s=_micros(outcome.tpot_s),
        e2e_s=_micros(outcome.e2e_s),
        prompt_tokens=outcome.prompt_tokens,
        cached_tokens=outcome.cached_tokens,
        output_tokens=outcome.output_tokens,
        slo_missed="+".join(missed),
        status=outcome.status,
        error=outcome.error[:500],
        failed_node=outcome.failed_node,
        prefill_node=opened.prefill_node,
    )


def session_digest(session: str) -> str:
    """16 hex digits that stand for a session's name; empty for none. Names stay private."""
    if not session:
        return ""
    return hashlib.blake2b(session.encode(), digest_size=8).hexdigest()


class Recorder:
    """A bounded queue in front of a `RecordSink`, for the one event loop that decides.

    Every method but `drain` and `run` is a constant-time append that never raises; when the
    queue is full the value is dropped and counted. The arrays of a decision must not be
    written after it was handed over. Start `run` as a task, or call `drain` by hand.
    """

    def __init__(
        self,
        sink: RecordSink,
        *,
        capacity: int = 65_536,
        slo: Callable[[], Slo] = Slo,
        prompt_chars_max: int = 0,
    ) -> None:
        self._prompt_chars_max = prompt_chars_max
        self._sink = sink
        self._capacity = capacity
        self._slo = slo
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake: asyncio.Event | None = None
        self.dropped = 0
        self.failed = 0
        """Values that could not be rendered; their error is in `last_error`."""
        self.last_error = ""

    @property
    def depth(self) -> int:
        """Values waiting."""
        return len(self._queue)

    def decision(self, decision: Decision | Rejection, at: datetime) -> OpenDecision:
        """Record a decision or rejection; keep the handle for its outcome."""
        slo = self._slo()
        self._put(self._send_decision, decision, at, slo)
        return open_decision(decision, at, slo=slo)

    def outcome(self, opened: OpenDecision, outcome: Outcome, finished_at: datetime) -> None:
        """Record how a placed request ended; exactly once a decision."""
        self._put(self._send_outcome, opened, outcome, finished_at)

    def prompt(self, decision_id: str, body: Mapping[str, Any] | None, at: datetime) -> None:
        """Record a request's prompt as it may be kept; nothing where prompts are not kept."""
        chars_max = self._prompt_chars_max
        if chars_max and body is not None:
            text = prompt_text(body, chars_max)
            self._put(self._sink.put_prompt, decision_id, at, partial(redacted, text, chars_max))

    def telemetry(self, node: NodeId, at: datetime, reading: Telemetry) -> None:
        """Record one reading of a node's gauges."""
        self._put(self._sink.put_telemetry, node, at, reading)

    def event(self, kind: str, node: str, data: Mapping[str, Any], at: datetime) -> None:
        """Record a transition, e.g. kind ``breaker.opened``."""
        self._put(self._sink.put_event, kind, node, data, at)

    def transition(self, event: TransitionEvent, at: datetime) -> None:
        """Record a transition as an event of kind ``machine.after``, e.g. ``trust.degraded``."""
        data = {
            "before": event.before,
            "cause": event.cause,
            "reason": event.reason,
            "actor": event.actor,
            **event.data,
        }
        if event.until_s is not None:
            data["ends_in_s"] = round(event.until_s - event.now_s, 3)
        kept = {name: value for name, value in data.items() if value != ""}
        self.event(f"{event.machine}.{event.after}", event.node or "", kept, at)

    def node(self, spec: NodeSpec, state: str, at: datetime) -> None:
        """Record a node as registered, and its state: active, draining or removed."""
        self._put(self._sink.put_node, spec, state, at)

    def standing(self, name: str, data: Mapping[str, Any], at: datetime) -> None:
        """Record what operators last said of a node or of the fleet."""
        self._put(self._sink.put_standing, name, data, at)

    def drain(self, limit: int | None = None) -> int:
        """Render and hand on up to `limit` values (None: all); how many were taken."""
        count = len(self._queue) if limit is None else min(limit, len(self._queue))
        for _ in range(count):
            send, args = self._queue.popleft()
            try:
                send(*args)
            except Exception as error:  # one bad value must not stop the records behind it
                self.failed += 1
                self.last_error = f"{type(error).__name__}: {error}"
        return count

    async def run(self, *, interval_s: float = 0.05, slice_size: int = 32) -> None:
        """Drain for ever, in slices so that the loop stays responsive; drain all when cancelled."""
        self._wake = asyncio.Event()
        if self._queue:
            self._wake.set()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(interval_s)
                while self.drain(slice_size):
                    await asyncio.sleep(0)
        finally:
            self._wake = None
            self.drain()

    def _put(self, send: Callable[..., None], *args: Any) -> None:
        if len(self._queue) >= self._capacity:
            self.dropped += 1
            return
        self._queue.append((send, args))
        if self._wake is not None:
            self._wake.set()

    def _send_decision(self, decision: Decision | Rejection, at: datetime, slo: Slo) -> None:
        self._sink.put_decision(decision_record(decision, at, slo=slo))

    def _send_outcome(self, opened: OpenDecision, outcome: Outcome, at: datetime) -> None:
        self._sink.put_outcome(outcome_record(opened, outcome, at))


def _placed(d: Decision) -> dict[str, Any]:
    return {
        "signal": d.signal,
        "prefill_node": d.prefill,
        "decode_node": d.decode,
        "match_tokens": d.match_tokens,
        "prefix_tokens": d.prefix_tokens,
        "fetch_from": d.fetch_from,
        "fetch_tokens": d.fetch_tokens,
        "tied": d.candidates.tied,
        "notes": "\n".join(d.notes),
        "decode_excluded": excluded_json(d.decode_excluded),
        "waited_s": _micros(d.waited_s),
        "decode_candidates": candidates_json(d.decode_candidates),
    }


def _rejected(r: Rejection) -> dict[str, Any]:
    return {
        "status": r.status,
        "code": r.code,
        "message": r.message[:500],
        "retry_after_s": r.retry_after_s,
    }


def _table(name: str, table: CandidateTable | None) -> dict[str, str]:
    return {name: candidates_json(table)}


def _predicted(p: Prediction | None) -> dict[str, float | None]:
    if p is None:
        return {}
    return {
        "predicted_queue_s": _micros(p.queue_s),
        "predicted_transfer_s": _micros(p.transfer_s),
        "predicted_prefill_s": _micros(p.prefill_s),
        "predicted_ttft_s": _micros(p.ttft_s),
        "predicted_tbt_s": _micros(p.tbt_s),
    }


def _micros(seconds: float | None) -> float | None:
    return None if seconds is None else round(float(seconds), 6)
