"""`conductor nodes`, `drain`, `undrain`, `trip`, `reset`: the nodes of a running service.

They talk to the admin API; a service that is not there, or refuses, ends with one line and
code 1. With --json standard output holds the API's answer and nothing else.
"""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from core import wire
from core.admin_call import DEFAULT_URL, Author, Json, Url, author_or_me, call, show
from core.errors import BadRequest

_POLL_S = 0.5
Node = Annotated[str, typer.Argument(help="Id of a node.")]
OneNode = Annotated[str | None, typer.Argument(help="Id of a node.")]
Everything = Annotated[
    bool, typer.Option("--global", help="The global breaker: tripped, requests go round robin.")
]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the events.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (nodes, drain, undrain, trip, reset):
        app.command()(command)


def nodes(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the nodes: health, breaker, drain, load, cache, notes."""
    found = call(url, "GET", "/nodes", wire.NodeList)
    table = Table("node", "role", "state", "breaker", "in flight", "load", "queue", "weight",
                  "cached", "note")  # fmt: skip
    for n in found.nodes:
        table.add_row(
            n.id, n.role.value, state_of(n), breaker_text(n.breaker), str(n.load.inflight),
            f"{n.load.load:.2f}", f"{n.load.queue_s:.2f} s", f"{n.weight:g}",
            f"{n.cached_tokens:,}", "" if n.note is None else n.note.text,
        )  # fmt: skip
    show(found, json, table)


def drain(
    node: Node,
    reason: Reason = "",
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for its last request; 0: do not wait.")
    ] = 0.0,
    author: Author = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Place no new requests on a node; with --wait, until its running ones have ended.

    Code 1 where they have not when the time is over; the drain goes on.
    """
    asked = {"reason": reason, "author": author_or_me(author)}
    view = call(url, "POST", f"{_path(node)}/drain", wire.NodeView, asked)
    end = time.monotonic() + wait
    while not _drained(view) and time.monotonic() < end:
        time.sleep(min(_POLL_S, wait))
        view = call(url, "GET", _path(node), wire.NodeView)
    show(view, json, f"{view.id}: {state_of(view)}")
    if wait and not _drained(view):
        raise typer.Exit(1)


def undrain(
    node: Node,
    reason: Reason = "",
    author: Author = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Place requests on a node again."""
    asked = {"reason": reason, "author": author_or_me(author)}
    view = call(url, "POST", f"{_path(node)}/undrain", wire.NodeView, asked)
    show(view, json, f"{view.id}: {state_of(view)}")


def trip(
    node: OneNode = None,
    everything: Everything = False,
    reason: Annotated[str, typer.Option("--reason", "-m", help="Why; kept.")] = "",
    seconds: Annotated[
        float | None, typer.Option("--for", help="Seconds; default: until it is reset.")
    ] = None,
    author: Author = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Take a node out by its breaker, or (--global) hand scheduling to round robin."""
    _switch(url, node, everything, "trip", reason, seconds, author, json)


def reset(
    node: OneNode = None,
    everything: Everything = False,
    reason: Annotated[str, typer.Option("--reason", "-m", help="Why; kept.")] = "",
    hold: Annotated[
        float | None, typer.Option("--hold", help="Keep it closed for so many seconds.")
    ] = None,
    author: Author = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Close a node's breaker, or (--global) the global one."""
    action = "reset" if hold is None else "hold"
    _switch(url, node, everything, action, reason, hold, author, json)


def state_of(n: wire.NodeView) -> str:
    """What a node is up to, in a few words."""
    if n.drain is None:
        return "draining" if n.draining else n.health.value
    if n.drain.state == "draining":
        return f"draining: {n.drain.running} of {n.drain.running_at_start} requests left"
    return n.drain.state


def breaker_text(b: wire.BreakerView) -> str:
    """A breaker's state with who, why and how long."""
    parts = [b.state]
    if b.until_s is not None:
        parts.append(f"for {b.until_s:.0f} s")
    if b.actor:
        parts.append(f"by {b.actor}")
    if b.reason:
        parts.append(f"({b.reason})")
    return " ".join(parts)


def _drained(n: wire.NodeView) -> bool:
    return n.drain is not None and n.drain.done


def _switch(
    url: str,
    node: str | None,
    everything: bool,
    action: str,
    reason: str,
    seconds: float | None,
    author: str,
    json: bool,
) -> None:
    """One act on a node's breaker or the global one."""
    if (node is None) is not everything:
        raise BadRequest("node: give a node's id, or --global", field="node")
    asked: dict[str, Any] = {"action": action, "reason": reason, "seconds": seconds}
    asked["author"] = author_or_me(author)
    if node is None:
        breaker = call(url, "POST", "/breaker", wire.BreakerView, asked)
        show(breaker, json, f"global breaker: {breaker_text(breaker)}")
        return
    view = call(url, "POST", f"{_path(node)}/breaker", wire.NodeView, asked)
    show(view, json, f"{view.id}: {breaker_text(view.breaker)}")


def _path(node: str) -> str:
    if not node:
        raise BadRequest("node: expected a node's id, as `conductor nodes` shows it", field="node")
    return f"/nodes/{quote(node, safe='')}"
