"""The `conductor` command. Each command is a few lines over a function that does the work."""

from __future__ import annotations

import asyncio
import json as jsonlib
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from core import admin_cli, admin_token, cache_cli, cpp_cli, identity_cli, watch_cli
from core.admin_call import Url, print_error, print_table
from core.control import cli as control
from core.errors import BadRequest, ConductorError, UsageError
from core.settings import load_settings
from core.simulation import cli as simulation
from storage import cli as storage_cli

app = typer.Typer(
    help="A global scheduler for fleets of LLM engines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file; see the README's table.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
HistoryUrl = Annotated[
    str,
    typer.Option(
        "--history-url",
        help="Address of `conductor serve --history-only`, for stored records while it is down.",
    ),
]
Key = Annotated[
    str,
    typer.Option(
        envvar="CONDUCTOR_API_KEY", show_envvar=True, help="Data-plane key, where one is needed."
    ),
]
DEFAULT_URL = "http://127.0.0.1:8080"


@app.callback()
def program(
    token: Annotated[
        str,
        typer.Option(
            envvar="CONDUCTOR_TOKEN",
            show_envvar=True,
            help="Acts with this token; default: admin.token of a service on this machine.",
        ),
    ] = "",
) -> None:
    """A global scheduler for fleets of LLM engines."""
    admin_token.use(token)


def main() -> None:
    """Entry point: usage errors end with one line that names the field, and code 2."""
    try:
        app()
    except ConductorError as e:
        print_error(e.message)
        sys.exit(2 if isinstance(e, UsageError) else 1)


@app.command()
def up(config: Config = None) -> None:
    """Start service and console; without nodes in CONFIG, also an emulated fleet with traffic."""
    from core.up import run_up

    sys.exit(run_up(load_settings(config), config))


@app.command()
def serve(
    config: Config = None,
    history_only: Annotated[
        bool,
        typer.Option(
            "--history-only",
            help="Only stored records, read-only, on history.port.",
        ),
    ] = False,
) -> None:
    """Run the scheduler service: OpenAI-compatible gateway and admin API."""
    from core.serve import run_history, run_service

    (run_history if history_only else run_service)(load_settings(config))


@app.command()
def console(config: Config = None, url: Url = DEFAULT_URL, history_url: HistoryUrl = "") -> None:
    """Run the operations console against a running service."""
    from core.serve import run_console

    run_console(load_settings(config), url, history_url)


@app.command()
def doctor(config: Config = None, json: Json = False) -> None:
    """Check settings, ports, database and every node; code 1 when something is wrong."""
    from core.doctor import checks

    found = asyncio.run(checks(load_settings(config)))
    if json:
        typer.echo(jsonlib.dumps([c.as_dict() for c in found], indent=2))
    else:
        table = Table("check", "result", "detail")
        for c in found:
            table.add_row(c.name, Text(c.level, style=c.colour), c.detail)
        print_table(table)
    sys.exit(any(c.failed for c in found))


@app.command()
def explain(
    decision: Annotated[str, typer.Argument(help="Decision id, or a unique start of it.")],
    config: Config = None,
    prompt: Annotated[
        bool, typer.Option("--prompt", help="The kept prompt too; entered in the audit.")
    ] = False,
    json: Json = False,
) -> None:
    """Print why a request went where it went: candidates, terms, constraints, what happened."""
    from core.explain import explain_json, explain_text
    from core.identity_cli import read_prompt
    from storage.store import Store

    store = Store(load_settings(config).database)
    try:
        stored = store.decision(decision)
        text = read_prompt(store, stored.decision.id) if prompt else ""
    finally:
        store.close()
    told = explain_json(stored) if json else explain_text(stored)
    if prompt and json:
        told = jsonlib.dumps({**jsonlib.loads(told), "prompt": text})
    elif prompt:
        told += f"\nprompt (redacted)\n{text}"
    typer.echo(told)


@app.command()
def replay(
    trace: Annotated[Path, typer.Argument(help="Trace file (Mooncake or Bailian format).")],
    speed: Annotated[float, typer.Option(min=1e-3, help="Times the trace's own pace.")] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, help="First requests only.")] = None,
    url: Url = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Model; default the first served.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fix the tokens; default new each run.")] = None,
    vocabulary: Annotated[int, typer.Option(min=200, help="Token ids stay below this.")] = 2000,
    max_output: Annotated[int | None, typer.Option(min=1, help="Cap of output tokens.")] = None,
    skip_bad: Annotated[bool, typer.Option(help="Leave out malformed lines, counted.")] = False,
    key: Key = "",
    json: Json = False,
) -> None:
    """Send a trace as real requests and print latencies, reuse and errors.

    Code 1 where not one of them was answered.
    """
    from core.replay import Replay, report_lines
    from core.simulation.traces import read_trace

    loaded = read_trace(trace, skip_bad=skip_bad, limit=limit)
    if not loaded.requests:
        raise BadRequest(f"{trace}: the trace holds no requests", field="trace")
    run = Replay(
        loaded,
        url,
        speed=speed,
        model=model,
        salt=seed,
        vocabulary=vocabulary,
        output_tokens_max=max_output,
        api_key=key or None,
    )
    with _progress(len(loaded.requests), "replaying") as advance:
        result = asyncio.run(_stoppable(run, advance))
    if json:
        typer.echo(jsonlib.dumps(result, indent=2))
    else:
        _print_pairs(report_lines(result))
    if result["errors"] == result["requests"]:
        sys.exit(1)


@app.command(hidden=True)
def workload(
    url: Url = DEFAULT_URL,
    model: Annotated[str, typer.Option()] = "demo-7b",
    rate: Annotated[float, typer.Option(min=0.01)] = 2.0,
    seed: Annotated[int, typer.Option()] = 0,
    key: Key = "",
) -> None:
    """Send gentle chat traffic until stopped."""
    from core.workload import run_workload

    try:
        asyncio.run(run_workload(url, model=model, requests_per_s=rate, seed=seed, key=key))
    except KeyboardInterrupt:
        sys.exit(0)


async def _stoppable(run: Any, advance: Any) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, run.stop)
    result: dict[str, Any] = await run.run(advance)
    return result


@contextmanager
def _progress(total: int, text: str) -> Iterator[Any]:
    """A progress bar on standard error; yields a function that advances it."""
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda n: bar.advance(task, n)


def _print_pairs(pairs: Iterator[tuple[str, str]]) -> None:
    table = Table(show_header=False)
    for label, text in pairs:
        table.add_row(label, text)
    print_table(table)


simulation.register(app)
control.register(app)
admin_cli.register(app)
cache_cli.register(app)
watch_cli.register(app)
cpp_cli.register(app)
storage_cli.register(app)
identity_cli.register(app)


if __name__ == "__main__":
    main()
