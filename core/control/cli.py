"""`conductor tune`, `revisions`, `rollback`, `preview`: a running service's control plane.

They talk to the admin API; a service that is not there ends with one line and code 1.
"""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Annotated, Any

import typer
from rich.table import Table

from core import wire
from core.admin_call import DEFAULT_URL, Answer, Json, Refused, Url, author_or_me, call, show
from core.errors import BadRequest
from core.tunables import Tunables, parse, resolve

_TIMEOUT_S = 120.0
Changes = Annotated[list[str], typer.Argument(help="NAME=VALUE, e.g. linear.alpha=0.7.")]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the audit.")]


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
    until: Annotated[str, typer.Option(help="Take it back then: 18:00, or with a date.")] = "",
    at: Annotated[str, typer.Option(help="Apply it then; local time, as --until.")] = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Change live parameters, now or at a time, for good or until a time."""
    asked: dict[str, Any] = {"reason": reason, "author": author_or_me()}
    asked["changes"] = _parsed(changes, _live_policy(url))
    now = datetime.now().astimezone()
    if until:
        asked["until"] = moment("until", until, now).isoformat()
    if at:
        asked["at"] = moment("at", at, now).isoformat()
        planned = _call(url, "POST", "/scheduled", wire.ScheduledView, asked)
        show(planned, json, f"{planned.id} will be applied at {planned.due_at:%Y-%m-%d %H:%M %Z}")
        return
    asked["base"] = _live(url) if base is None else base
    made = _call(url, "POST", "/revisions", wire.FullRevision, asked)
    show(made, json, f"revision {made.revision} is live: {_changes_text(made.changes)}")


def moment(option: str, text: str, now: datetime) -> datetime:
    """The time that an option names: a clock time is the next such one after `now`; a time without
    a zone is this machine's local time. BadRequest names the option."""
    try:
        clock = time.fromisoformat(text)
    except ValueError:
        pass
    else:
        today = now.astimezone(clock.tzinfo).date()
        days = (datetime.combine(today + timedelta(days=n), clock) for n in range(3))
        # A clock time without a zone goes through the zone's rules: its offset is that of its day
        # and hour, which is not today's where summer time begins or ends in between.
        return next(at for at in (day.astimezone() for day in days) if at > now)
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        wanted = "18:00 or 2026-03-01T18:00"
        raise BadRequest(f"{option}: {text!r} is no time like {wanted}", field=option) from None


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
        show(found, json, _changes_text(found.changes) or "no difference")
        return
    if number is not None:
        one = _call(url, "GET", f"/revisions/{number}", wire.FullRevision)
        show(one, json, _revision_text(one))
        return
    listed = _call(url, "GET", f"/revisions?limit={limit}", wire.RevisionList)
    table = Table("revision", "at", "kind", "author", "reason", "changes")
    for r in listed.revisions:
        mark = "*" if r.revision == listed.live else ""
        table.add_row(
            f"{r.revision}{mark}", f"{r.at:%Y-%m-%d %H:%M:%S}", r.kind, r.author, r.reason,
            _changes_text(r.changes),
        )  # fmt: skip
    show(listed, json, table)


def rollback(
    reason: Reason,
    number: Annotated[
        int | None, typer.Argument(help="Revision to restore; default: the one before.")
    ] = None,
    to: Annotated[int | None, typer.Option(help="The same as NUMBER.")] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Restore an earlier revision as a new one."""
    restore = number if to is None else to
    asked = {"reason": reason, "author": author_or_me(), "to": restore}
    made = _call(url, "POST", "/revisions/rollback", wire.FullRevision, asked)
    restored = made.detail.get("restores")
    show(made, json, f"revision {made.revision} is live, with the values of {restored}")


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
    show(told, json, "\n".join(preview_lines(told)))


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
    """As `call`, patient with a preview; where another was quicker, with both sides' changes."""
    try:
        return call(url, method, path, kind, body, timeout_s=_TIMEOUT_S)
    except Refused as refused:
        try:
            stale = wire.StaleBody.model_validate_json(refused.body).error
        except ValueError:
            raise refused from None
        theirs, yours = _changes_text(stale.theirs), _changes_text(stale.yours)
        text = f"{stale.message}\n  since then: {theirs}\n  yours: {yours}"
        raise Refused(text, field=refused.field) from None


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
