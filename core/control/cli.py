"""`conductor tune`, `revisions`, `rollback`, `preview`: a running service's control plane.

They talk to the admin API; a service that is not there ends with one line and code 1.
"""

from __future__ import annotations

import getpass
import json as jsonlib
from datetime import datetime
from typing import Annotated, Any, TypeVar

import httpx
import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from core import admin_token, wire
from core.errors import BadRequest, ConductorError
from core.tunables import Tunables, parse, resolve

DEFAULT_URL = "http://127.0.0.1:8080"
_TIMEOUT_S = 120.0
Url = Annotated[str, typer.Option("--url", help="Address of the service.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Changes = Annotated[list[str], typer.Argument(help="NAME=VALUE, e.g. linear.alpha=0.7.")]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the audit.")]
Answer = TypeVar("Answer", bound=BaseModel)


class Refused(ConductorError):
    """The service refused, or is not there."""


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(tune)
    app.command()(revisions)
    app.command()(rollback)
    app.command()(preview)


def tune(
    changes: Changes,
    reason: Reason,
    base: Annotated[
        int | None, typer.Option(help="Revision you looked at; default: the live one.")
    ] = None,
    until: Annotated[datetime | None, typer.Option(help="Take it back then; local time.")] = None,
    at: Annotated[datetime | None, typer.Option(help="Apply it then; local time.")] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Change live parameters, now or at a time, for good or until a time."""
    asked: dict[str, Any] = {"reason": reason, "author": _author()}
    asked["changes"] = _parsed(changes, _live_policy(url))
    if until is not None:
        asked["until"] = until.astimezone().isoformat()
    if at is not None:
        asked["at"] = at.astimezone().isoformat()
        planned = _call(url, "POST", "/scheduled", wire.ScheduledView, asked)
        _print(planned, json, f"{planned.id} will be applied at {planned.due_at:%Y-%m-%d %H:%M %Z}")
        return
    asked["base"] = _live(url) if base is None else base
    made = _call(url, "POST", "/revisions", wire.FullRevision, asked)
    _print(made, json, f"revision {made.revision} is live: {_changes_text(made.changes)}")


def revisions(
    number: Annotated[int | None, typer.Argument(help="Only this one, in full.")] = None,
    diff: Annotated[
        int | None, typer.Option(help="Compare NUMBER with this revision (0: the live one).")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 20,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """List revisions, show one, or compare two."""
    if number is not None and diff is not None:
        to = f"?to={diff}" if diff else ""
        found = _call(url, "GET", f"/revisions/{number}/diff{to}", wire.RevisionDiff)
        _print(found, json, _changes_text(found.changes) or "no difference")
        return
    if number is not None:
        one = _call(url, "GET", f"/revisions/{number}", wire.FullRevision)
        _print(one, json, _revision_text(one))
        return
    listed = _call(url, "GET", f"/revisions?limit={limit}", wire.RevisionList)
    table = Table("revision", "at", "kind", "author", "reason", "changes")
    for r in listed.revisions:
        mark = "*" if r.revision == listed.live else ""
        table.add_row(
            f"{r.revision}{mark}", f"{r.at:%Y-%m-%d %H:%M:%S}", r.kind, r.author, r.reason,
            _changes_text(r.changes),
        )  # fmt: skip
    _print(listed, json, table)


def rollback(
    reason: Reason,
    to: Annotated[
        int | None, typer.Option(help="Revision to restore; default: the one before.")
    ] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Restore an earlier revision as a new one."""
    asked = {"reason": reason, "author": _author(), "to": to}
    made = _call(url, "POST", "/revisions/rollback", wire.FullRevision, asked)
    restored = made.detail.get("restores")
    _print(made, json, f"revision {made.revision} is live, with the values of {restored}")


def preview(
    changes: Changes,
    decisions: Annotated[int, typer.Option(min=1, max=5000, help="Newest decisions.")] = 500,
    simulate: Annotated[
        bool, typer.Option(help="Also play the last requests in the simulator.")
    ] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Say what changes would do to recorded decisions; nothing is changed."""
    asked = {
        "changes": _parsed(changes, _live_policy(url)),
        "decisions": decisions,
        "simulate": simulate,
    }
    told = _call(url, "POST", "/preview", wire.PreviewView, asked)
    _print(told, json, "\n".join(preview_lines(told)))


def preview_lines(p: wire.PreviewView) -> list[str]:
    """A preview for people."""
    lines = [f"{p.moved} of {p.decisions} decisions would move ({p.left_out} left out)"]
    for name in wire.PreviewFigures.model_fields:
        before, after = getattr(p.before, name), getattr(p.after, name)
        lines.append(f"  {name:20} {_figure(before):>10} -> {_figure(after)}")
    lines += [f"  {m.source} -> {m.target}: {m.count}" for m in p.moves[:10]]
    lines += [f"{e.path}: {e.text}" for e in p.effects]
    lines += [
        f"  {e.id} {e.source} -> {e.target}, TTFT {e.ttft_s[0]:.3g} -> {e.ttft_s[1]:.3g} s, "
        f"cached {e.match_tokens[0]} -> {e.match_tokens[1]}"
        for e in p.examples
    ]
    if p.fidelity is not None:
        lines.append(f"re-scored under the live parameters, {p.fidelity:.1%} come out as recorded")
    if p.replay is not None:
        lines.append(f"simulated {p.replay.requests} requests over {p.replay.span_s:.0f} s:")
        for name in ("hit_ratio", "imbalance", "good_share", "goodput_rps"):
            old, new = p.replay.live.get(name), p.replay.proposed.get(name)
            lines.append(f"  {name:20} {_figure(old):>10} -> {_figure(new)}")
        lines += [f"note: {note}" for note in p.replay.notes]
    return lines + [f"note: {note}" for note in p.assumptions]


def _parsed(changes: list[str], policy: str) -> dict[str, Any]:
    """NAME=VALUE texts as typed values; short names belong to the policy that will be live."""
    pairs: dict[str, str] = {}
    for text in changes:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadRequest(f"{text!r}: expected NAME=VALUE", field="changes")
        pairs[name] = value
    owner = pairs.get("policy", policy)
    paths = {resolve(name, owner): value for name, value in pairs.items()}
    values = {path: parse(path, value) for path, value in paths.items()}
    Tunables().changed({p: v for p, v in values.items() if not p.startswith("weighted.")})
    return values


def _live(url: str) -> int:
    return _call(url, "GET", "/revisions?limit=1", wire.RevisionList).live


def _live_policy(url: str) -> str:
    return _call(url, "GET", "/policies", wire.PolicyList).live


def _call(
    url: str, method: str, path: str, kind: type[Answer], body: dict[str, Any] | None = None
) -> Answer:
    """One request to the admin API; Refused with its message where it fails."""
    try:
        answer = httpx.request(
            method,
            f"{url.rstrip('/')}{wire.API_PREFIX}{path}",
            json=body,
            headers=admin_token.headers(url),
            timeout=_TIMEOUT_S,
        )
    except httpx.HTTPError as error:
        raise Refused(f"{url}: {error}") from None
    if answer.status_code >= 400:
        raise Refused(_why(answer))
    return kind.model_validate_json(answer.content)


def _why(answer: httpx.Response) -> str:
    try:
        error = wire.ErrorBody.model_validate_json(answer.content).error
    except ValueError:
        return f"status {answer.status_code}"
    if answer.status_code != 409:
        return admin_token.advised(answer.status_code, error.message)
    try:
        stale = wire.StaleBody.model_validate_json(answer.content).error
    except ValueError:
        return error.message
    theirs, yours = _changes_text(stale.theirs), _changes_text(stale.yours)
    return f"{stale.message}\n  since then: {theirs}\n  yours: {yours}"


def _author() -> str:
    try:
        return getpass.getuser()[:128]
    except (KeyError, OSError):
        return ""


def _revision_text(r: wire.FullRevision) -> str:
    lines = [
        f"revision {r.revision} ({r.kind}) of {r.at:%Y-%m-%d %H:%M:%S %Z}, made from {r.base}",
        f"{r.author or 'unknown'}: {r.reason}",
        *(f"  {path}: {old} -> {new}" for path, (old, new) in r.changes.items()),
        *(f"  {name}: {value}" for name, value in r.detail.items()),
    ]
    return "\n".join(lines)


def _changes_text(changes: dict[str, list[Any]]) -> str:
    return ", ".join(f"{path} {old} -> {new}" for path, (old, new) in changes.items())


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _print(answer: BaseModel, json: bool, text: str | Table) -> None:
    if json:
        typer.echo(jsonlib.dumps(answer.model_dump(mode="json"), indent=2))
    elif isinstance(text, str):
        typer.echo(text)
    else:
        Console().print(text)
