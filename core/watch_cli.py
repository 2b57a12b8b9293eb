"""`conductor alerts`, `acknowledge`, `jobs`: what watches a running service, over its admin API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from urllib.parse import quote

import typer
from rich.table import Table

from core import wire
from core.admin_call import DEFAULT_URL, Author, Json, Url, author_or_me, call, show


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (alerts, acknowledge, jobs):
        app.command()(command)


def alerts(
    url: Url = DEFAULT_URL,
    json: Json = False,
    every: Annotated[bool, typer.Option("--all", help="Inactive rules too.")] = False,
) -> None:
    """List the alerts, firing ones first."""
    found = call(url, "GET", "/alerts", wire.AlertList)
    table = Table("alert", "severity", "state", "since", "value", "limit", "what", "known to")
    for a in found.alerts:
        if every or a.state != "inactive":
            known = "" if a.acknowledged is None else a.acknowledged.author
            value = "-" if a.value is None else f"{a.value:.4g}"
            table.add_row(
                a.name, a.severity, a.state, _at(a.since), value, f"{a.limit:g}", a.summary, known
            )
    show(found, json, table)


def acknowledge(
    name: Annotated[str, typer.Argument(help="Name of an alert.")],
    note: Annotated[str, typer.Option("--note", "-m", help="What is known, or done.")],
    author: Author = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Say that somebody knows of a pending or firing alert."""
    asked = {"note": note, "author": author_or_me(author)}
    path = f"/alerts/{quote(name, safe='')}/acknowledge"
    found = call(url, "POST", path, wire.AlertView, asked)
    table = Table("alert", "state", "known to", "note")
    known = found.acknowledged
    if known is not None:
        table.add_row(found.name, found.state, known.author, known.note)
    show(found, json, table)


def jobs(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the periodic work: last run, duration, error, next run."""
    found = call(url, "GET", "/jobs", wire.JobList)
    table = Table("job", "what", "every", "runs", "failed", "last", "took", "next", "error")
    for j in found.jobs:
        took = "-" if j.last_s is None else f"{j.last_s * 1e3:.1f} ms"
        table.add_row(
            j.name, j.what, f"{j.every_s:g} s", str(j.runs), str(j.failures), _at(j.last_at),
            took, _at(j.next_at), j.last_error,
        )  # fmt: skip
    show(found, json, table)


def _at(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%H:%M:%S}"
