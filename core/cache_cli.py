"""`conductor hot`, `migrate`: hot prefixes of a running service, and their copies."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer
from rich.table import Table

from core import wire
from core.admin_call import DEFAULT_URL, Author, Json, Url, author_or_me, call, show


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (hot, migrate):
        app.command()(command)


def hot(
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 20,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """List the prefixes that are asked for most, who holds them, and their copies under way."""
    found = call(url, "GET", f"/cache/hot?limit={limit}", wire.HotPrefixes)
    if json:
        show(found, json, "")
        return
    moves = call(url, "GET", f"/migrations?limit={limit}", wire.MigrationList)
    coming = [*moves.running, *moves.planned]
    table = Table("prefix", "tokens", "per second", "hits", "holders", "copies")
    for p in found.prefixes:
        held = ", ".join(p.holders) or "nobody"
        copies = ", ".join(f"{m.target} ({_state(m)})" for m in coming if m.prefix == p.key)
        table.add_row(
            p.key, f"{p.tokens:,}", f"{p.rate_per_s:.2f}", f"{p.hits:.0f}", held, copies
        )  # fmt: skip
    show(found, json, table)
    show(moves, json, moves_table(moves))
    show(moves, json, _summary(moves))


def migrate(
    prefix: Annotated[
        str | None, typer.Argument(help="Key of a prefix, as `hot` shows it; none lists copies.")
    ] = None,
    to: Annotated[str, typer.Option("--to", help="Id of the node to copy it to.")] = "",
    cancel: Annotated[str, typer.Option(help="Id of a copy to give up.")] = "",
    reason: Annotated[str, typer.Option("--reason", "-m", help="Why; kept.")] = "",
    author: Author = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """List copies of hot prefixes, copy one to a node, or give one up."""
    who = author_or_me(author)
    if cancel:
        asked = {"reason": reason, "author": who}
        one = call(
            url, "POST", f"/migrations/{quote(cancel, safe='')}/cancel", wire.MigrationView, asked
        )
        show(one, json, f"{one.id}: {one.state}")
    elif prefix is not None:
        asked = {"prefix": prefix, "target": to, "reason": reason, "author": who}
        one = call(url, "POST", "/migrations", wire.MigrationView, asked)
        show(one, json, f"{one.id}: {one.tokens:,} tokens to {one.target} by {one.how}")
    else:
        moves = call(url, "GET", "/migrations", wire.MigrationList)
        show(moves, json, moves_table(moves))
        if not json:
            show(moves, json, _summary(moves))


def moves_table(moves: wire.MigrationList) -> Table:
    """All of them, those at work first."""
    table = Table("copy", "prefix", "tokens", "from", "to", "by", "state", "benefit", "moved")
    for m in (*moves.running, *moves.planned, *moves.ended):
        table.add_row(
            m.id or "-", m.prefix, f"{m.tokens:,}", m.source, m.target, m.how, _state(m),
            f"{m.benefit_s:.3g} s", f"{m.moved_bytes / 1e6:,.3g} MB" if m.moved_bytes else "",
        )  # fmt: skip
    return table


def _state(m: wire.MigrationView) -> str:
    if m.dry_run:
        return "dry run"
    return f"{m.state}: {m.error}" if m.error else m.state


def _summary(moves: wire.MigrationList) -> str:
    t = moves.totals
    text = f"migration is {moves.mode}; {t.done} copied, {t.failed} failed"
    back = ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in moves.held_back.items())
    return f"{text}; left where they are: {back}" if back else text
