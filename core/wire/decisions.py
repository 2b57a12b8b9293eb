"""Decisions, their candidates and outcomes."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from core.domain import OutcomeKind
from core.wire.base import Answer, Ask


class OutcomeView(Answer):
    """How a request ended."""

    kind: OutcomeKind
    status: int | None = None
    error: str = ""
    ttft_s: float | None = None
    tbt_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    slo_missed: str = ""
    """Limits the observed times broke: empty, ttft, tbt or ttft+tbt."""
    no_ttft: str = ""
    """Why `ttft_s` is not known; empty where it is."""
    no_tbt: str = ""
    """Why `tbt_s` is not known; empty where it is."""
    finished_at: datetime | None = None


class DecisionRow(Answer):
    """One line of the Decisions table; `outcome` is None while the request runs."""

    id: str
    at: datetime
    request_id: str
    model: str
    adapter: str = ""
    tenant: str = ""
    policy: str
    revision: int
    signal: str = "exact"
    routed: bool
    """False for a rejection; then `status` and `code` say which."""
    status: int = 200
    code: str = ""
    message: str = ""
    prompt_tokens: int
    output_tokens_expected: int = 0
    prefill_node: str = ""
    decode_node: str = ""
    match_tokens: int = 0
    reachable_tokens: int = 0
    prefix_tokens: int = 0
    fetch_from: str = ""
    fetch_tokens: int = 0
    predicted_queue_s: float = 0.0
    predicted_transfer_s: float = 0.0
    predicted_prefill_s: float = 0.0
    predicted_ttft_s: float = 0.0
    predicted_tbt_s: float = 0.0
    decide_s: float | None = None
    """How long the decision took; None where it was not recorded."""
    waited_s: float | None = None
    """How long the request waited here for a node with room."""
    tied: int = 1
    retries: int = 0
    ttft_slo_s: float | None = None
    """The limit that was in force."""
    tbt_slo_s: float | None = None
    outcome: OutcomeView | None = None


class DecisionPage(Answer):
    """A page, newest first. `next` is the cursor of the following page, None at the end."""

    rows: list[DecisionRow]
    next: str | None = None


class DecisionQuery(Ask):
    """Filters of GET /decisions, as query parameters; all optional, joined by AND."""

    since: datetime | None = None
    until: datetime | None = None
    node: str | None = None
    """Prefill or decode node."""
    policy: str | None = None
    model: str | None = None
    tenant: str | None = None
    revision: int | None = Field(default=None, ge=0, le=2**31 - 1)
    outcome: OutcomeKind | Literal["open", "rejected"] | None = None
    code: str | None = None
    below_best: bool = False
    """Only decisions that chose less than the best match."""
    slo_missed: bool = False
    id: str | None = None
    """Decision id or its beginning, or a request id."""
    limit: int = Field(default=50, ge=1, le=500)
    cursor: str | None = None


class CandidateView(Answer):
    """One candidate of a selection, best first."""

    rank: int
    node: str
    total: float
    chosen: bool
    inputs: dict[str, float]
    terms: dict[str, float]
    why_not: str = ""
    """Why it lost against the chosen one; empty for the chosen one."""


class SelectionView(Answer):
    """A whole selection (prefill or decode)."""

    sense: str
    """min or max: which total wins."""
    formula: str = ""
    tied: int = 1
    size: int = 0
    """How many candidates there were; the best 16 are listed, and the chosen one."""
    candidates: list[CandidateView] = []
    excluded: dict[str, list[str]] = {}
    """Reason -> nodes that were no candidates."""


class DecisionDetail(Answer):
    """GET /decisions/{id}: the record and why it came out so."""

    row: DecisionRow
    verdict: str = ""
    """One sentence: where it went, or why it was refused."""
    missed_match: str = ""
    """Why less than the best match was taken; empty where it was taken."""
    prefill: SelectionView
    decode: SelectionView | None = None
    explanation: str
    """The same as plain text, as `conductor explain` prints it."""
    notes: list[str] = []
    prompt: PromptKeeping | None = None
    """None for callers who may not read prompts."""


class PromptKeeping(Answer):
    """Whether prompt text is kept beside decisions (`records.keep_prompts`)."""

    on: bool
    expires_at: datetime | None = None
    """When this decision's text is deleted, in the next clean-up after it."""


class PromptView(Answer):
    """GET /decisions/{id}/prompt: what is kept of it, redacted."""

    decision_id: str
    at: datetime
    text: str
    expires_at: datetime | None = None
    """As in `PromptKeeping`; None where keeping was switched off since."""
