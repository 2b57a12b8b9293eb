"""Commands of this room: `conductor db upgrade | downgrade | status | vacuum | export | import`.

Figures go to standard output, progress to standard error; with --json standard output holds one
JSON object and nothing else.
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from sqlalchemy import Engine

from core.errors import BadRequest
from core.settings import Settings, load_settings
from storage import migrate, retention, status, transfer
from storage.database import failures_told, parse_url, reader_engine, writer_engine
from storage.rollups import RollUp

Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file; see the README's table.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TableName = Annotated[str, typer.Argument(help=f"One of {', '.join(transfer.NAMES)}.")]
StoredName = Annotated[str, typer.Argument(help=f"One of {', '.join(transfer.STORED)}.")]
_DAYS_MAX = 36_500.0
Day = Annotated[str | None, typer.Option(help="UTC time, e.g. 2026-03-01 or 2026-03-01T12:00.")]


def register(app: typer.Typer) -> None:
    """Add the group `db` to the application."""
    db = typer.Typer(help="The record database.", no_args_is_help=True)
    db.command("upgrade")(upgrade)
    db.command("downgrade")(downgrade)
    db.command("status")(show_status)
    db.command("vacuum")(vacuum)
    db.command("export")(export)
    db.command("import")(load)
    app.add_typer(db, name="db")


def upgrade(
    revision: Annotated[str, typer.Argument(help="Schema version to reach.")] = "head",
    config: Config = None,
) -> None:
    """Bring the schema up to date; roll up what is stored already."""
    url = load_settings(config).database
    reached = migrate.upgrade(url, revision)
    if reached == migrate.head():
        with failures_told(), _writing(url) as engine:
            _roll_up(engine)
    typer.echo(f"schema {reached} (newest {migrate.head()})")


def downgrade(
    revision: Annotated[str, typer.Argument(help="Schema version to go back to; base: none.")],
    config: Config = None,
    yes: Yes = False,
) -> None:
    """Take the schema back to an older version; what that one cannot hold is lost."""
    url = load_settings(config).database
    if not yes:
        shown = parse_url(url).render_as_string(hide_password=True)
        typer.confirm(f"Take {shown} back to {revision}? Newer tables are dropped", abort=True)
    reached = migrate.downgrade(url, revision)
    typer.echo(f"schema {reached} (newest {migrate.head()})")


def show_status(config: Config = None, json: Json = False) -> None:
    """Print schema, rows, sizes, what waits to be rolled up or stored, and who shares it."""
    settings = load_settings(config)
    with failures_told():
        found = status.of(settings.database, spool_dir=_spool_dir(settings))
    if json:
        typer.echo(jsonlib.dumps(found, indent=2, default=str))
        return
    for name, value in found.items():
        typer.echo(f"{name:22} {_human(value)}")


def vacuum(
    config: Config = None,
    decisions_days: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=_DAYS_MAX,
            help="Keep decisions, outcomes and readings so long (settings).",
        ),
    ] = None,
    rollups_days: Annotated[
        float | None,
        typer.Option(min=0.0, max=_DAYS_MAX, help="Keep roll-ups and events so long (settings)."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even if that is more than a fifth of a table.")
    ] = False,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Give freed space back; SQLite: copies the file.")
    ] = False,
    json: Json = False,
) -> None:
    """Delete what is too old, in small steps beside a running service; refresh statistics."""
    settings = load_settings(config)
    url, kept = settings.database, settings.records
    with failures_told(), _reading(url) as engine, engine.connect() as connection:
        migrate.require_newest(connection)
    rules = retention.Rules(
        decisions_days=kept.decisions_days if decisions_days is None else decisions_days,
        rollups_days=kept.rollups_days if rollups_days is None else rollups_days,
        prompts_days=kept.prompt_days,
        share_max=kept.delete_share_max,
    )
    with failures_told(), _writing(url) as engine:
        _roll_up(engine)
        cleaned = retention.Retention(engine, rules).run(force=force)
        freed = status.tidy(engine, shrink=shrink)
    if json:
        rows = {
            c.name: {"deleted": c.deleted, "left": c.left, "refused": c.refused} for c in cleaned
        }
        typer.echo(jsonlib.dumps({"rows": rows, "freed_bytes": freed}, indent=2))
    else:
        for c in cleaned:
            typer.echo(f"{c.name:16} {c.deleted:>12,} deleted  {c.refused}")
        typer.echo(f"{'freed':16} {freed:>12,} bytes")
    if any(c.refused for c in cleaned):
        raise typer.Exit(1)


def export(
    table: TableName,
    file: Annotated[Path, typer.Argument(help="New file; .csv or .parquet.")],
    start: Day = None,
    end: Day = None,
    config: Config = None,
) -> None:
    """Write a table to a file; `audit` is decisions beside their outcomes."""
    url = load_settings(config).database
    since, until = _time("start", start), _time("end", end)
    with failures_told(), _reading(url) as engine:
        with engine.connect() as connection:
            total = transfer.count(connection, table, since, until)
        with _bar(f"exporting {table}", total) as advance:
            done = transfer.export(engine, table, file, start=since, end=until, progress=advance)
    typer.echo(f"{done:,} rows of {table} in {file}")


def load(
    table: StoredName,
    file: Annotated[Path, typer.Argument(help="File that `db export` wrote.")],
    config: Config = None,
) -> None:
    """Store a file's rows; what is there already stays as it is."""
    url = load_settings(config).database
    migrate.upgrade(url)
    with failures_told(), _writing(url) as engine, _bar(f"importing {table}", None) as advance:
        read, new = transfer.load(engine, table, file, progress=advance)
    typer.echo(f"{read:,} rows of {table} read, {new:,} of them new")


def _roll_up(engine: Engine) -> None:
    """Until nothing is out of date, with progress: after an upgrade that may be a lot."""
    with _bar("rolling up", None) as advance:
        roll_up, complete = RollUp(engine), False
        while not complete:
            rolled = roll_up.run(budget_s=1.0)
            complete = rolled.complete
            advance(rolled.buckets)


def _time(name: str, given: str | None) -> datetime | None:
    if given is None:
        return None
    try:
        at = datetime.fromisoformat(given)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadRequest(
            f"{name}: {given!r} is not a time like 2026-03-01T12:00", field=name
        ) from None


def _spool_dir(settings: Settings) -> Path:
    return settings.state_dir / "spool"


def _human(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@contextmanager
def _writing(url: str) -> Iterator[Engine]:
    engine = writer_engine(url, connections=2)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _reading(url: str) -> Iterator[Engine]:
    engine = reader_engine(url, connections=1)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; yields a function that advances it."""
    columns = (escape(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda rows: bar.advance(task, rows)
