"""`conductor plan-cpp`: the pipeline group for a long prompt on a fleet of equal nodes, offline."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from typing import Annotated, Any

import typer

from core.domain import LinkKind, NodeId, NodeSpec, Place
from core.errors import BadRequest
from core.plan.cost_model import Profile, prefill_coefficients, profile
from core.plan.cpp import CppModel, CppNode, CppPlan, plan, wanted
from core.plan.cpp_plan import explain
from core.plan.pipeline import whole_s
from core.plan.transfer import Topology
from core.tunables import Cpp, Tunables, parse

Pairs = Annotated[
    list[str] | None, typer.Option("--set", help="A tunable, e.g. cpp.group_max=8 (repeatable).")
]
NODES_MAX = 1024
TOKENS_MAX = 100_000_000


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("plan-cpp")(plan_cpp)


def plan_cpp(
    tokens: Annotated[
        int,
        typer.Option(min=2, max=TOKENS_MAX, help="Prompt tokens, the cached prefix included."),
    ],
    prefix: Annotated[int, typer.Option(min=0, help="Cached on the first node.")] = 0,
    nodes: Annotated[int, typer.Option(min=1, max=NODES_MAX, help="Nodes to choose from.")] = 8,
    model: Annotated[str, typer.Option("--profile", help="Cost profile.")] = "llama3-70b-8xa800",
    limit: Annotated[float, typer.Option("--ttft", min=0.001, help="TTFT limit, s.")] = 30.0,
    queue: Annotated[
        str, typer.Option(help="Seconds each node is busy, by comma; the last one for the rest.")
    ] = "0",
    per_rack: Annotated[int, typer.Option(min=1, help="Nodes in a rack.")] = 8,
    link: Annotated[LinkKind, typer.Option(help="Link between nodes.")] = LinkKind.IB_NDR,
    changes: Pairs = None,
    json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Plan a pipeline group for a long prompt: stages, chunks, bubble, bytes moved.

    Beside it what sequence parallelism would move, and what one node would take.
    """
    if prefix >= tokens:
        raise BadRequest("prefix: the whole prompt cannot be cached", field="prefix")
    p, rules = profile(model), _rules(changes)
    fleet = _fleet(p, nodes, _waits(queue, nodes), prefix, per_rack)
    single = min(fleet, key=lambda n: _single_s(n, tokens))
    single_s = _single_s(single, tokens)
    uncached = tokens - single.match_tokens
    found = plan(
        fleet,
        uncached_tokens=uncached,
        prefix_tokens=single.match_tokens,
        source=single.slot,
        model=CppModel(
            layers=p.layers,
            kv_bytes_per_token=p.kv_bytes_per_token,
            hidden_bytes_per_token=p.d_model * p.bytes_per_value,
        ),
        links=_links(nodes, per_rack, link).row,
        single_queue_s=single.queue_s,
        single_ttft_s=single_s,
        ttft_slo_s=limit,
        rules=rules,
    )
    if json:
        typer.echo(jsonlib.dumps(_as_json(found, single_s), indent=2))
    elif found is not None:
        typer.echo(explain(found, lambda slot: f"node-{slot}"))
    else:
        typer.echo(_why_none(wanted(uncached, single_s, limit, rules), single_s, limit, rules))


def _rules(changes: list[str] | None) -> Cpp:
    pairs = {}
    for text in changes or ():
        path, mark, value = text.partition("=")
        if not mark:
            raise BadRequest(f"--set: {text!r} is not name=value", field="set")
        pairs[path] = parse(path, value)
    return Tunables().changed(pairs).cpp


def _waits(text: str, nodes: int) -> list[float]:
    try:
        told = [float(part) for part in text.split(",")]
    except ValueError:
        raise BadRequest(f"queue: {text!r} is not seconds by comma", field="queue") from None
    if min(told) < 0 or not all(wait < 1e9 for wait in told):
        raise BadRequest("queue: waits are seconds, 0 or more", field="queue")
    return [told[min(i, len(told) - 1)] for i in range(nodes)]


def _fleet(p: Profile, nodes: int, waits: list[float], prefix: int, per_rack: int) -> list[CppNode]:
    cost = prefill_coefficients(p)
    return [
        CppNode(
            slot=i,
            prefill=cost,
            queue_s=waits[i],
            match_tokens=prefix if i == 0 else 0,
            place=Place(host=f"h{i}", rack=f"r{i // per_rack}", zone="z"),
        )
        for i in range(nodes)
    ]


def _single_s(node: CppNode, tokens: int) -> float:
    new = tokens - node.match_tokens
    return node.queue_s + node.prefill[0] + whole_s(node.prefill, new, node.match_tokens)


def _links(nodes: int, per_rack: int, link: LinkKind) -> Topology:
    links = Topology(nodes)
    for i in range(nodes):
        place = Place(host=f"h{i}", rack=f"r{i // per_rack}")
        links.set_node(i, NodeSpec(id=NodeId(f"node-{i}"), url="", place=place, links=(link,)))
    return links


def _as_json(found: CppPlan | None, single_s: float) -> dict[str, Any]:
    if found is None:
        return {"plan": None, "single_ttft_s": single_s}
    shares = {"bubble_share": found.bubble_share, "gain": found.gain, "idle_s": found.idle_s}
    return {"plan": {**dataclasses.asdict(found), **shares}, "single_ttft_s": single_s}


def _why_none(reason: str, single_s: float, limit_s: float, rules: Cpp) -> str:
    text = f"no group: one node brings the first token in {single_s:.2f} s"
    if not reason:
        return f"{text}, within the limit of {limit_s:g} s, and the prompt is not long"
    return f"{text}, and no group gains {rules.gain_min:.0%} at a price the others can bear"
