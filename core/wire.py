"""Schemas of the admin API: the one thing the console and other clients import from the core.

Requests refuse unknown fields; answers ignore them when read, so that an older client keeps
working. Times are aware UTC, durations seconds unless the name ends otherwise, shares 0..1.
Routes (all under ``/admin/v1``, JSON):

=======  ==============================  =================================================
method   path                            body -> answer
=======  ==============================  =================================================
GET      /state                          -> FleetState
GET      /nodes                          -> NodeList
POST     /nodes                          NodeRegistration -> NodeView (201; 409 duplicate)
GET      /nodes/{id}                     -> NodeView
DELETE   /nodes/{id}                     -> Done
POST     /nodes/{id}/drain, /undrain     ActionReason -> NodeView
POST     /nodes/{id}/breaker             BreakerAction -> NodeView
GET      /decisions                      query: see DecisionQuery -> DecisionPage
GET      /decisions/{id}                 id, unique prefix of one, or request id -> DecisionDetail
GET      /series                         query: window=live|minutes, from, to -> Series
GET      /tunables                       -> TunablesView
PUT      /tunables                       TunablesChange -> TunablesView (409 stale, 422 field)
GET      /policies                       -> PolicyList
GET      /cache/hot                      query: limit -> HotPrefixes
GET      /cache/tree                     query: root, budget -> CacheTree
=======  ==============================  =================================================

Errors are ``{"error": {"message", "type", "param", "code"}}`` (`ErrorBody`); outside the
prefix, ``GET /health/live``, ``/health/ready``, ``/health`` (`HealthView`) and ``/metrics``.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from core.domain import EngineKind, Health, LinkKind, OutcomeKind, Role, Trust

API_PREFIX = "/admin/v1"

Number = float | int


class Answer(BaseModel):
    """Base of everything the API sends; unknown fields are ignored when read."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Ask(BaseModel):
    """Base of everything the API takes; unknown fields are an error that names them."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorDetail(Answer):
    """What went wrong, in the shape OpenAI clients read."""

    message: str
    type: str = ""
    param: str | None = None
    """The field or header at fault."""
    code: str | int | None = None
    retry_after_s: float | None = None
    prediction: dict[str, float] | None = None
    """Seconds the cost model expected (queue_s, transfer_s, prefill_s, ttft_s, tbt_s)."""
    decision_id: str | None = None
    request_id: str | None = None


class ErrorBody(Answer):
    """Every error answer of ours."""

    error: ErrorDetail


class Done(Answer):
    """An act that has nothing else to report."""

    ok: bool = True
    message: str = ""


# --- fleet -----------------------------------------------------------------------------------


class PlaceView(Answer):
    """Where a node stands; unknown levels are empty."""

    host: str = ""
    rack: str = ""
    zone: str = ""


class BreakerView(Answer):
    """State of a node's breaker."""

    state: str = "closed"
    """closed, open, half_open."""
    reason: str = ""
    manual: bool = False
    until_s: float | None = None
    """Seconds until it may try again; None while closed."""
    consecutive_failures: int = 0


class NodeLoad(Answer):
    """What the scheduler believes is on a node now (ledger) and what the node said itself."""

    load: float = 0.0
    """load(n), 0..1."""
    queued_tokens: float = 0.0
    """Q: uncached prefill tokens queued or running."""
    batch: float = 0.0
    """B: running plus waiting requests."""
    queue_s: float = 0.0
    """Predicted wait until a new prompt could start."""
    inflight: int = 0
    """Requests reserved by this scheduler and not ended."""
    decoding: int = 0
    decoding_tokens: float = 0.0
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    telemetry_age_s: float | None = None
    """Age of the node's last reading; None before the first."""


class NodeView(Answer):
    """One node: what was registered or discovered, and its state now."""

    id: str
    url: str
    engine: EngineKind
    role: Role
    models: list[str] = []
    adapters: dict[str, str] = {}
    block_size: int = 0
    kv_capacity_tokens: int = 0
    context_tokens_max: int = 0
    batch_max: int = 0
    queue_max: int = 0
    profile: str = ""
    speed: float = 1.0
    place: PlaceView = PlaceView()
    links: list[LinkKind] = []
    events: bool = False
    """Whether the node has an event stream configured or discovered."""
    dp_rank: int | None = None
    tenants: list[str] = []
    health: Health = Health.UNKNOWN
    trust: Trust = Trust.OFF
    trust_reason: str = ""
    draining: bool = False
    eligible: bool = False
    """Whether a new request could go there now (healthy, not draining, breaker allows)."""
    generation: int = 0
    """Grows at each restart of the engine."""
    breaker: BreakerView = BreakerView()
    load: NodeLoad = NodeLoad()
    cached_blocks: int = 0
    cached_tokens: int = 0
    decisions: int = 0
    """Decisions for this node since the service started."""
    ttft_p50_s: float | None = None
    """Of the last minutes; None without finished requests."""
    ttft_p99_s: float | None = None
    hit_reported: float | None = None
    """Cached share of prompt tokens as the engine reported it, last minutes."""
    warnings: list[str] = []
    """What an operator should know: token mismatch, lost events, stale readings."""


class NodeList(Answer):
    """All nodes, in the order of registration."""

    nodes: list[NodeView]


class Quantiles(Answer):
    """Percentiles of a sample of `count` values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


class Totals(Answer):
    """The fleet in one line; rates and percentiles over the last minute unless said."""

    nodes: int = 0
    healthy: int = 0
    eligible: int = 0
    draining: int = 0
    ejected: int = 0
    panic: bool = False
    """Too few nodes left: breakers are ignored."""
    inflight: int = 0
    running: int = 0
    waiting: int = 0
    queued_tokens: float = 0.0
    cached_blocks: int = 0
    decisions: int = 0
    """Since the service started."""
    rejections: int = 0
    requests_per_s: float = 0.0
    rejected_share: float | None = None
    error_share: float | None = None
    """Engine errors and time-outs among finished requests."""
    ttft_s: Quantiles | None = None
    tbt_s: Quantiles | None = None
    ttft_slo_s: float = 0.0
    tbt_slo_s: float = 0.0
    ttft_margin: float | None = None
    """(limit - p99) / limit; negative means missed. None without finished requests."""
    tbt_margin: float | None = None
    hit_achieved: float | None = None
    """Matched tokens on the chosen nodes over prompt tokens."""
    hit_reachable: float | None = None
    """Best match anywhere over prompt tokens: what a perfect choice would reuse."""
    hit_reported: float | None = None
    """Cached tokens reported by engines over prompt tokens of those requests."""
    goodput_per_s: float = 0.0
    """Finished requests per second that met both limits."""


class ServiceView(Answer):
    """The scheduler process itself."""

    version: str = ""
    started_at: datetime
    uptime_s: float
    loop_lag_ms: float = 0.0
    """How late the event loop ran its last heartbeat."""
    loop_lag_max_ms: float = 0.0
    """Worst of the last minute."""
    decision_p50_us: float | None = None
    decision_p99_us: float | None = None
    records_queued: int = 0
    records_dropped: int = 0
    records_written: int = 0
    store_ok: bool = True
    store_error: str = ""
    degradation: dict[str, int] = {}
    """Decisions per rung of the ladder: exact, approximate, ledger, round_robin."""
    counters: dict[str, float] = {}
    """Everything else counted, by name."""


class FleetState(Answer):
    """GET /state: one consistent look at everything live."""

    at: datetime
    policy: str
    policy_formula: str = ""
    revision: int
    totals: Totals
    service: ServiceView
    nodes: list[NodeView]
    models: list[str] = []
    problems: list[str] = []
    """Sentences for a person, worst first; empty when all is well."""


class EventsAsk(Ask):
    """ZMQ addresses to connect to (tcp only)."""

    live: str
    replay: str | None = None
    topic: str = ""


class PlaceAsk(Ask):
    """Topology of a node; leave unknown levels empty."""

    host: str = ""
    rack: str = ""
    zone: str = ""


class NodeRegistration(Ask):
    """POST /nodes. Everything but id and url can be discovered from the engine."""

    id: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")
    url: str = Field(min_length=8, max_length=2048)
    engine: EngineKind = EngineKind.VLLM
    role: Role = Role.BOTH
    models: list[str] = []
    adapters: dict[str, str] = {}
    block_size: int | None = Field(default=None, ge=1, le=4096)
    kv_capacity_tokens: int = Field(default=0, ge=0)
    context_tokens_max: int = Field(default=0, ge=0)
    batch_max: int = Field(default=256, ge=1, le=1_000_000)
    queue_max: int = Field(default=1024, ge=0, le=1_000_000)
    profile: str = "generic-7b-1gpu"
    speed: float = Field(default=1.0, gt=0.0, le=1000.0)
    place: PlaceAsk = PlaceAsk()
    links: list[LinkKind] = [LinkKind.TCP]
    events: EventsAsk | None = None
    dp_rank: int | None = Field(default=None, ge=0, le=4095)
    tenants: list[str] = []


class ActionReason(Ask):
    """Why an operator does something; kept in the event log."""

    reason: str = Field(default="", max_length=500)
    author: str = Field(default="", max_length=128)


class BreakerAction(Ask):
    """POST /nodes/{id}/breaker."""

    action: Literal["trip", "reset"]
    reason: str = Field(min_length=3, max_length=500)
    author: str = Field(default="", max_length=128)
    seconds: float | None = Field(default=None, gt=0, le=86_400)
    """How long a manual trip holds; None until it is reset."""


# --- decisions -------------------------------------------------------------------------------


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
    tied: int = 1
    retries: int = 0
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
    candidates: list[CandidateView] = []
    excluded: dict[str, list[str]] = {}
    """Reason -> nodes that were no candidates."""


class DecisionDetail(Answer):
    """GET /decisions/{id}: the record and why it came out so."""

    row: DecisionRow
    prefill: SelectionView
    decode: SelectionView | None = None
    explanation: str
    """The same as plain text, as `conductor explain` prints it."""
    notes: list[str] = []


# --- series ----------------------------------------------------------------------------------


class SeriesPoint(Answer):
    """One step of time; None where there was nothing to measure."""

    at: datetime
    requests: int = 0
    """Decided, including rejected."""
    rejected: int = 0
    finished: int = 0
    errors: int = 0
    """Engine errors and time-outs."""
    aborted: int = 0
    ttft_s: Quantiles | None = None
    tbt_s: Quantiles | None = None
    hit_achieved: float | None = None
    hit_reachable: float | None = None
    hit_reported: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    inflight: int | None = None
    queued_tokens: float | None = None
    per_node: dict[str, int] = {}
    """Decisions per prefill node."""
    load: dict[str, float] = {}
    """load(n) per node at the end of the step (live window only)."""


class Series(Answer):
    """GET /series: `live` = last five minutes from memory, `minutes` = stored, per minute."""

    window: str
    step_s: float
    points: list[SeriesPoint]
    ttft_slo_s: float = 0.0
    tbt_slo_s: float = 0.0


# --- tunables --------------------------------------------------------------------------------


class TunableView(Answer):
    """One live parameter with its bounds."""

    path: str
    value: Any
    default: Any
    unit: str = ""
    doc: str = ""
    source: str = ""
    low: float | None = None
    high: float | None = None
    choices: list[Any] = []


class RevisionView(Answer):
    """One applied change."""

    revision: int
    base: int
    at: datetime
    author: str = ""
    reason: str = ""
    changes: dict[str, list[Any]] = {}
    """Path -> [old, new]."""


class TunablesView(Answer):
    """GET /tunables; history is newest first."""

    revision: int
    policy: str
    items: list[TunableView]
    history: list[RevisionView] = []


class TunablesChange(Ask):
    """PUT /tunables: all changes together or none; refused with 409 when `base` is not current."""

    base: int = Field(ge=0)
    changes: dict[str, Any] = Field(min_length=1)
    reason: str = Field(min_length=3, max_length=500)
    author: str = Field(default="", max_length=128)


class PolicyView(Answer):
    """One policy."""

    name: str
    sense: str
    source: str
    formula: str
    leaves_out: str = ""


class PolicyList(Answer):
    """GET /policies."""

    live: str
    policies: list[PolicyView]


# --- cache -----------------------------------------------------------------------------------


class HotPrefixView(Answer):
    """A prefix that is asked for often. Keys are 16 hex digits."""

    key: str
    blocks: int
    tokens: int
    rate_per_s: float
    hits: float = 0.0
    holders: list[str] = []


class HotPrefixes(Answer):
    """GET /cache/hot, hottest first."""

    prefixes: list[HotPrefixView]


class TreeCellView(Answer):
    """A cell of the cache tree: a run of blocks without forks, or "others (n)"."""

    key: str
    parent: str
    """Empty for the root."""
    label: str = ""
    depth_tokens: int = 0
    blocks: int = 0
    tokens: int = 0
    holders: int = 0
    hits: float = 0.0
    age_s: float | None = None


class CacheTree(Answer):
    """GET /cache/tree: at most `budget` cells, largest first within their parent."""

    cells: list[TreeCellView]
    entries: int = 0
    """Unique blocks in the index."""
    entries_max: int = 0
    memory_bytes: int = 0


# --- health ----------------------------------------------------------------------------------


class HealthView(Answer):
    """GET /health/ready (200 or 503) and /health."""

    status: Literal["ok", "degraded", "starting", "stopping", "no_nodes"]
    ready: bool
    version: str = ""
    nodes: int = 0
    eligible: int = 0
    problems: list[str] = []
