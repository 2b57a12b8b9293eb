"""A plan for one long prompt over a group of nodes, and its explanation (see core.plan.cpp)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CppStage:
    """One member's part. Times are seconds from the decision."""

    slot: int
    layers: int
    queue_s: float
    """When the member is predicted to be free."""
    start_s: float
    """When it starts its first chunk."""
    end_s: float
    work_s: float
    """Computing time between start and end."""
    fetch_tokens: int
    """Cached-prefix tokens whose KV (its layers) it has to fetch first."""

    @property
    def idle_s(self) -> float:
        """Time the member is kept from other work without computing."""
        return max(self.end_s - self.queue_s - self.work_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CppPlan:
    """A group, its chunks, and what it costs beside the alternatives."""

    reason: str
    """Why a plan was sought: ttft_slo or long_prompt."""
    stages: tuple[CppStage, ...]
    chunks: tuple[int, ...]
    """Tokens of each chunk, in order; they sum to the uncached part."""
    prefix_tokens: int
    source: int
    """Slot whose cached prefix is used."""
    home: int
    """Slot that gathers the whole prompt's KV cache as chunks finish."""
    ttft_s: float
    single_ttft_s: float
    """The best single node's."""
    others_delay_s: float
    """Request-seconds that others wait longer than beside the single node."""
    cost: float
    """What plans are compared by, in seconds (see the module's theory)."""
    distance: int
    handoff_bytes: float
    """Hidden states between stages."""
    prefix_bytes: float
    """Cached prefix to members that lack it."""
    gather_bytes: float
    """Finished KV from the other stages to `home`."""
    sp_allreduces: int
    """All-reduces that sequence parallelism over the same group would need: 2 a layer."""
    sp_bytes: float
    """What those would move over all links: a ring moves 2 (X - 1) times the activations each."""

    @property
    def uncached_tokens(self) -> int:
        """Tokens to compute."""
        return sum(self.chunks)

    @property
    def idle_s(self) -> float:
        """Node-seconds that the group keeps from others without computing."""
        return sum(stage.idle_s for stage in self.stages)

    @property
    def bubble_share(self) -> float:
        """Share of the members' time between first and last chunk that is not computing."""
        span = sum(stage.end_s - stage.start_s for stage in self.stages)
        work = sum(stage.work_s for stage in self.stages)
        return max(1.0 - work / span, 0.0) if span > 0 else 0.0

    @property
    def gain(self) -> float:
        """TTFT saved against the best single node, as a share."""
        return 1.0 - self.ttft_s / self.single_ttft_s if self.single_ttft_s > 0 else 0.0


def explain(plan: CppPlan, name: Callable[[int], str] = str) -> str:
    """The plan in words and a table of stages; `name` turns slots into node names."""
    lines = [
        f"{len(plan.stages)} nodes for {plan.uncached_tokens} uncached tokens after a cached "
        f"prefix of {plan.prefix_tokens} ({_REASONS[plan.reason]})",
        f"TTFT {plan.ttft_s:.2f} s against {plan.single_ttft_s:.2f} s on the best single node "
        f"({plan.gain:.0%} less); others wait {plan.others_delay_s:+.2f} request-seconds",
        f"{len(plan.chunks)} chunks of equal cost, {plan.chunks[0]} to {plan.chunks[-1]} tokens; "
        f"bubble {plan.bubble_share:.1%}, members idle {plan.idle_s:.2f} s",
        f"moved: {_size(plan.handoff_bytes)} of hidden states, {_size(plan.prefix_bytes)} of "
        f"cached prefix from {name(plan.source)}, {_size(plan.gather_bytes)} of new KV to "
        f"{name(plan.home)}",
        f"sequence parallelism would need {plan.sp_allreduces} all-reduces moving "
        f"{_size(plan.sp_bytes)}",
        "stage  node  layers  free at  starts  ends  works  idles",
    ]
    for i, stage in enumerate(plan.stages, 1):
        lines.append(
            f"{i}  {name(stage.slot)}  {stage.layers}  {stage.queue_s:.2f}  {stage.start_s:.2f}  "
            f"{stage.end_s:.2f}  {stage.work_s:.2f}  {stage.idle_s:.2f}"
        )
    return "\n".join(lines)


def brief(plan: CppPlan, name: Callable[[int], str] = str) -> str:
    """The plan in one line."""
    stages = ", ".join(f"{name(s.slot)} ({s.layers} layers)" for s in plan.stages)
    return (
        f"{len(plan.stages)} nodes ({stages}) would bring the first token in {plan.ttft_s:.3g} s "
        f"instead of {plan.single_ttft_s:.3g} s: {len(plan.chunks)} chunks of {plan.chunks[0]} to "
        f"{plan.chunks[-1]} tokens, bubble {plan.bubble_share:.0%}, "
        f"{_size(plan.handoff_bytes + plan.prefix_bytes + plan.gather_bytes)} moved "
        f"(sequence parallelism {_size(plan.sp_bytes)})"
    )


_REASONS = {
    "ttft_slo": "the best single node misses the TTFT limit",
    "long_prompt": "the prompt is long",
}


def _size(nbytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"
