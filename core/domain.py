"""Value types that every room shares: nodes, requests, decisions, outcomes.

Values are frozen and slotted; those made for every request are structs, which are cheaper to
make. Distinct ids have distinct types; wall times are aware UTC datetimes at the edges and
monotonic seconds (`now`) inside; units stand last in names.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NewType

import msgspec

if TYPE_CHECKING:
    import numpy as np

NodeId = NewType("NodeId", str)
NODE_ID = r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"
"""What ids may look like: they stand in paths of the admin API."""
RequestId = NewType("RequestId", str)
DecisionId = NewType("DecisionId", str)
Slot = NewType("Slot", int)
"""Row of a node in the fleet's arrays and its bit in the index; reused after removal."""
BlockKey = NewType("BlockKey", int)
"""Unsigned 64-bit chained hash of a block and all before it (see core.hashing)."""


class Role(enum.StrEnum):
    """What a node does: fill KV caches, generate from them, or both."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"

    @property
    def prefills(self) -> bool:
        """Whether the node takes prompts."""
        return self is not Role.DECODE

    @property
    def decodes(self) -> bool:
        """Whether the node generates tokens."""
        return self is not Role.PREFILL


class EngineKind(enum.StrEnum):
    """Engine family, which fixes the wire the node speaks."""

    VLLM = "vllm"
    SGLANG = "sglang"
    EMULATED = "emulated"
    """Our own emulated engine; speaks vLLM's wire."""


class Medium(enum.StrEnum):
    """Where a node holds a block."""

    GPU = "gpu"
    CPU = "cpu"
    DISK = "disk"


class LinkKind(enum.StrEnum):
    """Kinds of link between nodes, fastest first (S2 4.4.2)."""

    NVLINK = "nvlink"
    IB_NDR = "ib-ndr"
    IB_HDR = "ib-hdr"
    ROCE = "roce"
    TCP = "tcp"


class Trust(enum.StrEnum):
    """How far a node's cache signal can be believed."""

    EXACT = "exact"
    """Events arrive in order and predictions agree with what the engine reports."""
    APPROXIMATE = "approximate"
    """No event stream: the scheduler's own routing history stands in."""
    DEGRADED = "degraded"
    """Events were lost or predictions disagree; no credit from events until repaired."""
    OFF = "off"
    """No cache signal at all; match is always 0."""


class Health(enum.StrEnum):
    """Life of a node as probes and traffic see it."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DEAD = "dead"


class Reason(enum.StrEnum):
    """Why a node was no candidate (hard constraints, spec 3); kept in the decision."""

    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    BREAKER_OPEN = "breaker_open"
    ROLE = "role"
    MODEL = "model"
    ADAPTER = "adapter"
    CONTEXT = "context_too_long"
    QUEUE_FULL = "queue_full"
    BATCH_CAP = "batch_cap"
    KV_HEADROOM = "no_kv_headroom"
    TENANT = "tenant"
    HOTSPOT = "hotspot"
    TBT_SLO = "tbt_slo"
    NO_PATH = "no_kv_path"
    """The prompt's KV cannot get to the node, or from it to any node that generates."""
    ALREADY_TRIED = "already_tried"
    COLD_PREFIX = "cold_prefix_elsewhere"
    """Another node computes the prompt's prefix, which nobody holds yet."""


class OutcomeKind(enum.StrEnum):
    """How a request ended; each reservation is closed with exactly one."""

    OK = "ok"
    CLIENT_ABORT = "client_abort"
    ENGINE_ERROR = "engine_error"
    """The engine answered 5xx, broke the stream, or could not be reached."""
    REFUSED = "refused"
    """The engine answered 4xx: the request's own fault, never the node's."""
    TIMEOUT = "timeout"
    LOST = "lost"
    """A scheduled-elsewhere request whose owner never completed or aborted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node stands in the topology; unknown levels are empty strings."""

    host: str = ""
    rack: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventEndpoints:
    """ZMQ addresses (to connect to) of a node's KV-event publisher and its replay socket."""

    live: str
    replay: str | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One engine endpoint, or one data-parallel rank of it, as registered.

    `models` are served base model names; `adapters` maps a LoRA adapter's served name to its
    base model. Capacities are tokens and requests; 0 means not known yet (learned by the probe).
    """

    id: NodeId
    url: str
    engine: EngineKind = EngineKind.VLLM
    role: Role = Role.BOTH
    models: tuple[str, ...] = ()
    adapters: Mapping[str, str] = field(default_factory=dict)
    block_size: int = 16
    kv_capacity_tokens: int = 0
    context_tokens_max: int = 0
    batch_max: int = 256
    queue_max: int = 1024
    profile: str = "generic-7b-1gpu"
    speed: float = 1.0
    """Relative to the profile: 0.5 computes half as fast."""
    place: Place = Place()
    links: tuple[LinkKind, ...] = (LinkKind.TCP,)
    events: EventEndpoints | None = None
    dp_rank: int | None = None
    tenants: frozenset[str] = frozenset()
    """Tenants allowed on the node; empty allows all."""
    weight: float = 1.0
    can_fetch: bool = False
    """The node can pull KV blocks of a prefix from another node when told to."""
    kv_transfer: str = ""
    """Connector that moves KV between prefill and decode nodes (nixl, bootstrap, ...); nodes
    with equal non-empty values can serve one request together."""
    kv_dtype: str = "auto"
    """Dtype of the KV cache as engines name it (auto, bfloat16, fp8_e4m3, int8, ...): how many
    bytes a token has to move. auto is 16 bits, or what the engine tells."""
    mfu: float | None = None
    """Model FLOPs utilisation of prefill; None takes the profile's."""
    engine_group: str = ""
    """Nodes of one server (data-parallel ranks) share this; else empty."""
    pipeline_group: str = ""
    """Nodes with equal non-empty values can compute one prompt together, stage by stage."""
    kv_store: str = ""
    """Shared KV store behind the engine: mooncake or lmcache; empty for none."""
    kv_store_url: str = ""
    """Address of LMCache's controller, http://host:port; without it its store is only read."""
    kv_store_instance: str = ""
    """Name of the engine's LMCache instance at that controller."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the scheduler sees it: lengths, identity and hashed blocks, no text.

    keys: block size -> the chained keys of the prompt's whole blocks, for each block size in
    use by nodes of the model; empty where the prompt could not be tokenized.
    """

    id: RequestId
    model: str
    prompt_tokens: int
    keys: Mapping[int, Sequence[int]] = {}
    output_tokens_expected: int = 256
    adapter: str = ""
    tenant: str = ""
    priority: int = 0
    """Larger is more important; lower classes are shed first."""
    session: str = ""
    ttft_slo_s: float | None = None
    """None takes the tunables' limit."""
    tbt_slo_s: float | None = None
    tried: frozenset[NodeId] = frozenset()
    """Nodes that already failed this request."""

    def after_failure(self, node: NodeId) -> Request:
        """The same request with one more node to avoid."""
        return msgspec.structs.replace(self, tried=self.tried | {node})


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What the cost model expects of the chosen placement, in seconds."""

    queue_s: float
    transfer_s: float
    prefill_s: float
    tbt_s: float = 0.0
    handover_s: float = 0.0
    """The part of `transfer_s` that follows the prefill: KV on its way to the decode node."""

    @property
    def ttft_s(self) -> float:
        """Time to first token: queue, then transfer, then prefill."""
        return self.queue_s + self.transfer_s + self.prefill_s


class CandidateTable(msgspec.Struct, frozen=True, eq=False):
    """Every candidate of one selection with inputs, terms and totals (arrays of length k).

    `columns` holds the inputs a policy saw (match_tokens, queued_tokens, batch, load, queue_s,
    transfer_s, prefill_s, ...) and `terms` its named terms; `total` is what was compared, in
    the direction of `sense` ("min" or "max").
    """

    nodes: tuple[NodeId, ...]
    sense: str
    total: np.ndarray
    columns: Mapping[str, np.ndarray]
    terms: Mapping[str, np.ndarray]
    chosen: int
    """Row of the chosen candidate."""
    tied: int = 1
    """How many rows shared the best total; above 1 the seeded generator chose."""

    def ranked(self) -> list[int]:
        """Rows from best to worst total; the chosen one first among equals."""
        sign = 1.0 if self.sense == "min" else -1.0
        return sorted(
            range(len(self.nodes)), key=lambda i: (sign * float(self.total[i]), i != self.chosen)
        )


class Decision(msgspec.Struct, frozen=True, eq=False):
    """Where a request goes and why. `decode` equals `prefill` when it stays in place."""

    id: DecisionId
    request: Request
    now_s: float
    """Monotonic time of the decision."""
    policy: str
    revision: int
    prefill: NodeId
    prefill_slot: Slot
    prefill_generation: int
    decode: NodeId
    decode_slot: Slot
    decode_generation: int
    match_tokens: int
    """Leading prompt tokens held by the chosen prefill node."""
    reachable_tokens: int
    """Best match over all nodes that could serve the request: what a perfect choice reuses."""
    prefix_tokens: int
    """Tokens costed as cached: match and what is coming, or the best holder's match when blocks
    are fetched."""
    fetch_from: NodeId | None
    fetch_tokens: int
    predicted: Prediction
    candidates: CandidateTable
    excluded: Mapping[Reason, tuple[NodeId, ...]]
    decode_candidates: CandidateTable | None = None
    decode_excluded: Mapping[Reason, tuple[NodeId, ...]] = {}
    coming_tokens: int = 0
    """Prompt tokens beyond the match that earlier requests are computing on the prefill node."""
    handover_tokens: int = 0
    """Prompt tokens whose KV moves to the decode node; 0 where it stays in place."""
    signal: str = "exact"
    """Rung of the degradation ladder used: exact, approximate, ledger, round_robin."""
    notes: tuple[str, ...] = ()
    decide_s: float | None = None
    """How long it took, where the caller measured it."""
    waited_s: float = 0.0
    """How long the request waited here for a node with room before that."""

    @property
    def new_tokens(self) -> int:
        """Prompt tokens the chosen node has to compute."""
        tokens = self.request.prompt_tokens - self.prefix_tokens
        return tokens if tokens > 0 else 0

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode run on different nodes."""
        return self.prefill != self.decode


class Rejection(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Why a request was not placed, with the prediction that condemned it (spec 10)."""

    id: DecisionId
    request: Request
    now_s: float
    policy: str
    revision: int
    status: int
    """HTTP status: 429 predicted SLO miss, 503 nobody can serve, 404 unknown model, 400 bad."""
    code: str
    """Machine-readable: predicted_ttft_slo, predicted_tbt_slo, no_candidates, unknown_model, ..."""
    message: str
    retry_after_s: float = 0.0
    predicted: Prediction | None = None
    reachable_tokens: int = 0
    candidates: CandidateTable | None = None
    excluded: Mapping[Reason, tuple[NodeId, ...]] = {}
    decide_s: float | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What really happened to a decided request; closes its reservation.

    cached_tokens: the engine's own report of reused prompt tokens, None where it reports none.
    """

    kind: OutcomeKind
    ttft_s: float | None = None
    tbt_s: float | None = None
    """Mean of the longest 10 % of the request's token gaps (F)."""
    tpot_s: float | None = None
    """Mean token gap."""
    e2e_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    status: int | None = None
    error: str = ""
    failed_node: NodeId | None = None
    """Which node failed; None takes the one that worked on the request when it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """One reading of a node's own gauges; None where the engine does not tell."""

    running: int | None = None
    waiting: int | None = None
    waiting_tokens: int | None = None
    kv_usage: float | None = None
    """0..1, blocks held by live requests."""
    kv_capacity_tokens: int | None = None
    block_size: int | None = None
    process_start_s: float | None = None
    prompt_tokens_total: float | None = None
    cached_tokens_total: float | None = None
    preemptions_total: float | None = None
