"""Commands of this room: trace, generate, simulate, compare, sweep.

Figures go to standard output, progress and timings of the run to standard error; with --json
standard output holds one JSON object and nothing else.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from core.errors import BadRequest, ConductorError
from core.policy import policy_names
from core.simulation import options as o
from core.simulation.compare import Arm, compare, parse_arms
from core.simulation.generator import MIXES, Workload, generate
from core.simulation.report import check_writable, comparison_page, write_page
from core.simulation.runner import run_scenario
from core.simulation.scenario import Scenario
from core.simulation.sweep import Axis, parse_axis, sweep
from core.simulation.tables import markdown, table, to_json
from core.simulation.trace_stats import trace_statistics
from core.simulation.traces import read_trace, trace_lines, write_trace

PLOT_SAMPLES = 200
"""Moments at which per-node load is recorded for a report page."""


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("trace")(trace_command)
    app.command("generate")(generate_command)
    app.command("simulate")(simulate_command)
    app.command("compare")(compare_command)
    app.command("sweep")(sweep_command)


def trace_command(
    trace: o.TraceArg,
    json: o.Json = False,
    skip_bad: o.SkipBad = False,
    limit: o.Limit = None,
) -> None:
    """Print a trace's lengths, rates and how much of it could be reused."""
    with _errors_shown():
        stats = trace_statistics(read_trace(trace, skip_bad=skip_bad, limit=limit))
    if json:
        typer.echo(to_json(stats))
        return
    for name, value in stats.items():
        typer.echo(f"{name:24} {value}")


def generate_command(
    out: Annotated[
        Path | None, typer.Argument(help="Where to write; default: standard output.")
    ] = None,
    mix: Annotated[str, typer.Option(help=f"One of {', '.join(sorted(MIXES))}.")] = "mixed",
    requests: Annotated[int, typer.Option(help="Requests in all.")] = 1000,
    rate: Annotated[float, typer.Option(help="Mean requests per second.")] = 3.0,
    seed: o.Seed = 0,
    block_tokens: Annotated[int, typer.Option(help="Tokens of a block.")] = 512,
    tenants: Annotated[int, typer.Option(help="Tenants.")] = 8,
    skew: Annotated[float, typer.Option(help="Zipf exponent over tenants and prompts.")] = 1.0,
    burst: Annotated[float, typer.Option(help="Rate in bursts, times the calm rate.")] = 1.0,
    hot_share: Annotated[float, typer.Option(help="Share of sessions on one system prompt.")] = 0.0,
    hot_tokens: Annotated[int, typer.Option(help="Tokens of that system prompt.")] = 8192,
) -> None:
    """Generate a seeded workload; its statistics go to standard error."""
    with _errors_shown():
        made = generate(
            Workload(
                mix=mix, requests=requests, rate_per_s=rate, seed=seed, block_tokens=block_tokens,
                tenants=tenants, skew=skew, burst=burst, hot_share=hot_share, hot_tokens=hot_tokens,
            )
        )  # fmt: skip
        if out is None:
            sys.stdout.buffer.writelines(trace_lines(made))
        else:
            write_trace(made, out)
    typer.echo(to_json(trace_statistics(made), pretty=True), err=True)


@o.spread
def simulate_command(
    *,
    trace: o.TraceArg,
    fleet: o.FleetOptions,
    policy: Annotated[str, typer.Option(help="Prefill policy.")] = "min_ttft",
    param: o.Params = None,
    load: o.Load = 1.0,
    seed: o.Seed = 0,
    skip_bad: o.SkipBad = False,
    limit: o.Limit = None,
    json: o.Json = False,
) -> None:
    """Replay a trace on a simulated fleet under one policy."""
    with _errors_shown():
        scenario = fleet.scenario(policy, param, load=load, seed=seed)
        workload, skipped = o.load_workload(trace, skip_bad=skip_bad, limit=limit)
        with _stoppable(f"simulate {policy}") as progress:
            result = run_scenario(scenario, workload, progress=progress)
    summary = result.summary() | {"load": load, "seed": seed, "skipped_lines": skipped}
    if json:
        typer.echo(to_json(summary | result.speed()))
    else:
        typer.echo(table([summary]))
        typer.echo(to_json(summary | result.speed(), pretty=True))
    _exit_if(result.stopped)


@o.spread
def compare_command(
    *,
    trace: o.TraceArg,
    policies: Annotated[
        str, typer.Option(help="Names, comma-separated; NAME:PARAM=VALUE sets a parameter; all.")
    ] = "round_robin,least_loaded,linear,min_ttft,priced_ttft",
    loads: Annotated[str, typer.Option(help="Loads, comma-separated.")] = "1.0",
    seeds: o.Seeds = "0",
    html: Annotated[Path | None, typer.Option(help="Write a report page here.")] = None,
    markdown_out: Annotated[
        Path | None, typer.Option("--markdown", help="Write the table as Markdown here.")
    ] = None,
    fleet: o.FleetOptions,
    param: o.Params = None,
    workers: o.Workers = 0,
    ray: o.Ray = None,
    skip_bad: o.SkipBad = False,
    limit: o.Limit = None,
    json: o.Json = False,
) -> None:
    """Compare policies on one trace: table, and with --html a page of plots."""
    with _errors_shown():
        arms = parse_arms(",".join(policy_names()) if policies == "all" else policies)
        samples = PLOT_SAMPLES if html else 0
        base = fleet.scenario(arms[0].policy, param, samples=samples)
        _check_arms(base, arms, html=html, markdown=markdown_out)
        workload, _ = o.load_workload(trace, skip_bad=skip_bad, limit=limit)
        with _stoppable("compare") as progress:
            result = compare(
                base, workload, arms=arms, loads=o.parse_numbers(loads, "loads"),
                seeds=o.parse_seeds(seeds), workers=workers, ray=ray, progress=progress,
            )  # fmt: skip
        shown = {name: result[name] for name in ("rows", "runs", "wanted")}
        typer.echo(to_json(shown) if json else table(result["rows"]))
        _write_comparison(result, base, workload.name, html, markdown_out)
    _exit_if(result["runs"] < result["wanted"])


def _check_arms(base: Scenario, arms: list[Arm], **pages: Path | None) -> None:
    """What cannot be run or written is an error before the first run, not after hours."""
    for arm in arms:
        arm.scenario(base).tunables()
    for option, page in pages.items():
        check_writable(option, page)


def _write_comparison(
    result: dict[str, Any], base: Scenario, name: str, page: Path | None, text: Path | None
) -> None:
    if page is not None:
        title = f"Policies on {name}"
        write_page(comparison_page(result, title=title, notes=[_setting(base)]), page)
    if text is not None:
        write_page(markdown(result["rows"]) + "\n", text)


@o.spread
def sweep_command(
    *,
    trace: o.TraceArg,
    policy: Annotated[str, typer.Option(help="Prefill policy.")] = "linear",
    param: Annotated[
        list[str] | None,
        typer.Option(help="NAME=START:STOP:STEP or NAME=A|B swept, NAME=VALUE fixed; repeated."),
    ] = None,
    seeds: o.Seeds = "0-2",
    fleet: o.FleetOptions,
    load: o.Load = 1.0,
    workers: o.Workers = 0,
    ray: o.Ray = None,
    skip_bad: o.SkipBad = False,
    limit: o.Limit = None,
    json: o.Json = False,
) -> None:
    """Run a grid of parameters: Pareto front, and the best point with its interval."""
    with _errors_shown():
        axes, fixed = _axes(param or [], policy)
        base = fleet.scenario(policy, fixed, load=load)
        _check_axes(base, axes)
        workload, _ = o.load_workload(trace, skip_bad=skip_bad, limit=limit)
        with _stoppable("sweep") as progress:
            result = sweep(
                base, workload, axes=axes, seeds=o.parse_seeds(seeds), workers=workers, ray=ray,
                progress=progress,
            )  # fmt: skip
    if json:
        typer.echo(to_json(result))
    else:
        _print_sweep(result)
    _exit_if(result["runs"] < result["wanted"])


def _axes(params: list[str], policy: str) -> tuple[list[Axis], list[str]]:
    """Swept parameters as axes, and the fixed ones as written."""
    swept = [text for text in params if ":" in text or "|" in text]
    if not swept:
        raise BadRequest("param: expected at least one NAME=START:STOP:STEP", field="param")
    axes = [parse_axis(text, policy) for text in swept]
    return axes, [text for text in params if text not in swept]


def _check_axes(base: Scenario, axes: list[Axis]) -> None:
    """A value out of bounds is an error before the first run, not after hours."""
    for axis in axes:
        for value in axis.values:
            replace(base, params=dict(base.params) | {axis.path: value}).tunables()


def _print_sweep(result: dict[str, Any]) -> None:
    rows = [
        point | {"label": ", ".join(f"{k}={v}" for k, v in point["params"].items())}
        for point in result["points"]
    ]
    front = [row for row in rows if row["pareto"]]
    typer.echo(table(rows))
    typer.echo("\nPareto front (TTFT p50 and p99, TBT p99, hit, imbalance):")
    typer.echo(table(front))
    typer.echo(f"\nBest: {to_json(result['best'], pretty=True)}")


def _setting(s: Any) -> str:
    mode = "prefill only" if s.prefill_only else f"{s.decode} decode and {s.both} mixed nodes"
    mfu = "the profile's MFU" if s.mfu is None else f"MFU {s.mfu:g}"
    return (
        f"{s.prefill} prefill nodes ({mode}), {s.profile}, {mfu}, {s.cache_tokens:,} tokens of "
        f"cache a node, {s.link_gb_s:g} GB/s links, fetching {'on' if s.fetch else 'off'}."
    )


def _exit_if(stopped: bool) -> None:
    if stopped:
        typer.echo("stopped early; the figures cover what was done", err=True)
        raise typer.Exit(130)


@contextlib.contextmanager
def _errors_shown() -> Iterator[None]:
    """Our own errors as one line and exit status 2."""
    try:
        yield
    except ConductorError as err:
        typer.echo(f"error: {err.message}", err=True)
        raise typer.Exit(2) from None


class _Progress:
    """Writes to standard error at most five times a second; an interrupt asks for the end."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.stop = False
        self.shown_at = 0.0

    def __call__(self, done: int, total: int) -> bool:
        now = time.monotonic()
        if sys.stderr.isatty() and (now - self.shown_at > 0.2 or done == total):
            self.shown_at = now
            end = "\n" if done == total else ""
            typer.echo(f"\r{self.what}: {done}/{total}{end}", err=True, nl=False)
        return not self.stop

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """The first interrupt finishes the event or run under way, the second one kills."""
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True


@contextlib.contextmanager
def _stoppable(what: str) -> Iterator[_Progress]:
    progress = _Progress(what)
    before = signal.signal(signal.SIGINT, progress.interrupt)
    try:
        yield progress
    finally:
        signal.signal(signal.SIGINT, before)
