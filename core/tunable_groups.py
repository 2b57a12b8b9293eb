"""Groups of live-tunable parameters: each value with bounds, unit, default, meaning and source.

`core.tunables` joins the groups into one tree and checks changes of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def number(
    default: float, low: float, high: float, unit: str, doc: str, source: str = "ours"
) -> Any:
    """A bounded number with its unit."""
    meta = {"low": low, "high": high, "unit": unit, "doc": doc, "source": source}
    return field(default=default, metadata=meta)


def choice(default: Any, choices: tuple[Any, ...], doc: str, source: str = "ours") -> Any:
    """One of a few values."""
    meta = {"choices": choices, "unit": "", "doc": doc, "source": source}
    return field(default=default, metadata=meta)


def flag(default: bool, doc: str, source: str = "ours") -> Any:
    """On or off."""
    return choice(default, (False, True), doc, source)


def text(default: str, doc: str, source: str = "ours") -> Any:
    """A name, checked elsewhere."""
    return field(default=default, metadata={"unit": "", "doc": doc, "source": source})


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """`linear`: alpha * M/L + beta * (1 - load)."""

    alpha: float = number(0.5, 0.0, 1.0, "", "weight of the matched share", "S1 3.1")
    beta: float = number(0.5, 0.0, 1.0, "", "weight of idleness", "S1 3.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """`weighted`: five scorers whose weights sum to 1."""

    load: float = number(0.3, 0.0, 1.0, "", "weight of 1 - load", "S2 4.4.3")
    queue: float = number(0.2, 0.0, 1.0, "", "weight of free queue share", "S2 4.4.3")
    compute: float = number(0.2, 0.0, 1.0, "", "weight of relative compute speed", "S2 4.4.3")
    network: float = number(0.15, 0.0, 1.0, "", "weight of closeness to the holder", "S2 4.4.3")
    model: float = number(0.15, 0.0, 1.0, "", "weight of the model being resident", "S2 4.4.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplicative:
    """`multiplicative`: P * max(B, 1)."""

    count_queued: bool = flag(True, "count queued tokens Q inside P", "S3 2.2; L")
    log_tokens: bool = flag(False, "use log(1 + P): very long prompts", "S3 5.1")
    network_weight: float = number(0.0, 0.0, 10.0, "", "P times 1 + w * (1 - closeness)", "S3 5.2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamo:
    """`dynamo_linear` and `dynamo_lmetric`."""

    prefill_load_scale: float = number(1.0, 0.0, 1000.0, "", "weight of prefill blocks", "Dynamo")
    block_tokens: int = number(16, 1, 1_000_000, "tokens", "the costs' unit", "Dynamo")
    credit_decay: float = number(0.0, 0.0, 1000.0, "", "match counts less on busy nodes", "Dynamo")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmdWeighted:
    """`llmd_weighted`: three scorers, normalised before weighing."""

    queue: float = number(2.0, 0.0, 100.0, "", "weight of the shortest queue", "llm-d")
    kv: float = number(2.0, 0.0, 100.0, "", "weight of free KV cache", "llm-d")
    prefix: float = number(3.0, 0.0, 100.0, "", "weight of the matched share", "llm-d")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmdDefault2026:
    """`llmd_default_2026`: prefix holders until they are saturated, then token load."""

    prefix_share_min: float = number(0.8, 0.0, 1.0, "share", "matched share that holds", "llm-d")
    penalty_s: float = number(18.0, 0.0, 3600.0, "s", "later than this: do not stay", "llm-d")
    tokens_per_s: float = number(15928.0, 1.0, 1e9, "tokens/s", "assumed prefill rate", "llm-d")
    token_load_max: float = number(4194304.0, 1.0, 1e12, "tokens", "in flight: load 1", "llm-d")


@dataclass(frozen=True, slots=True, kw_only=True)
class PstackLoadaware:
    """`pstack_loadaware`: M/L - beta * relative excess of requests."""

    beta: float = number(1.0, 0.0, 100.0, "", "weight of the excess load", "production-stack")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmgCacheAware:
    """`smg_cache_aware`: best match while the fleet is balanced."""

    spread_max: int = number(32, 0, 1_000_000, "requests", "max - min still balanced", "SMG")
    ratio_max: float = number(1.1, 1.0, 1000.0, "ratio", "max / min still balanced", "SMG")
    match_share_min: float = number(0.5, 0.0, 1.0, "share", "follow a match above this", "SMG")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmLeastLoaded:
    """`vllm_least_loaded`: running + weight * waiting."""

    waiting_weight: float = number(4.0, 0.0, 1000.0, "", "a waiting request counts for", "vLLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """When a node pulls missing blocks from the best holder (F Algorithm 1)."""

    enabled: bool = flag(True, "let nodes that can fetch do so", "F Alg. 1")
    balancing_threshold: float = number(
        1.3, 1.0, 100.0, "ratio", "fetch where best match > threshold * own match", "F Alg. 1"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Latency limits used where a request brings none."""

    ttft_s: float = number(30.0, 0.001, 3600.0, "s", "time to first token", "F 5")
    tbt_s: float = number(0.2, 0.001, 60.0, "s", "time between tokens", "F 5")
    classes: str = text("", "limits by model and tenant, e.g. `tenant=gold* ttft_s=2 tbt_s=0.05`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What happens to a request that every candidate would serve too late (spec 10)."""

    mode: str = choice(
        "reject",
        ("off", "reject", "queue"),
        "off, reject by predicted SLO miss, or wait",
        "F Alg. 1",
    )
    early_rejection: bool = flag(
        True, "judge decode load at the time the prefill will end, not now", "F 5"
    )
    ttft_slack: float = number(1.0, 0.1, 10.0, "ratio", "reject above slack * TTFT limit")
    tbt_slack: float = number(1.0, 0.1, 10.0, "ratio", "reject above slack * TBT limit")
    retry_after_max_s: float = number(60.0, 1.0, 3600.0, "s", "cap of Retry-After")
    room_s: float = number(
        1.0, 0.0, 600.0, "s", "queue: a node whose predicted prefill queue is shorter has room"
    )
    queue_wait_max_s: float = number(60.0, 0.0, 3600.0, "s", "queue: longest wait for a node")
    priority_step: float = number(
        0.2, 0.0, 1.0, "share", "of the limits lost at load 1 per class below the highest"
    )
    priority_share_min: float = number(0.1, 0.0, 1.0, "share", "of the limits that a class keeps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How load(n) is read from signals: the scarcest resource decides (see core.fleet.load)."""

    horizon_s: float = number(30.0, 0.01, 3600.0, "s", "a queue this long counts as load 1")
    stale_after_s: float = number(2.0, 0.1, 600.0, "s", "ignore telemetry older than this")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """Decode selection (S1 5)."""

    tbt_weight: float = number(1.0, 0.0, 1e4, "s/s", "weight of predicted TBT against transfer")
    kv_reserve: float = number(1.0, 0.0, 2.0, "ratio", "share of expected output reserved in KV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Per-node breaker (spec 9); defaults from Envoy's outlier detection."""

    consecutive_failures: int = number(5, 1, 1000, "failures", "open after this many in a row")
    error_rate: float = number(0.5, 0.01, 1.0, "share", "open at this share of failures")
    error_rate_requests_min: int = number(20, 1, 100000, "requests", "before the rate counts")
    window_s: float = number(30.0, 1.0, 3600.0, "s", "window of the error rate")
    open_s: float = number(30.0, 0.1, 3600.0, "s", "first open time; doubles each time")
    open_max_s: float = number(300.0, 0.1, 36000.0, "s", "cap of the open time")
    half_open_successes: int = number(3, 1, 100, "requests", "trial successes that close it")
    half_open_trials: int = number(1, 1, 100, "requests", "trials in flight at once")
    ejected_share_max: float = number(0.5, 0.0, 1.0, "share", "of the fleet that may be ejected")
    panic_share: float = number(0.5, 0.0, 1.0, "share", "below this available, ignore ejections")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustRules:
    """When a node's cache signal stops being believed (reliability rule 5)."""

    window: int = number(20, 1, 10000, "requests", "comparable requests looked at")
    phantom_share: float = number(
        0.2, 0.0, 1.0, "share", "of credited tokens not confirmed: degrade"
    )
    cooldown_s: float = number(
        30.0, 0.1, 3600.0, "s", "no credit after phantoms; doubles each time"
    )
    cooldown_max_s: float = number(300.0, 0.1, 36000.0, "s", "cap of the cool-down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpp:
    """Chunked pipeline parallelism for long prompts (F 3.3, S1 6)."""

    enabled: bool = flag(False, "plan groups for long prompts", "F 3.3")
    group_max: int = number(4, 2, 64, "nodes", "largest pipeline group")
    uncached_tokens_min: int = number(
        32768, 1, 10_000_000, "tokens", "uncached part that asks for it"
    )
    chunk_tokens: int = number(
        8192, 64, 1_000_000, "tokens", "prefill_chunk: largest chunk", "F 3.3"
    )
    gain_min: float = number(0.2, 0.0, 1.0, "share", "least relative TTFT gain of a plan")
    slack_s: float = number(5.0, 0.0, 600.0, "s", "members may start this much apart")
    others_weight: float = number(0.2, 0.0, 100.0, "ratio", "weight of the delay others suffer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Hot-prefix replication (spec 8)."""

    enabled: bool = flag(False, "replicate hot prefixes", "S1 7")
    dry_run: bool = flag(False, "plan and show replicas, but start none")
    scan_s: float = number(2.0, 0.1, 600.0, "s", "between two looks at the hot prefixes")
    concurrent_max: int = number(4, 1, 1000, "plans", "carried out at once")
    rate_min_per_s: float = number(0.5, 0.0, 1e6, "1/s", "access rate that makes a prefix hot")
    load_ratio: float = number(1.2, 1.0, 100.0, "ratio", "holder load over cluster mean", "S1 7.2")
    window_s: float = number(60.0, 1.0, 3600.0, "s", "decay window of the access rate")
    replicas_max: int = number(8, 1, 4096, "nodes", "replicas of one prefix")
    budget_tokens_per_s: float = number(1e6, 0.0, 1e12, "tokens/s", "replication budget")
    plans_per_minute: int = number(60, 1, 100_000, "plans/min", "most plans started")
    backoff_s: float = number(30.0, 0.0, 3600.0, "s", "wait after a failed or done plan")
    min_tokens: int = number(512, 1, 10_000_000, "tokens", "shortest prefix worth moving")

    @property
    def mode(self) -> Literal["off", "dry_run", "on"]:
        """off, dry_run or on."""
        if not self.enabled:
            return "off"
        return "dry_run" if self.dry_run else "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hotspot:
    """Two-stage hotspot detector and the global breaker (S3 3.2, 5.1)."""

    enabled: bool = flag(True, "detect and filter hotspots", "S3 3.2")
    window_s: float = number(60.0, 1.0, 3600.0, "s", "sliding window", "S3 5.1")
    requests_min: int = number(
        20, 1, 1_000_000, "requests", "of the group in the window before stage 1 speaks"
    )
    cooldown_s: float = number(10.0, 0.1, 3600.0, "s", "hot nodes leave the group's candidates")
    trips_to_open: int = number(5, 1, 1000, "firings", "stage-2 firings that open the breaker")
    open_s: float = number(30.0, 0.1, 3600.0, "s", "round robin before a half-open trial")
    group_blocks: int = number(4, 1, 100000, "blocks", "leading blocks that name a prefix group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Dynamic batching of pending requests (S2 4.4.4)."""

    enabled: bool = flag(False, "group pending requests by prefix under load", "S2 4.4.4")
    size_max: int = number(256, 1, 4096, "requests", "largest batch", "S2 4.4.4")
    wait_max_ms: float = number(10.0, 0.0, 10000.0, "ms", "longest wait", "S2 4.4.4")
    load_min: float = number(0.5, 0.0, 1.0, "share", "below this mean load nothing waits")
    shared_tokens_min: int = number(512, 1, 1_000_000, "tokens", "shared cold prefix that groups")
    copies_max: int = number(2, 1, 64, "nodes", "nodes that compute one cold prefix at a time")
    coming: bool = flag(True, "count prefixes under way, and gather who shares a cold one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Rolling a change back by itself (spec 11); burn rates as in Google's SRE workbook."""

    enabled: bool = flag(True, "roll a bad change back by itself")
    time_s: float = number(1800.0, 1.0, 86400.0, "s", "how long a change is suspected")
    objective: float = number(0.99, 0.5, 0.99999, "share", "of requests that meet their limits")
    fast_burn: float = number(
        14.4, 1.0, 1000.0, "ratio", "limit over 1 h and 5 min", "SRE workbook"
    )
    slow_burn: float = number(
        6.0, 1.0, 1000.0, "ratio", "limit over 6 h and 30 min", "SRE workbook"
    )
    error_share_max: float = number(0.1, 0.001, 1.0, "share", "failed requests in 5 min: roll back")
    sample_min: int = number(50, 1, 1_000_000, "requests", "under the change before it is judged")
    worse_ratio: float = number(2.0, 1.0, 100.0, "ratio", "worse than before the change by this")
    rest_s: float = number(300.0, 0.0, 86400.0, "s", "after a rollback, before another one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """A second revision that scores live traffic without routing it (spec 11)."""

    cost_share_max: float = number(0.3, 0.0, 1.0, "share", "of decision time it may add")
    lag_max_s: float = number(0.02, 0.0, 10.0, "s", "event loop later than this: score nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """When a monitor is worth an alert (see `core.control.alert_rules`)."""

    burn_fast: float = number(14.4, 0.1, 1000.0, "ratio", "over 1 h and 5 min", "SRE workbook")
    burn_slow: float = number(6.0, 0.1, 1000.0, "ratio", "over 6 h and 30 min", "SRE workbook")
    burn_long: float = number(1.0, 0.1, 1000.0, "ratio", "over 3 d and 6 h", "SRE workbook")
    sample_min: int = number(
        20, 1, 1_000_000, "requests", "in a window's short half before burn counts"
    )
    panic: float = number(0.5, 0.0, 1.0, "", "1 while breakers are ignored; 1 never alerts")
    audit_broken: float = number(0.5, 0.0, 1.0, "", "1 while the audit is broken; 1 never alerts")
    nodes_dead: int = number(0, 0, 1_000_000, "nodes", "that do not answer and are not cordoned")
    signal_lost_s: float = number(300.0, 1.0, 86400.0, "s", "a node's cache signal not believed")
    spool_share: float = number(0.5, 0.0, 1.0, "share", "of the record spool that is full")
    records_dropped: int = number(0, 0, 1_000_000_000, "records", "given up in 5 min")
    loop_lag_s: float = number(0.05, 0.001, 60.0, "s", "event loop lag, worst of a minute")
    decision_s: float = number(0.001, 1e-6, 10.0, "s", "p99 of a decision", "S3 5.1")
    decision_share: float = number(
        0.2, 0.0, 10.0, "share", "p99 of a decision over 0.1 s", "20 % rule (Seow)"
    )
    decisions_min: int = number(
        300, 1, 1_000_000, "decisions", "in five minutes before `decision_share` is judged"
    )
    product_cv: float = number(2.0, 0.0, 100.0, "", "spread of P-token x BS", "S3 5.1")
    hit_spread: float = number(
        0.6, 0.0, 1.0, "share", "hit of the best and the worst node", "S3 5.1"
    )
    hit_ratio_min: float = number(0.5, 0.0, 1.0, "", "achieved over reachable hit")
    firings_per_min: float = number(
        3.0, 0.0, 10_000.0, "1/min", "of the hotspot detector", "S3 5.1"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Short-horizon forecast of arrivals and prefill tokens (S1 11.2); see `core.plan.forecast`."""

    enabled: bool = flag(
        True, "let early rejection and migration look ahead while it beats persistence", "S1 11.2"
    )
    horizon_s: float = number(30.0, 5.0, 600.0, "s", "how far ahead")
    level: float = number(0.3, 0.01, 1.0, "", "weight of the newest step in the level", "Holt")
    trend: float = number(0.05, 0.0, 1.0, "", "weight of the newest step in the trend", "Holt")
    damping: float = number(0.9, 0.5, 1.0, "", "of the trend, a step")
    season_s: float = number(0.0, 0.0, 86400.0, "s", "period of the seasons; 0: none", "Winters")
    season: float = number(0.1, 0.0, 1.0, "", "weight of the newest step in its season", "Winters")
