"""What an emulated engine is started with, and the command line that says it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.domain import Role
from core.engines.emulated.costs import INSTANT, StepCosts, costs_of, known_costs
from core.engines.emulated.faults import Faults


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine; sizes are tokens unless the name says otherwise."""

    name: str
    model: str
    host: str = "127.0.0.1"
    advertise_host: str | None = None
    """Where peers and clients reach this engine; None: the bound host."""
    port: int = 0
    role: Role = Role.BOTH
    adapters: tuple[str, ...] = ()
    block_size: int = 32
    kv_tokens: int = 3_000_000
    context_tokens_max: int = 131_072
    step_tokens_max: int = 8_192
    batch_max: int = 256
    queue_max: int = 1_024
    profile: str = "instant"
    costs: StepCosts = INSTANT
    time_scale: float = 1.0
    tick_s: float = 0.0
    """Tokens of decode steps that end within a tick leave together: less work, coarser gaps."""
    lease_s: float = 30.0
    kv_load_timeout_s: float = 5.0
    kv_load_recompute: bool = False
    """Compute the prompt here when its KV cannot be fetched, instead of failing."""
    events_port: int | None = 0
    replay_port: int | None = 0
    topic: str | None = None
    buffer_steps: int = 10_000
    buffer_bytes: int = 64 << 20
    seed: int = 0
    state_file: Path | None = None
    faults: Faults = field(default_factory=Faults)

    @property
    def public_host(self) -> str:
        """Host to write into addresses that others connect to."""
        own = "127.0.0.1" if self.host in ("0.0.0.0", "") else self.host
        return self.advertise_host or own

    @property
    def blocks(self) -> int:
        """Blocks of the cache, the reserved one included."""
        return max(self.kv_tokens // self.block_size, 2)

    @property
    def context_max(self) -> int:
        """Longest sequence: what the model allows and the cache can hold."""
        return min(self.context_tokens_max, (self.blocks - 1) * self.block_size)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def _factor(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {value}")
    return value


def _faults(text: str) -> Faults:
    try:
        return Faults().changed(json.loads(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _port(text: str) -> int | None:
    return None if text == "off" else int(text)


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m core.engines.emulated`."""
    p = argparse.ArgumentParser(
        prog="python -m core.engines.emulated",
        description="An engine without a GPU that speaks vLLM's wire.",
    )
    p.add_argument("--name", required=True, help="shown in state and logs")
    p.add_argument("--model", required=True, help="served model name")
    p.add_argument("--adapter", action="append", default=[], help="served LoRA name (repeatable)")
    p.add_argument("--host", default="127.0.0.1", help="address to bind HTTP and events to")
    p.add_argument("--advertise-host", help="address that other engines reach this one at")
    p.add_argument("--port", type=int, default=0, help="HTTP port; 0 takes a free one")
    p.add_argument("--role", choices=[role.value for role in Role], default="both")
    p.add_argument("--block-size", type=_positive, default=32, help="tokens a block")
    p.add_argument("--kv-tokens", type=_positive, default=3_000_000, help="cache size in tokens")
    p.add_argument("--context-max", type=_positive, default=131_072, help="longest sequence")
    p.add_argument("--step-tokens-max", type=_positive, default=8_192, help="prefill chunk")
    p.add_argument("--batch-max", type=_positive, default=256, help="running sequences")
    p.add_argument("--queue-max", type=int, default=1_024, help="waiting ones; 0: no limit")
    p.add_argument("--profile", choices=known_costs(), default="generic-7b-1gpu")
    p.add_argument("--speed", type=_factor, default=1.0, help="relative to the profile")
    p.add_argument("--time-scale", type=_factor, default=1.0, help="divides all model times")
    p.add_argument("--tick-ms", type=float, default=0.0, help="write decoded tokens this rarely")
    p.add_argument("--lease", type=_factor, default=30.0, help="seconds KV is kept for a peer")
    p.add_argument("--kv-load-timeout", type=_factor, default=5.0, help="seconds")
    p.add_argument("--kv-load-failure-policy", choices=["fail", "recompute"], default="fail")
    p.add_argument("--events-port", type=_port, default=0, help="ZMQ port, 0: a free one, or off")
    p.add_argument("--replay-port", type=_port, default=0, help="ZMQ port, 0: a free one, or off")
    p.add_argument("--topic", help="topic frame of events; default kv@NAME@MODEL")
    p.add_argument("--buffer-steps", type=_positive, default=10_000, help="batches for replay")
    p.add_argument("--seed", type=int, default=0, help="of the faults' dice")
    p.add_argument("--state-file", type=Path, help="JSON with addresses, written when ready")
    p.add_argument("--tokenizer-dir", type=Path, help="write the tokenizer's files there")
    p.add_argument("--faults", type=_faults, default=Faults(), help="JSON, as for the endpoint")
    return p


def from_arguments(arguments: Sequence[str]) -> tuple[EngineConfig, Path | None]:
    """Settings from the command line, and where to write the tokenizer's files, if anywhere."""
    a = parser().parse_args(arguments)
    config = EngineConfig(
        name=a.name, model=a.model, host=a.host, advertise_host=a.advertise_host,
        port=a.port, role=Role(a.role),
        adapters=tuple(a.adapter), block_size=a.block_size, kv_tokens=a.kv_tokens,
        context_tokens_max=a.context_max, step_tokens_max=a.step_tokens_max,
        batch_max=a.batch_max, queue_max=a.queue_max, profile=a.profile,
        costs=costs_of(a.profile, speed=a.speed), time_scale=a.time_scale, tick_s=a.tick_ms / 1e3,
        lease_s=a.lease,
        kv_load_timeout_s=a.kv_load_timeout,
        kv_load_recompute=a.kv_load_failure_policy == "recompute",
        events_port=a.events_port, replay_port=a.replay_port, topic=a.topic,
        buffer_steps=a.buffer_steps, seed=a.seed, state_file=a.state_file, faults=a.faults,
    )  # fmt: skip
    return config, a.tokenizer_dir
