"""How requests fared in a stretch of time, and what a node reported of itself."""

from __future__ import annotations

from datetime import datetime

from core.wire.base import Answer


class ShareView(Answer):
    """Requests of one tenant for one model on one pair of nodes."""

    tenant: str = ""
    model: str
    prefill_node: str = ""
    """Empty for rejections."""
    decode_node: str = ""
    decisions: int
    """Rejections included."""
    rejected: int = 0
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    ttft_missed: int = 0
    tbt_missed: int = 0
    slo_missed: int = 0
    """Either limit, or both."""
    prompt_tokens: int = 0
    match_tokens: int = 0
    others: bool = False
    """All of this tenant and model that is in no other group; without names of nodes."""


class Shares(Answer):
    """GET /shares: groups, the largest first, then what is left of each tenant and model."""

    since: datetime
    until: datetime
    decisions: int
    covered_from: datetime | None = None
    """The oldest decision that was counted."""
    complete: bool = True
    """Whether all decisions of the stretch were counted; else those since `covered_from`."""
    groups: list[ShareView]


class MarginBin(Answer):
    """Requests whose observed / limit lies in [low, high)."""

    low: float
    high: float
    ttft: int
    tbt: int


class CalibrationBin(Answer):
    """Requests whose prediction lies in [low_s, high_s): how the observed times spread there."""

    low_s: float
    high_s: float
    count: int
    ratio_p10: float
    """Observed / predicted."""
    ratio_p50: float
    ratio_p90: float


class Calibration(Answer):
    """How well predictions of one time came true."""

    count: int
    bias: float | None = None
    """Median of observed / predicted; 1 is without bias."""
    within_factor_2: float | None = None
    """Share of the requests observed between half and twice the prediction."""
    bins: list[CalibrationBin] = []
    points: list[tuple[float, float]] = []
    """(predicted, observed) seconds of an even sample."""


class TimingsView(Answer):
    """GET /timings."""

    since: datetime
    until: datetime
    requests: int
    covered_from: datetime | None = None
    complete: bool = True
    """Whether all decisions of the stretch were looked at; else those since `covered_from`."""
    margins: list[MarginBin]
    """Logarithmic, lowest first; the ends take what lies beyond."""
    ttft: Calibration
    tbt: Calibration


class ReadingView(Answer):
    """What a node reported of itself at one time; None where it does not tell."""

    at: datetime
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    hit_share: float | None = None
    """Of the prompt tokens since the reading before, as the engine counts."""
    preempted: float | None = None
    """Requests since the reading before."""


class Readings(Answer):
    """GET /nodes/{id}/readings: oldest first, thinned evenly."""

    node: str
    since: datetime
    until: datetime
    points: list[ReadingView]
