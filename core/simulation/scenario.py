"""What to simulate: a fleet, a policy with its parameters, a load. Plain, checked, picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from core.errors import BadRequest
from core.plan.cost_model import (
    Profile,
    prefill_coefficients,
    profile,
    tbt_coefficients,
)
from core.policy import get_policy
from core.tunables import Tunables

MODEL = "simulated"
Rejecting = Literal["off", "early", "now", "decode", "late"]
"""When a request that would miss its limits is turned away (F 5):

off: never. early: on arrival, by the decode load predicted for the end of its prefill. now: on
arrival, by the decode load of that moment. decode: on arrival by TTFT alone, the TBT limit being
looked at once the prefill is over. late: both limits only once the prefill is over."""
_ON_ARRIVAL = ("early", "now", "decode")
_NO_TBT_CHECK = 10.0
"""Slack that leaves TBT to the check after the prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A node that dies at `at_s` and comes back, empty, `down_s` later."""

    node: int
    at_s: float
    down_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulated run.

    prefill / decode / both: nodes of each role, numbered in this order. Without decode and both
    nodes the run is prefill-only: a request ends with its first token. Tokens are KV-cache
    capacities per node; `load` divides all gaps between arrivals; `params` maps full tunable
    paths to values.
    """

    prefill: int = 8
    decode: int = 0
    both: int = 0
    profile: str = "llama3-70b-8xa800"
    mfu: float | None = None
    cache_tokens: int = 3_000_000
    host_cache_tokens: int = 0
    batch_max: int = 256
    """Requests at which a node's batch counts as full in load(n)."""
    link_gb_s: float = 100.0
    link_latency_s: float = 0.0
    policy: str = "min_ttft"
    params: Mapping[str, Any] = field(default_factory=dict)
    fetch: bool = True
    cpp: bool = False
    migration: bool = False
    hotspot: bool = False
    batching: bool = False
    rejecting: Rejecting = "off"
    load: float = 1.0
    seed: int = 0
    replay: Literal["time", "think"] = "time"
    chunk_tokens: int = 0
    """Largest prefill chunk; 0 prefills a prompt whole."""
    speeds: tuple[float, ...] = ()
    """Relative speeds of the nodes, repeated over the fleet; empty means 1."""
    failures: tuple[Failure, ...] = ()
    announce: bool = False
    """Tell the index of a prompt's blocks when it joins a node's queue, not when they are there."""
    event_delay_s: float = 0.0
    """From a change of a node's cache to the index learning of it."""
    detect_s: float = 6.0
    """From a node's death to the probes calling it dead."""
    prefill_fit: tuple[float, float, float] | None = None
    """Prefill coefficients fitted from telemetry; replace the profile's."""
    tbt_fit: tuple[float, float, float] | None = None
    samples: int = 0
    """Points in time at which per-node load is recorded; 0 records none."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def nodes(self) -> int:
        """Fleet size."""
        return self.prefill + self.decode + self.both

    @property
    def prefill_only(self) -> bool:
        """Whether requests end with their first token."""
        return not self.decode and not self.both

    @property
    def cost_profile(self) -> Profile:
        """The model and hardware of every node."""
        return profile(self.profile)

    def speed(self, node: int) -> float:
        """Relative speed of a node."""
        return self.speeds[node % len(self.speeds)] if self.speeds else 1.0

    def prefill_cost(self, node: int) -> tuple[float, float, float]:
        """(c0, c1, c2) of a node (see core.plan.cost_model)."""
        speed = self.speed(node)
        if self.prefill_fit is not None:
            c0, c1, c2 = self.prefill_fit
            return c0 / speed, c1 / speed, c2 / speed
        return prefill_coefficients(self.cost_profile, mfu=self.mfu, speed=speed)

    def tbt_cost(self, node: int) -> tuple[float, float, float]:
        """(d0, d1, d2) of a node (see core.plan.cost_model)."""
        speed = self.speed(node)
        if self.tbt_fit is not None:
            d0, d1, d2 = self.tbt_fit
            return d0 / speed, d1 / speed, d2 / speed
        return tbt_coefficients(self.cost_profile, speed=speed)

    def tunables(self) -> Tunables:
        """The tunables of the run; Invalid names a parameter that does not exist or fit."""
        changes: dict[str, Any] = {
            "policy": self.policy,
            "fetch.enabled": self.fetch,
            "cpp.enabled": self.cpp,
            "migration.enabled": self.migration,
            "hotspot.enabled": self.hotspot,
            "batching.enabled": self.batching,
            "batching.coming": False,
            "admission.mode": "reject" if self.rejecting in _ON_ARRIVAL else "off",
            "admission.early_rejection": self.rejecting != "now",
        }
        if self.rejecting == "decode":
            changes["admission.tbt_slack"] = _NO_TBT_CHECK
        return Tunables().changed(changes | dict(self.params))


def _check(s: Scenario) -> None:
    """BadRequest names the first field out of bounds."""
    rules: list[tuple[str, bool, str]] = [
        ("prefill", s.prefill >= 0, ">= 0"),
        ("decode", s.decode >= 0, ">= 0"),
        ("both", s.both >= 0, ">= 0"),
        ("prefill", s.prefill + s.both >= 1, "at least one node that prefills"),
        ("prefill", s.nodes <= 4096, "at most 4096 nodes in all"),
        ("mfu", s.mfu is None or 0 < s.mfu <= 1, "above 0, at most 1"),
        ("cache_tokens", s.cache_tokens >= 0, ">= 0"),
        ("host_cache_tokens", s.host_cache_tokens >= 0, ">= 0"),
        ("batch_max", s.batch_max >= 1, "at least 1"),
        ("link_gb_s", s.link_gb_s > 0, "above 0"),
        ("link_latency_s", s.link_latency_s >= 0, ">= 0"),
        ("load", s.load > 0, "above 0"),
        ("chunk_tokens", s.chunk_tokens >= 0, ">= 0"),
        ("speeds", all(v > 0 for v in s.speeds), "above 0"),
        ("event_delay_s", s.event_delay_s >= 0, ">= 0"),
        ("failures", all(0 <= f.node < s.nodes for f in s.failures), "nodes of the fleet"),
        ("rejecting", s.rejecting in get_args(Rejecting), ", ".join(get_args(Rejecting))),
        ("replay", s.replay in ("time", "think"), "time or think"),
    ]
    for name, good, expected in rules:
        if not good:
            raise BadRequest(f"{name}: expected {expected}, not {getattr(s, name)}", field=name)
    profile(s.profile)
    get_policy(s.policy)
