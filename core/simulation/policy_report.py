"""The policy table and plots of the README: ``make policy-report``.

Runs every policy on the conversation trace at four loads with the fleet of the paper's comparison
(8 prefill nodes of LLaMA3-70B on 8xA800, MFU 0.5, 3M tokens of cache, 100 GB/s), then each planner
on and off. CONDUCTOR_TRACES names the folder that holds the trace; without the trace the small
generated one that ships is used, and the page says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from core.policy import policy_names
from core.simulation.cases import hot_prompt_fleet, hot_prompt_trace
from core.simulation.compare import Arm, compare, reduce_run
from core.simulation.report import comparison_page, figure_html, write_page
from core.simulation.results import RunResult
from core.simulation.runner import run_all
from core.simulation.scenario import Scenario
from core.simulation.tables import markdown
from core.simulation.traces import read_trace
from core.simulation.workload import Workload, prepare

LOADS = (1.0, 1.3, 1.5, 1.7)
NAME = "conversation_trace.jsonl"
FIGURE_5 = {"global": 3.07, "local": 3.58, "load balance": 5.27, "random": 19.65}
"""Mean TTFT in seconds of the paper's figure 5, on its own fleet."""
Row = Mapping[str, Any]
_GOODPUT_COLUMNS = (
    ("label", "policy"),
    ("load", "load"),
    ("tbt_limit_ms", "TBT limit ms"),
    ("rejecting", "rejecting"),
    ("goodput_rps", "goodput/s"),
    ("good_share", "share"),
    ("rejected", "rejected"),
    ("ttft_s.p99", "ttft p99 s"),
    ("tbt_ms.p99", "tbt p99 ms"),
)
_PLANNER_COLUMNS = (
    ("label", "planners"),
    ("ttft_s.mean", "ttft mean s"),
    ("ttft_s.p99", "p99"),
    ("hot_queue_p99_s", "hottest node's p99 queue s"),
    ("hit_ratio", "hit"),
    ("imbalance", "imbalance"),
    ("cpp_plans", "groups"),
    ("migrations", "migrations"),
)


def main() -> None:
    """Write policy-report.html and .md into build/, or where CONDUCTOR_REPORT_DIR says."""
    path, note = find_trace()
    workload = prepare(read_trace(path))
    tell(f"policy report on {path.name}, {len(workload)} requests")
    base = Scenario(prefill=8, mfu=0.5, samples=120)
    table = compared(base, workload)
    sections = [
        ("Figure 5 side by side", figure_5(workload)),
        ("Pipeline groups", planners_table(pipeline_rows(workload))),
        ("A hot system prompt: planners on and off", planners_table(hot_rows())),
        ("Goodput with 8 prefill and 8 decode nodes", goodput_table(workload)),
    ]
    folder = Path(os.environ.get("CONDUCTOR_REPORT_DIR", "build"))
    page = comparison_page(table, title=f"Policies on {workload.name}", notes=[note])
    extra = "\n".join(f"<h2>{title}</h2><pre>{text}</pre>" for title, text in sections)
    page = page.replace("</body>", f"{extra}\n{replica_plot()}\n</body>")
    write_page(page, folder / "policy-report.html")
    parts = [f"# Policies on {workload.name}\n\n{note}\n", markdown(table["rows"])]
    parts += [f"\n## {title}\n\n{text}" for title, text in sections]
    (folder / "policy-report.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
    tell(f"wrote {folder / 'policy-report.html'} and .md")


def find_trace() -> tuple[Path, str]:
    """The trace to use, and a sentence that says which it is."""
    for folder in (os.environ.get("CONDUCTOR_TRACES"), "traces"):
        if folder and (Path(folder) / NAME).exists():
            text = "The public conversation trace of the FAST'25 paper, one hour."
            return Path(folder) / NAME, text
    small = resources.files("core.simulation") / "data" / "mixed.jsonl"
    text = "The conversation trace was not found: this is the small generated trace that ships."
    return Path(str(small)), text


def compared(base: Scenario, workload: Workload) -> dict[str, Any]:
    """Every policy at every load, fetching off, and the best tuned linear beside the default."""
    arms = [Arm(label=name, policy=name, params={}) for name in policy_names()]
    arms.append(tuned_linear(base, workload))
    no_fetch = Scenario(prefill=base.prefill, mfu=base.mfu, samples=base.samples, fetch=False)
    return compare(no_fetch, workload, arms=arms, loads=LOADS, seeds=[0], workers=0, progress=told)


def tuned_linear(base: Scenario, workload: Workload) -> Arm:
    """`linear` at the alpha with the least mean TTFT at load 1.3 (beta = 1 - alpha)."""
    scenarios = []
    alphas = [round(0.1 * step, 1) for step in range(1, 10)]
    for alpha in alphas:
        params = {"linear.alpha": alpha, "linear.beta": round(1.0 - alpha, 1)}
        fleet = Scenario(
            prefill=8, mfu=base.mfu, policy="linear", params=params, load=1.3, fetch=False
        )
        scenarios.append(fleet)
    means = run_all(scenarios, workload, workers=0, reduce=mean_ttft)
    best = alphas[int(np.argmin(means))]
    beta = round(1.0 - best, 1)
    params = {"linear.alpha": best, "linear.beta": beta}
    return Arm(label=f"linear:alpha={best}:beta={beta}", policy="linear", params=params)


def mean_ttft(result: RunResult) -> float:
    """Mean TTFT of a run, seconds."""
    return float(result.ttft().mean())


def figure_5(workload: Workload) -> str:
    """The paper's four arms and ours."""
    arms = {
        "global": Scenario(mfu=0.5, policy="min_ttft"),
        "local": Scenario(mfu=0.5, policy="min_ttft", fetch=False),
        "load balance": Scenario(mfu=0.5, policy="least_loaded", fetch=False),
        "random": Scenario(mfu=0.5, policy="random", fetch=False),
    }
    means = run_all(list(arms.values()), workload, workers=0, reduce=mean_ttft)
    rows = [
        {"label": name, "paper": FIGURE_5[name], "here": round(mean, 3)}
        for name, mean in zip(arms, means, strict=True)
    ]
    columns = (("label", "scheduling"), ("paper", "paper, mean TTFT s"), ("here", "here"))
    ratio = f"global/local: paper {3.07 / 3.58:.2f}, here {means[0] / means[1]:.2f}"
    return f"{markdown(rows, columns)}\n\n{ratio}\n"


def planner_row(result: RunResult) -> dict[str, Any]:
    """A run's figures and the p99 queue of the node where that is worst."""
    queue, node = np.array(result.records.queue_s), np.array(result.records.node)
    worst = max(float(np.nanpercentile(queue[node == i], 99)) for i in set(node.tolist()) if i >= 0)
    return result.summary() | {"hot_queue_p99_s": round(worst, 3)}


def pipeline_rows(workload: Workload) -> list[Row]:
    """Pipeline groups off, and on with groups of up to 2 and 4."""
    arms = {
        "no groups": Scenario(mfu=0.5),
        "groups of 2": Scenario(mfu=0.5, cpp=True, params={"cpp.group_max": 2}),
        "groups of up to 4": Scenario(mfu=0.5, cpp=True),
    }
    rows = run_all(list(arms.values()), workload, workers=0, reduce=planner_row)
    return [row | {"label": name} for name, row in zip(arms, rows, strict=True)]


def hot_rows() -> list[Row]:
    """Each planner on and off under one hot system prompt."""
    workload = prepare(hot_prompt_trace())
    arms = {
        "none": hot_prompt_fleet(),
        "migration": hot_prompt_fleet(migration=True),
        "hotspot detector": hot_prompt_fleet(hotspot=True),
        "both": hot_prompt_fleet(migration=True, hotspot=True),
    }
    rows = run_all(list(arms.values()), workload, workers=0, reduce=planner_row)
    return [row | {"label": name} for name, row in zip(arms, rows, strict=True)]


def planners_table(rows: Sequence[Row]) -> str:
    """Rows of planners as Markdown."""
    return markdown(rows, _PLANNER_COLUMNS)


def goodput_table(workload: Workload) -> str:
    """Goodput of policies at the trace's load, and of ways to reject at twice of it."""
    plan: list[tuple[dict[str, Any], Scenario]] = []
    for tbt_ms in (100, 200, 300):
        limits = {"slo.tbt_s": tbt_ms / 1e3, "slo.ttft_s": 30.0}
        for name in policy_names():
            fleet = Scenario(decode=8, mfu=0.5, policy=name, params=limits)
            plan.append(({"label": name, "load": 1.0, "tbt_limit_ms": tbt_ms}, fleet))
    limits = {"slo.tbt_s": 0.1, "slo.ttft_s": 30.0}
    for decode in (8, 1):
        for way in ("late", "decode", "now", "early"):
            fleet = Scenario(decode=decode, mfu=0.5, params=limits, load=2.0, rejecting=way)
            head = {"label": f"min_ttft, {decode} decode", "load": 2.0, "tbt_limit_ms": 100}
            plan.append((head | {"rejecting": way}, fleet))
    runs = run_all([fleet for _, fleet in plan], workload, workers=0, reduce=reduce_run)
    rows = [run.summary | head for (head, _), run in zip(plan, runs, strict=True)]
    return markdown(rows, _GOODPUT_COLUMNS)


def replica_plot() -> str:
    """Replicas of the top prefixes over time, with migration (F figure 11's shape)."""
    workload = prepare(hot_prompt_trace())
    fleet = hot_prompt_fleet(migration=True, samples=120)
    (run,) = run_all([fleet], workload, reduce=reduce_run)
    figure = go.Figure()
    for i, counts in enumerate(zip(*run.samples.replicas, strict=True), 1):
        figure.add_scatter(x=run.samples.at_s, y=list(counts), name=f"prefix {i}")
    figure.update_xaxes(title="virtual seconds")
    figure.update_yaxes(title="nodes that hold it", rangemode="tozero")
    body = figure_html(figure, "replicas")
    return f"<h2>Replicas of the five hottest prefixes, migration on</h2>\n{body}"


def told(done: int, total: int) -> bool:
    """Progress of the long comparison."""
    tell(f"{done}/{total} runs")
    return True


def tell(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    main()
