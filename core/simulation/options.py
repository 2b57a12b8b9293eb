"""From command-line options to a scenario and a workload; errors name the option."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import BadRequest
from core.simulation.compare import parse_param
from core.simulation.scenario import Failure, Scenario
from core.simulation.traces import read_trace
from core.simulation.workload import Workload, prepare

SEEDS_MAX = 10_000
TraceArg = Annotated[Path, typer.Argument(help="Mooncake or Bailian trace, JSONL or .gz.")]
Params = Annotated[
    list[str] | None, typer.Option("--param", help="Tunable NAME=VALUE; may be repeated.")
]
Load = Annotated[float, typer.Option(help="Request rate, times the trace's own.")]
Seed = Annotated[int, typer.Option(help="Seed of ties and random choices.")]
Seeds = Annotated[str, typer.Option(help="Seeds: one, a list 0,1,2 or a range 0-4.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out malformed lines, count them.")]
Limit = Annotated[int | None, typer.Option(help="Only the first N requests.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Workers = Annotated[int, typer.Option(help="Processes; 0: one a core.")]
Ray = Annotated[str | None, typer.Option(help="Run on the Ray cluster at ADDRESS.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The simulated fleet and its limits: options of each command that simulates."""

    prefill: Annotated[int, typer.Option(help="Prefill nodes.")] = 8
    decode: Annotated[
        int, typer.Option(help="Decode nodes; without any, requests end at the first token.")
    ] = 0
    both: Annotated[int, typer.Option(help="Nodes that prefill and decode.")] = 0
    profile: Annotated[str, typer.Option(help="Cost profile: model and hardware.")] = (
        "llama3-70b-8xa800"
    )
    mfu: Annotated[
        float | None, typer.Option(help="Model FLOPs utilisation; default: the profile's.")
    ] = None
    cache_tokens: Annotated[int, typer.Option(help="KV cache of a node, in tokens.")] = 3_000_000
    host_cache_tokens: Annotated[
        int, typer.Option(help="Host-memory cache of a node, in tokens.")
    ] = 0
    link_gb_s: Annotated[float, typer.Option(help="Link of each node, GB/s.")] = 100.0
    fetch: Annotated[bool, typer.Option(help="Nodes may fetch blocks from each other.")] = True
    cpp: Annotated[
        bool, typer.Option("--cpp/--no-cpp", help="Pipeline groups for long prompts.")
    ] = False
    migration: Annotated[bool, typer.Option(help="Replicate hot prefixes.")] = False
    hotspot: Annotated[bool, typer.Option(help="Two-stage hotspot detector.")] = False
    batching: Annotated[bool, typer.Option(help="Group waiting requests by prefix.")] = False
    announce: Annotated[
        bool, typer.Option(help="The index counts a prompt's blocks from when it is queued.")
    ] = False
    reject: Annotated[
        str,
        typer.Option(help="off, early (predicted), now, decode (TBT after the prefill) or late."),
    ] = "off"
    replay: Annotated[
        str, typer.Option(help="time: by time stamp; think: after the previous turn.")
    ] = "time"
    chunk_tokens: Annotated[
        int, typer.Option(help="Largest prefill chunk in tokens; 0: whole prompts.")
    ] = 0
    fail: Annotated[
        list[str] | None, typer.Option(help="NODE@SECONDS[+DOWN]: a failure; may be repeated.")
    ] = None
    ttft_slo_s: Annotated[float | None, typer.Option(help="TTFT limit, seconds.")] = None
    tbt_slo_ms: Annotated[float | None, typer.Option(help="TBT limit, milliseconds.")] = None

    def scenario(self, policy: str, params: Iterable[str] | None, **fields: Any) -> Scenario:
        """These options' scenario under a policy; checked, so that mistakes name their option."""
        given = {option.name: getattr(self, option.name) for option in dataclasses.fields(self)}
        changes: dict[str, Any] = {}
        if (ttft_s := given.pop("ttft_slo_s")) is not None:
            changes["slo.ttft_s"] = ttft_s
        if (tbt_ms := given.pop("tbt_slo_ms")) is not None:
            changes["slo.tbt_s"] = tbt_ms / 1e3
        changes |= dict(parse_param(text, policy) for text in params or ())
        fields["failures"] = tuple(_failure(text) for text in given.pop("fail") or ())
        fields["rejecting"] = given.pop("reject")
        made = Scenario(policy=policy, params=changes, **given, **fields)
        made.tunables()
        return made


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its parameter `fleet` taken apart into the options it is made of."""
    own = inspect.signature(command, eval_str=True).parameters
    options = inspect.signature(FleetOptions, eval_str=True).parameters

    @functools.wraps(command)
    def spread_out(**given: Any) -> None:
        fleet = FleetOptions(**{name: given.pop(name) for name in options})
        command(fleet=fleet, **given)

    parts = [
        part for p in own.values() for part in (options.values() if p.name == "fleet" else [p])
    ]
    shown = [part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in parts]
    spread_out.__annotations__ = {part.name: part.annotation for part in shown}
    spread_out.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return spread_out


def load_workload(path: Path, *, skip_bad: bool, limit: int | None) -> tuple[Workload, int]:
    """The prepared trace and how many malformed lines were left out."""
    trace = read_trace(path, skip_bad=skip_bad, limit=limit)
    if not trace.requests:
        raise BadRequest(f"{path}: the trace holds no requests", field="trace")
    return prepare(trace), trace.skipped


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
            low, high = int(first), int(last)
            if not low <= high < low + SEEDS_MAX:
                raise ValueError(text)
            return list(range(low, high + 1))
        return [int(part) for part in text.split(",")]
    except ValueError:
        expected = f"expected a whole number, a list 0,1,2 or a range 0-4 of at most {SEEDS_MAX:,}"
        raise BadRequest(f"seeds: {expected}, not {text!r}", field="seeds") from None


def _failure(text: str) -> Failure:
    try:
        node, _, when = text.partition("@")
        at, _, down = when.partition("+")
        found = Failure(node=int(node), at_s=float(at), down_s=float(down or 60.0))
        if not (0 <= found.at_s < math.inf and 0 < found.down_s < math.inf):
            raise ValueError(text)
    except ValueError:
        expected = "expected NODE@SECONDS or NODE@SECONDS+DOWN"
        raise BadRequest(f"fail: {expected}, not {text!r}", field="fail") from None
    return found
