"""The flat records that cross from the core to its store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from core.domain import NodeSpec


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One scheduling call as one row: a placement, or a rejection (`status` is set).

    Times are seconds, `at` is aware UTC. Candidates and exclusions are compact JSON
    texts (see `core.audit_json`); an empty text means there is none.
    """

    id: str
    at: datetime
    request_id: str
    model: str
    policy: str
    revision: int
    prompt_tokens: int
    output_tokens_expected: int = 0
    attempt: int = 0
    """0 for a request's first decision, 1 for its first retry, ..."""
    adapter: str = ""
    tenant: str = ""
    priority: int = 0
    session: str = ""
    """Hash of the session name; empty without a session."""
    signal: str = ""
    """Rung of the degradation ladder; empty for rejections."""
    status: int | None = None
    """HTTP status of a rejection; None where the request was placed."""
    code: str = ""
    message: str = ""
    retry_after_s: float = 0.0
    prefill_node: str | None = None
    decode_node: str | None = None
    match_tokens: int = 0
    reachable_tokens: int = 0
    prefix_tokens: int = 0
    fetch_from: str | None = None
    fetch_tokens: int = 0
    predicted_queue_s: float | None = None
    predicted_transfer_s: float | None = None
    predicted_prefill_s: float | None = None
    predicted_ttft_s: float | None = None
    predicted_tbt_s: float | None = None
    ttft_slo_s: float | None = None
    """The limit in force: the request's own, else the tunables'."""
    tbt_slo_s: float | None = None
    tied: int = 1
    notes: str = ""
    """The decision's notes, one a line."""
    excluded: str = ""
    decode_excluded: str = ""
    candidates: str = ""
    decode_candidates: str = ""
    decide_s: float | None = None
    """How long the decision took; None where it was not measured."""
    waited_s: float | None = None
    """How long the request waited here for a node with room; None where that is not known."""

    @property
    def placed(self) -> bool:
        """Whether the request was sent to a node."""
        return self.status is None


class OutcomeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a placed request ended, as one row; at most one a decision."""

    decision_id: str
    decided_at: datetime
    """When the decision was made (its `at`); aware UTC."""
    finished_at: datetime
    kind: str
    """An `OutcomeKind`."""
    ttft_s: float | None = None
    tbt_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    slo_missed: str = ""
    """Limits the observed times broke: empty, ``ttft``, ``tbt`` or ``ttft+tbt``."""
    status: int | None = None
    error: str = ""
    failed_node: str | None = None
    """Which node failed, where it was told apart from the one that worked last."""
    prefill_node: str | None = None
    """The decision's prefill node, so that latencies are known by node."""


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A transition worth keeping: breaker, trust, node life cycle. Newest ids sort last."""

    id: str
    at: datetime
    kind: str
    node: str = ""
    data: dict[str, Any] = {}


class KeptPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The redacted prompt of a decision."""

    decision_id: str
    at: datetime
    text: str


class RevisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the live configuration, made from revision `base`."""

    number: int
    base: int
    at: datetime
    author: str
    reason: str
    changes: dict[str, Any]
    """Tunable path -> [old, new]."""
    values: dict[str, Any]
    """Every tunable after the change, by path."""
    kind: str = "change"
    """What made it: start, change, rollback, scheduled, expiry, guard; or canary, which is a
    candidate that never became live."""
    detail: dict[str, Any] = {}
    """Further facts: what was rolled back, the guard's evidence, when it expires."""


class ScheduledRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A change that waits for its time, or the end of one that expires."""

    id: str
    created_at: datetime
    due_at: datetime
    until_at: datetime | None = None
    """When to take it back again; None keeps it."""
    action: str = "apply"
    """``apply`` or ``revert``."""
    author: str
    reason: str
    changes: dict[str, Any]
    """Tunable path -> value to set."""
    expected: dict[str, Any]
    """Tunable path -> value it must still have when the time comes."""
    state: str = "pending"
    """pending, done, cancelled, skipped or failed."""
    note: str = ""
    revision: int | None = None
    """The revision it made, or (revert) the one it takes back."""


class NodeWord(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator says of a node, or of the whole fleet: how it stands from now on.

    `heard` is the time of the newest word that the speaker knew of (None: it knew of none), so
    that of two who speak at once the second one learns what the first one said.
    """

    name: str
    data: Mapping[str, Any]
    at: datetime
    heard: datetime | None = None
    spec: NodeSpec | None = None
    """The node as it was stated; None for a word that leaves the registration as it is."""
    state: str = "active"
    """Life-cycle state of the registration (see `NODE_STATES`)."""
