"""The Lab's form: requests, configurations, a fleet, and what it will cost."""

from __future__ import annotations

from typing import Any, cast

import streamlit as st

from core import wire
from dashboard.api.client import Refused, ServiceError
from dashboard.lab import models as lm
from dashboard.overview.models import Notice
from dashboard.parts import acting
from dashboard.parts import format as fmt
from dashboard.parts.components import notice
from dashboard.parts.kept import forget
from dashboard.parts.page import act
from dashboard.tuning.draft import bounds, group_of, word

OWN = "the registered fleet"
OTHER = "another fleet"
AXES_MAX = 2
REQUESTS_MIN = 20
COMPARED = ("round_robin", "least_loaded", "linear", "multiplicative", "min_ttft", "priced_ttft")


def lab_form(sources: wire.LabSources, view: wire.TunablesView, policies: wire.PolicyList) -> None:
    """Draw the form; asks for a job when the reader says so."""
    st.caption("Runs in a process of its own on the service's machine; nothing live is touched.")
    form = acting.Form()
    left, right = st.columns(2, gap="large")
    with left:
        method, source, requests = _requests(sources, form)
        fleet, load, seeds = _fleet(method, form)
    with right:
        names = [p.name for p in policies.policies]
        first = [n for n in COMPARED if n in names and n != view.policy][:3]
        arms = st.multiselect(
            "Policies to compare with what is live", names, default=first, key="lab_arms"
        )
        policy, axes, wrong = _axes(view, names)
    runs = lm.runs_of(method, len(arms), axes, seeds)
    problem = wrong
    if not problem and runs > sources.runs_max:
        problem = f"{runs} runs are more than {sources.runs_max}; take fewer values or seeds."
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        reason = form.reason("lab_reason")
        label = f"Run {fmt.counted(runs, 'run')}"
        pressed = act(label, key="lab_run", type="primary", why_not=problem)
    if pressed and form.complete():
        asked = wire.LabAsk(
            method=cast(Any, method), source=source, requests=requests, fleet=fleet, load=load,
            seeds=seeds, policy=policy, axes=axes, reason=reason, author=acting.author(),
            arms=[wire.LabArm(policy=name) for name in arms],
        )  # fmt: skip
        _submit(asked)
    if problem:
        notice(Notice("warn", "Not ready", problem))


def _requests(sources: wire.LabSources, form: acting.Form) -> tuple[str, str, int]:
    methods = list(lm.METHODS)
    method = st.radio(
        "Method", methods, key="lab_method", format_func=lambda m: lm.METHODS[m],
    )  # fmt: skip
    usable = {s.name: s for s in sources.sources if method in s.methods}
    names = list(usable)
    source = st.selectbox(
        "Requests", names, key=f"lab_source_{method}",
        index=names.index("shipped") if "shipped" in names else 0,
        format_func=lambda n: _source_words(usable[n]),
    )  # fmt: skip
    if not sources.trace_dir and method == "simulate":
        st.caption("Traces of your own: set `lab.trace_dir` in the service's settings.")
    most = sources.requests_max
    requests = form.number(
        "At most this many", min(500, most), REQUESTS_MIN, most, key="lab_requests", step=100
    )
    return str(method), str(source), int(requests)


def _source_words(s: wire.LabSource) -> str:
    if s.requests is not None:
        return f"{s.title} ({fmt.count(s.requests)})"
    return f"{s.title} ({fmt.count(s.bytes)} bytes)" if s.bytes is not None else s.title


def _fleet(method: str, form: acting.Form) -> tuple[wire.LabFleet | None, float, int]:
    if method == "rescore":
        return None, 1.0, 1
    which = st.segmented_control("Fleet", [OWN, OTHER], default=OWN, required=True, key="lab_fleet")
    fleet = None
    if which == OTHER:
        with st.container(horizontal=True, gap="small"):
            prefill, decode, both = (
                int(form.number(name, first, 0, 1024, key=f"lab_{name.lower()}", width=110))
                for name, first in (("Prefill", 8), ("Decode", 0), ("Both", 0))
            )
            cache = form.number(
                "Cache tokens a node", 3_000_000, 1024, 10**10, key="lab_cache", step=100_000,
                width=180,
            )  # fmt: skip
        # Not before the button is pressed: what does not fit is said then.
        fleet = wire.LabFleet.model_construct(
            prefill=prefill, decode=decode, both=both, cache_tokens=int(cache)
        )
    with st.container(horizontal=True, gap="small"):
        load = form.number(
            "Load, times the source's rate", 1.0, 0.1, 100, key="lab_load", width=220
        )
        seeds = form.number("Seeds", 1, 1, 10, key="lab_seeds", width=110)
    return fleet, load, int(seeds)


def _axes(view: wire.TunablesView, names: list[str]) -> tuple[str, dict[str, list[Any]], str]:
    """(policy, axes, what is wrong) of the sweep."""
    with_params = [n for n in names if any(group_of(i.path) == n for i in view.items)]
    none = "no sweep"
    start = with_params.index(view.policy) + 1 if view.policy in with_params else 0
    policy = st.selectbox(
        "Sweep the parameters of", [none, *with_params], index=start, key="lab_policy"
    )
    axes: dict[str, list[Any]] = {}
    if policy == none:
        return "", axes, ""
    items = {i.path: i for i in view.items if group_of(i.path) in (policy, "load", "fetch")}
    paths = st.multiselect(
        f"Parameters (at most {AXES_MAX})", list(items), key="lab_axes",
        default=[p for p in items if group_of(p) == policy][:1], max_selections=AXES_MAX,
    )  # fmt: skip
    wrong = ""
    for path in paths:
        item = items[path]
        text = st.text_input(
            f"{path}, FROM:TO:STEP or values with commas", _suggested(item), key=f"lab_axis-{path}",
            help=f"{item.doc}; live {word(item.value, item.unit)}; {bounds(item)}",
        )  # fmt: skip
        values, problem = lm.axis_values(text, item)
        axes[path] = values
        wrong = wrong or problem
    return str(policy), axes, wrong


def _suggested(item: wire.TunableView) -> str:
    if item.choices:
        return ", ".join(word(c) for c in item.choices)
    if item.low is not None and item.high is not None and item.high - item.low <= 1:
        return f"{item.low + 0.1:g}:{item.high - 0.1:g}:0.2"
    return f"{item.value / 2:g}, {item.value:g}, {item.value * 2:g}" if item.value else "1"


def _submit(asked: wire.LabAsk) -> None:
    try:
        job = acting.control().lab_submit(asked)
    except Refused as e:
        acting.tell("bad", acting.refusal_title(e), str(e))
    except ServiceError as e:
        acting.tell("bad", "No answer", str(e))
    else:
        st.query_params["job"] = job.id
        forget()
        acting.tell("ok", "The experiment is in line", f"{job.total} runs.")
    st.rerun()
