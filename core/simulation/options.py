"""From command-line options to a scenario and a workload; errors name the option."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import BadRequest
from core.simulation.compare import parse_param
from core.simulation.scenario import Failure, Scenario
from core.simulation.traces import read_trace
from core.simulation.workload import Workload, prepare

TraceArg = Annotated[Path, typer.Argument(help="Mooncake or Bailian trace, JSONL or .gz.")]
Prefill = Annotated[int, typer.Option(help="Prefill nodes.")]
Decode = Annotated[
    int, typer.Option(help="Decode nodes; without any, requests end at the first token.")
]
Both = Annotated[int, typer.Option(help="Nodes that prefill and decode.")]
ProfileOpt = Annotated[str, typer.Option(help="Cost profile: model and hardware.")]
Mfu = Annotated[float | None, typer.Option(help="Model FLOPs utilisation; default: the profile's.")]
CacheTokens = Annotated[int, typer.Option(help="KV cache of a node, in tokens.")]
HostCacheTokens = Annotated[int, typer.Option(help="Host-memory cache of a node, in tokens.")]
LinkGbS = Annotated[float, typer.Option(help="Link of each node, GB/s.")]
Params = Annotated[
    list[str] | None, typer.Option("--param", help="Tunable NAME=VALUE; may be repeated.")
]
Fetch = Annotated[bool, typer.Option(help="Nodes may fetch blocks from each other.")]
CppOpt = Annotated[bool, typer.Option("--cpp/--no-cpp", help="Pipeline groups for long prompts.")]
MigrationOpt = Annotated[bool, typer.Option(help="Replicate hot prefixes.")]
HotspotOpt = Annotated[bool, typer.Option(help="Two-stage hotspot detector.")]
BatchingOpt = Annotated[bool, typer.Option(help="Group waiting requests by prefix.")]
AnnounceOpt = Annotated[
    bool, typer.Option(help="The index counts a prompt's blocks from when it is queued.")
]
RejectOpt = Annotated[
    str,
    typer.Option(
        "--reject", help="off, early (predicted), now, decode (TBT after the prefill) or late."
    ),
]
Load = Annotated[float, typer.Option(help="Request rate, times the trace's own.")]
Seed = Annotated[int, typer.Option(help="Seed of ties and random choices.")]
Seeds = Annotated[str, typer.Option(help="Seeds: one, a list 0,1,2 or a range 0-4.")]
Replay = Annotated[str, typer.Option(help="time: by time stamp; think: after the previous turn.")]
Chunk = Annotated[int, typer.Option(help="Largest prefill chunk in tokens; 0: whole prompts.")]
Fail = Annotated[
    list[str] | None, typer.Option(help="NODE@SECONDS[+DOWN]: a failure; may be repeated.")
]
TtftSlo = Annotated[float | None, typer.Option("--ttft-slo-s", help="TTFT limit, seconds.")]
TbtSlo = Annotated[float | None, typer.Option("--tbt-slo-ms", help="TBT limit, milliseconds.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out malformed lines, count them.")]
Limit = Annotated[int | None, typer.Option(help="Only the first N requests.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Workers = Annotated[int, typer.Option(help="Processes; 0: one a core.")]
Ray = Annotated[str | None, typer.Option(help="Run on the Ray cluster at ADDRESS.")]


def load_workload(path: Path, *, skip_bad: bool, limit: int | None) -> tuple[Workload, int]:
    """The prepared trace and how many malformed lines were left out."""
    trace = read_trace(path, skip_bad=skip_bad, limit=limit)
    if not trace.requests:
        raise BadRequest(f"{path}: the trace holds no requests", field="trace")
    return prepare(trace), trace.skipped


def build_scenario(
    *,
    policy: str,
    params: Iterable[str] | None,
    fail: Iterable[str] | None = None,
    ttft_slo_s: float | None = None,
    tbt_slo_ms: float | None = None,
    **fields: Any,
) -> Scenario:
    """A scenario from the options' values; checked, so that mistakes name their option."""
    changes: dict[str, Any] = {}
    if ttft_slo_s is not None:
        changes["slo.ttft_s"] = ttft_slo_s
    if tbt_slo_ms is not None:
        changes["slo.tbt_s"] = tbt_slo_ms / 1e3
    changes |= dict(parse_param(text, policy) for text in params or ())
    failures = tuple(_failure(text) for text in fail or ())
    scenario = Scenario(policy=policy, params=changes, failures=failures, **fields)
    scenario.tunables()
    return scenario


def parse_numbers(text: str, field: str) -> list[float]:
    """Comma-separated numbers."""
    try:
        values = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise BadRequest(
            f"{field}: expected numbers like 1.0,1.3, not {text!r}", field=field
        ) from None
    if not values:
        raise BadRequest(f"{field}: expected at least one number", field=field)
    return values


def parse_seeds(text: str) -> list[int]:
    """``3``, ``0,1,2`` or ``0-4``."""
    try:
        first, dash, last = text.partition("-")
        if dash and first:
            return list(range(int(first), int(last) + 1))
        return [int(part) for part in text.split(",")]
    except ValueError:
        expected = "expected a whole number, a list 0,1,2 or a range 0-4"
        raise BadRequest(f"seeds: {expected}, not {text!r}", field="seeds") from None


def _failure(text: str) -> Failure:
    try:
        node, _, when = text.partition("@")
        at, _, down = when.partition("+")
        return Failure(node=int(node), at_s=float(at), down_s=float(down or 60.0))
    except ValueError:
        expected = "expected NODE@SECONDS or NODE@SECONDS+DOWN"
        raise BadRequest(f"fail: {expected}, not {text!r}", field="fail") from None
