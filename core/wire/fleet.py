"""Nodes, totals and the service itself: GET /state and /nodes; health."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from core.domain import EngineKind, Health, LinkKind, Role, Trust
from core.wire.base import Answer


class PlaceView(Answer):
    """Where a node stands; unknown levels are empty."""

    host: str = ""
    rack: str = ""
    zone: str = ""


class BreakerView(Answer):
    """State of a node's breaker, or of the global one."""

    state: str = "closed"
    """closed, open, half_open; by an operator: tripped, held (kept closed)."""
    reason: str = ""
    actor: str = ""
    """Who set it; empty where it moved by itself."""
    manual: bool = False
    until_s: float | None = None
    """Seconds until it may try again; None while closed."""
    streak: int = 0
    """Automatic openings in a row; each doubles the open time."""


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


class DrainView(Answer):
    """Why a node takes no new requests, and how far its drain has come."""

    state: Literal["cordoned", "draining", "drained"]
    """cordoned: nobody waits for its end; drained: the last request on it has ended."""
    since: datetime
    reason: str = ""
    actor: str = ""
    running: int = 0
    """Requests on it now."""
    running_at_start: int = 0
    done: bool = False
    finished_at: datetime | None = None


class NoteView(Answer):
    """What an operator left for others about a node."""

    text: str
    author: str = ""
    at: datetime


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
    kv_transfer: str = ""
    kv_dtype: str = "auto"
    can_fetch: bool = False
    weight: float = 1.0
    health: Health = Health.UNKNOWN
    trust: Trust = Trust.OFF
    trust_reason: str = ""
    draining: bool = False
    drain: DrainView | None = None
    """Who cordoned or drains it, and how far that is; None where nobody did."""
    note: NoteView | None = None
    """Maintenance note."""
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


class SignalView(Answer):
    """A node's event stream; all of it empty where the node has none."""

    endpoint: str = ""
    state: str = ""
    """unknown, live, replaying or cooling."""
    connected: bool = False
    problem: str = ""
    """What keeps the stream from being believed, in words."""
    backlog: int = 0
    """Messages and batches waiting to be worked on."""
    last_message_age_s: float | None = None
    last_number: int | None = None
    """Sequence number of the last batch."""
    counters: dict[str, int] = {}
    """Since the node was registered, by name: applied, duplicates, gaps, replays, links_lost..."""
    blocks: int = 0
    """Engine hashes known now, over all media."""
    copies: int = 0
    """Physical copies beyond the first."""
    orphan_blocks: int = 0
    """Blocks whose parent is not known (yet)."""


class FitView(Answer):
    """One cost model of a node. Errors are median relative ones, on requests that were not fitted
    to; None before enough of them could be compared."""

    source: Literal["profile", "fitted"]
    """Where the live coefficients come from."""
    observations: int
    coefficients: list[float]
    """The live ones, in s, s a unit: prefill 1, L - p, L^2 - p^2 (L tokens, p of them cached);
    time between tokens 1, b, k (b requests in the batch, k KV tokens)."""
    error: float | None = None
    profile_error: float | None = None


class CostView(Answer):
    """How a node's times are predicted, and how well."""

    prefill: FitView
    tbt: FitView


class NodeList(Answer):
    """All nodes, in the order of registration."""

    nodes: list[NodeView]


class Quantiles(Answer):
    """Percentiles of a sample of `count` values."""

    count: int
    mean: float | None
    """None where only percentiles were kept."""
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


class FiringAlert(Answer):
    """An alert that fires now, in short."""

    name: str
    severity: Literal["page", "ticket"]
    acknowledged: bool = False


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
    alerts: list[FiringAlert] = []
    breaker: BreakerView = BreakerView()
    """The global breaker: open or tripped, requests go round robin whatever the policy."""


class HealthView(Answer):
    """GET /health/ready (200 or 503) and /health."""

    status: Literal["ok", "degraded", "starting", "stopping", "no_nodes"]
    ready: bool
    version: str = ""
    nodes: int = 0
    eligible: int = 0
    problems: list[str] = []
