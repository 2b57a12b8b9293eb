"""`conductor users | tokens | keys | audit`: who may do what, and what was done.

These work on the database itself, running service or not: whoever can open it may. That is how
the first administrator is made, and how one who is locked out gets in again. A running service
follows within seconds. Passwords are asked for, or read from standard input; secrets are printed
once.
"""

from __future__ import annotations

import getpass
import json as jsonlib
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from core.admin_call import print_table
from core.clock import SystemClock
from core.errors import BadRequest
from core.identity.audit import entry
from core.identity.credentials import CredentialKind
from core.identity.identities import Identities
from core.identity.principal import ACTING, AccessRole, Kind, Principal
from core.ports import AuditRecord, KeyRecord
from core.settings import load_settings
from core.wire.identity import (
    CONCURRENT_MAX,
    DAYS_MAX,
    REQUESTS_PER_S_MAX,
    TOKENS_PER_MIN_MAX,
)
from storage import migrate
from storage.store import Store

Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file; see the README's table.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the audit.")]
Days = Annotated[
    float | None,
    typer.Option(min=0.001, max=DAYS_MAX, help="Life in days; default: no end."),
]
RoleOption = Annotated[AccessRole, typer.Option("--role", help="What it may do.")]
Id = Annotated[str, typer.Argument(help="The public id, as the list shows it.")]
_PRIVATE = frozenset({"digest", "cache_salt", "password_hash"})


def register(app: typer.Typer) -> None:
    """Add the four groups to the program."""
    groups: dict[str, tuple[str, dict[str, Any]]] = {
        "users": (
            "People who sign in with a password.",
            {"add": add_user, "list": list_users, "disable": disable, "enable": enable,
             "passwd": passwd, "role": set_role},
        ),
        "tokens": (
            "Tokens of the admin API.",
            {"create": create_token, "list": list_tokens, "revoke": revoke_token},
        ),
        "keys": (
            "Keys of the data plane.",
            {"create": create_key, "list": list_keys, "revoke": revoke_key},
        ),
        "audit": (
            "The administrative audit.",
            {"list": list_audit, "verify": verify_audit},
        ),
    }  # fmt: skip
    for name, (text, commands) in groups.items():
        group = typer.Typer(help=text, no_args_is_help=True)
        for command, function in commands.items():
            group.command(command)(function)
        app.add_typer(group, name=name)


# -- users ---------------------------------------------------------------------------------------


def add_user(
    name: str, role: RoleOption = AccessRole.VIEWER, reason: Reason = "", config: Config = None
) -> None:
    """Add a user; the password is asked for, or read from standard input."""
    with _acts(config) as (acts, _):
        acts.add_user(name, role, _password(), reason=reason)
    typer.echo(f"{name} may sign in, as {role.value}")


def list_users(config: Config = None, json: Json = False) -> None:
    """List users."""
    with _acts(config) as (_, store):
        found = [_shown(u) for u in store.users()]
    _print(found, json, ("name", "role", "disabled", "created_at", "created_by", "changed_at"))


def disable(name: str, reason: Reason = "", config: Config = None) -> None:
    """Shut a user out; running sessions end."""
    with _acts(config) as (acts, _):
        acts.change_user(name, disabled=True, reason=reason)
    typer.echo(f"{name} is shut out")


def enable(name: str, reason: Reason = "", config: Config = None) -> None:
    """Let a user in again."""
    with _acts(config) as (acts, _):
        acts.change_user(name, disabled=False, reason=reason)
    typer.echo(f"{name} may sign in again")


def passwd(name: str, reason: Reason = "", config: Config = None) -> None:
    """Set a new password; running sessions end."""
    with _acts(config) as (acts, store):
        store.user(name)
        acts.change_user(name, password=_password(), reason=reason)
    typer.echo(f"{name} has a new password")


def set_role(name: str, role: AccessRole, reason: Reason = "", config: Config = None) -> None:
    """Give a user another role; it holds for running sessions too."""
    with _acts(config) as (acts, _):
        acts.change_user(name, role=role, reason=reason)
    typer.echo(f"{name} is {role.value}")


# -- tokens and keys -----------------------------------------------------------------------------


def create_token(
    name: str,
    role: RoleOption = AccessRole.VIEWER,
    days: Days = None,
    reason: Reason = "",
    config: Config = None,
) -> None:
    """Make a token and print it, this once."""
    with _acts(config) as (acts, _):
        made, _record = acts.create_token(name, role, life=_life(days), reason=reason)
    typer.echo(made.text)


def list_tokens(config: Config = None, json: Json = False) -> None:
    """List tokens and running sessions."""
    with _acts(config) as (_, store):
        found = [_shown(t) for t in store.tokens()]
    for row in found:
        row["kind"] = "session" if row["kind"] == CredentialKind.SESSION else "token"
    _print(found, json, ("id", "kind", "name", "role", "created_at", "expires_at", "revoked_at"))


def revoke_token(id: Id, reason: Reason = "", config: Config = None) -> None:
    """End a token or a session."""
    with _acts(config) as (acts, _):
        acts.revoke_token(id, reason=reason)
    typer.echo(f"{id} is revoked")


def create_key(
    name: str,
    tenant: Annotated[str, typer.Option(help="Whose requests are sent with it.")],
    requests_per_s: Annotated[
        float, typer.Option(min=0, max=REQUESTS_PER_S_MAX, help="0: no limit.")
    ] = 0.0,
    concurrent: Annotated[
        int, typer.Option(min=0, max=CONCURRENT_MAX, help="At once; 0: no limit.")
    ] = 0,
    tokens_per_min: Annotated[
        int, typer.Option(min=0, max=TOKENS_PER_MIN_MAX, help="0: no limit.")
    ] = 0,
    days: Days = None,
    reason: Reason = "",
    config: Config = None,
) -> None:
    """Make a key of the data plane and print it, this once."""
    with _acts(config) as (acts, _):
        made, _record = acts.create_key(
            name,
            tenant,
            requests_per_s=requests_per_s,
            concurrent_max=concurrent,
            tokens_per_min=tokens_per_min,
            life=_life(days),
            reason=reason,
        )
    typer.echo(made.text)


def list_keys(config: Config = None, json: Json = False) -> None:
    """List the keys of the data plane."""
    with _acts(config) as (_, store):
        rows: Sequence[KeyRecord] = store.keys()
        found = [_shown(row) for row in rows]
    _print(
        found,
        json,
        ("id", "name", "tenant", "requests_per_s", "concurrent_max", "tokens_per_min",
         "created_at", "expires_at", "revoked_at"),
    )  # fmt: skip


def revoke_key(id: Id, reason: Reason = "", config: Config = None) -> None:
    """End a key."""
    with _acts(config) as (acts, _):
        acts.revoke_key(id, reason=reason)
    typer.echo(f"{id} is revoked")


# -- audit ---------------------------------------------------------------------------------------


def list_audit(
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
    before: Annotated[
        int | None, typer.Option(min=1, max=2**63 - 1, help="Entries below this number.")
    ] = None,
    actor: Annotated[str, typer.Option(help="Who; `*` ends a prefix.")] = "",
    action: Annotated[str, typer.Option(help="What; `*` ends a prefix.")] = "",
    target: Annotated[str, typer.Option(help="To what; `*` ends a prefix.")] = "",
    config: Config = None,
    json: Json = False,
) -> None:
    """List administrative acts, newest first."""
    with _acts(config) as (_, store):
        found = store.audit(before=before, limit=limit, actor=actor, action=action, target=target)
    if json:
        typer.echo(jsonlib.dumps([_shown(e) for e in found], default=str, indent=2))
        return
    if not found:
        typer.echo("no entry fits")
    for e in found:
        who = f"{e.actor} ({e.kind})" + (f" from {e.peer}" if e.peer else "")
        what = f"{e.action} {e.target}".rstrip()
        why = f": {e.reason}" if e.reason else ""
        typer.echo(f"{e.number:>6}  {e.at:%Y-%m-%d %H:%M:%S}  {what}  by {who}{why}")
        for line in _changes(e):
            typer.echo(f"        {line}")


def verify_audit(config: Config = None, json: Json = False) -> None:
    """Read the whole chain again; code 1, and the entry, where it is not as it was written."""
    with _acts(config) as (_, store):
        checked, fault = store.verify_audit()
        head = "" if not checked else store.audit(before=checked + 1, limit=1)[0].digest
    if json:
        told = None if fault is None else {"number": fault.number, "what": fault.what}
        typer.echo(jsonlib.dumps({"checked": checked, "fault": told, "digest": head}))
    elif fault is None:
        typer.echo(f"{checked} entries, each as it was written; the last digest is {head}")
    else:
        typer.echo(f"entry {fault.number} {fault.what}; {checked} before it are as they were")
    if fault is not None:
        raise typer.Exit(1)


# -- small things --------------------------------------------------------------------------------


@contextmanager
def _acts(config: Path | None) -> Iterator[tuple[Identities, Store]]:
    """The store, at the newest schema, acting as the user of this machine."""
    url = load_settings(config).database
    migrate.upgrade(url)
    store = Store(url)
    try:
        with _acting():
            yield Identities(store, SystemClock()), store
    finally:
        store.close()


@contextmanager
def _acting() -> Iterator[None]:
    """As the user of this machine, in what the audit is told."""
    who = Principal(
        name=_me(), role=AccessRole.ADMIN, kind=Kind.LOCAL, peer=f"{socket.gethostname()} (command)"
    )
    before = ACTING.set(who)
    try:
        yield
    finally:
        ACTING.reset(before)


def read_prompt(store: Store, decision: str) -> str:
    """The kept prompt of a decision, once the audit has the entry that says who reads it.

    NotFound where none is kept; StoreError where the entry cannot be stored.
    """
    found = store.prompt(decision)
    with _acting():
        store.append_audit(entry("prompt.read", SystemClock().wall(), target=decision))
    return found.text


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _password() -> str:
    """Asked for twice on a terminal; else one line of standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    first = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != first:
        raise BadRequest("password: the two are not the same", field="password")
    return first


def _life(days: float | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def _shown(record: msgspec.Struct) -> dict[str, Any]:
    found = msgspec.structs.asdict(record)
    return {name: value for name, value in found.items() if name not in _PRIVATE}


def _changes(e: AuditRecord) -> Iterator[str]:
    """A field a line: what the act made of it; how all of them stood, where it only tells that."""
    before, after = _facts(e.before), _facts(e.after)
    if not after:
        yield from (f"{name} was {value}" for name, value in before.items())
    for name, value in after.items():
        if name not in before:
            yield f"{name}: {value}"
        elif before[name] != value:
            yield f"{name}: {before[name]} -> {value}"


def _facts(text: str) -> dict[str, Any]:
    try:
        found = jsonlib.loads(text or "{}")
    except ValueError:
        return {"as written": text}
    return found if isinstance(found, dict) else {"as written": text}


def _print(rows: Sequence[Mapping[str, Any]], json: bool, columns: Sequence[str]) -> None:
    if json:
        typer.echo(jsonlib.dumps(list(rows), default=str, indent=2))
        return
    table = Table()
    for name in columns:
        table.add_column(name, no_wrap=name == "id", overflow="fold")  # ids are there to be copied
    for row in rows:
        table.add_row(*(_text(row[name]) for name in columns))
    print_table(table)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return str(value)
