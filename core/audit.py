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
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from core.domain import (
    CandidateTable,
    Decision,
    NodeId,
    NodeSpec,
    Outcome,
    Prediction,
    Reason,
    Rejection,
    Telemetry,
)
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
    "outcome_record",
]

CANDIDATES_MAX = 16
"""Best candidates kept of one table; the chosen one is kept besides."""
EXCLUDED_NAMES_MAX = 16
"""Node names kept for one reason; the rest is a count."""

# Short names of the columns in stored JSON. Append only: stored records are read with them.
_CODES = {
    "match_tokens": "m",
    "queued_tokens": "q",
    "batch": "b",
    "load": "l",
    "queue_s": "w",
    "prefill_s": "p",
    "transfer_s": "x",
    "fetch": "f",
    "prefix_tokens": "k",
    "fetched_prefill_s": "g",
    "waiting": "a",
    "queue_max": "n",
    "compute": "c",
    "network": "o",
    "resident": "r",
    "last_picked": "z",
    "kv_usage": "u",
    "inflight_tokens": "i",
    "decode_load": "d",
    "session_hash": "s",
    "tbt_s": "t",
    "kv_tokens": "v",
    "kv_free_tokens": "y",
    "local_tokens": "e",
}
_NAMES = {code: name for name, code in _CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDecision:
    """What an outcome must know of its decision: id, UTC time and the limits in force."""

    id: str
    at: datetime
    ttft_slo_s: float
    tbt_slo_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One candidate read back: what the policy saw, its named terms, and the total."""

    node: str
    total: float
    inputs: Mapping[str, float]
    terms: Mapping[str, float]
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCandidates:
    """A candidate table read back, best first. `size` counts all, also those not kept."""

    sense: str
    size: int
    rows: tuple[Candidate, ...]


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
    return OpenDecision(
        id=decision.id,
        at=at,
        ttft_slo_s=limits.ttft_s if request.ttft_slo_s is None else request.ttft_slo_s,
        tbt_slo_s=limits.tbt_s if request.tbt_slo_s is None else request.tbt_slo_s,
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
    )


def session_digest(session: str) -> str:
    """16 hex digits that stand for a session's name; empty for none. Names stay private."""
    if not session:
        return ""
    return hashlib.blake2b(session.encode(), digest_size=8).hexdigest()


def candidates_json(table: CandidateTable | None) -> str:
    """Compact JSON of a candidate table, best first; empty for None or no candidates.

    An object: ``s`` sense, ``k`` number of all candidates where not all are kept, ``n`` nodes,
    ``c`` row of the chosen one, ``v`` totals (6 significant digits), ``i`` inputs and ``t``
    terms by column. A column is a list over the rows, or one value that holds for all; a column
    of zeros is left out; a term equal to the input of its name is the text ``=``. Floats have
    4 significant digits, whole numbers all of theirs.
    """
    if table is None or not table.nodes:
        return ""
    rows = _best_rows(table)
    inputs = _columns(table.columns, rows)
    terms = _columns(table.terms, rows)
    shape: dict[str, Any] = {
        "s": table.sense,
        "n": [table.nodes[i] for i in rows],
        "c": int(np.flatnonzero(rows == table.chosen)[0]),
        "v": _rounded(np.asarray(table.total, dtype=np.float64)[rows][None, :], 6)[0],
        "i": {_CODES.get(name, name): value for name, value in inputs.items() if value != 0},
        "t": {
            name: "=" if name in inputs and inputs[name] == value else value
            for name, value in terms.items()
        },
    }
    if len(rows) < len(table.nodes):
        shape["k"] = len(table.nodes)
    return msgspec.json.encode(shape).decode()


def candidates_from_json(text: str) -> StoredCandidates | None:
    """Read back what `candidates_json` wrote; None for an empty text."""
    if not text:
        return None
    shape = msgspec.json.decode(text)
    nodes: list[str] = shape["n"]
    inputs = {_NAMES.get(code, code): value for code, value in shape["i"].items()}
    terms = {n: inputs.get(n, 0) if v == "=" else v for n, v in shape["t"].items()}
    rows = tuple(
        Candidate(
            node=node,
            total=float(shape["v"][row]),
            inputs={name: _cell(value, row) for name, value in inputs.items()},
            terms={name: _cell(value, row) for name, value in terms.items()},
            chosen=row == shape["c"],
        )
        for row, node in enumerate(nodes)
    )
    return StoredCandidates(sense=shape["s"], size=shape.get("k", len(nodes)), rows=rows)


def excluded_json(excluded: Mapping[Reason, tuple[NodeId, ...]]) -> str:
    """Reason -> node names as compact JSON; a number at the end of a list counts the rest."""
    kept = {
        reason.value: [
            *names[:EXCLUDED_NAMES_MAX],
            *([len(names) - EXCLUDED_NAMES_MAX] if len(names) > EXCLUDED_NAMES_MAX else []),
        ]
        for reason, names in excluded.items()
        if names
    }
    return msgspec.json.encode(kept).decode() if kept else ""


def excluded_from_json(text: str) -> dict[str, tuple[list[str], int]]:
    """Reason -> (node names, number of further nodes) from what `excluded_json` wrote."""
    found: dict[str, list[Any]] = msgspec.json.decode(text) if text else {}
    return {
        reason: (
            [name for name in names if isinstance(name, str)],
            sum(count for count in names if isinstance(count, int)),
        )
        for reason, names in found.items()
    }


class Recorder:
    """A bounded queue in front of a `RecordSink`, for the one event loop that decides.

    Every method but `drain` and `run` is a constant-time append that never raises; when the
    queue is full the value is dropped and counted. The arrays of a decision must not be
    written after it was handed over. Start `run` as a task, or call `drain` by hand.
    """

    def __init__(
        self, sink: RecordSink, *, capacity: int = 65_536, slo: Callable[[], Slo] = Slo
    ) -> None:
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

    def telemetry(self, node: NodeId, at: datetime, reading: Telemetry) -> None:
        """Record one reading of a node's gauges."""
        self._put(self._sink.put_telemetry, node, at, reading)

    def event(self, kind: str, node: str, data: Mapping[str, Any], at: datetime) -> None:
        """Record a transition, e.g. kind ``breaker.opened``."""
        self._put(self._sink.put_event, kind, node, data, at)

    def node(self, spec: NodeSpec, state: str, at: datetime) -> None:
        """Record a node as registered, and its state: active, draining or removed."""
        self._put(self._sink.put_node, spec, state, at)

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


def _best_rows(table: CandidateTable) -> npt.NDArray[np.int64]:
    total = np.asarray(table.total, dtype=np.float64)
    sign = 1.0 if table.sense == "min" else -1.0
    others = np.arange(len(total)) != table.chosen
    order = np.lexsort((others, sign * total))
    best = order[:CANDIDATES_MAX]
    return best if table.chosen in best else np.append(best, table.chosen)


def _columns(columns: Mapping[str, Any], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Name -> list over rows, or one number where all rows agree."""
    if not columns:
        return {}
    matrix = np.stack([np.asarray(c, dtype=np.float64)[rows] for c in columns.values()])
    values = _rounded(matrix, 4)
    return {
        name: value[0] if all(v == value[0] for v in value) else value
        for name, value in zip(columns, values, strict=True)
    }


def _rounded(matrix: npt.NDArray[np.float64], digits: int) -> list[list[Any]]:
    """Rows as lists: whole numbers exact, others to `digits` significant digits.

    Infinities and NaN, which JSON lacks, become the texts ``inf``, ``-inf`` and ``nan``.
    """
    finite = np.isfinite(matrix)
    safe = np.where(finite, matrix, 0.0)
    whole = np.all((safe == np.rint(safe)) & (np.abs(safe) < 1e15), axis=1)
    magnitude = np.floor(np.log10(np.abs(safe), where=safe != 0, out=np.zeros_like(safe)))
    shift = digits - 1 - magnitude
    up, down = 10.0 ** np.clip(shift, 0, 22), 10.0 ** np.clip(-shift, 0, 300)
    short = np.rint(safe / down * up) / up * down
    lists = [
        (safe[i].astype(np.int64) if whole[i] else short[i]).tolist() for i in range(len(matrix))
    ]
    for i, j in np.argwhere(~finite):
        lists[i][j] = str(float(matrix[i, j]))
    return lists


def _cell(value: Any, row: int) -> float:
    return float(value[row] if isinstance(value, list) else value)
