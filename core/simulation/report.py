"""A comparison as one self-contained HTML page: tables, and plots in plotly.

The page carries the plotting library, so it opens without a network; the same input gives the
same bytes.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from core.errors import BadRequest
from core.policy import get_policy
from core.simulation.tables import COLUMNS, look_up
from core.simulation.traces import replacing

PALETTE = (
    "#2f6db3", "#c8553d", "#3a8f5d", "#8a5fb0", "#b8862b", "#4aa3a2", "#b04a7a", "#6b7785",
    "#7fa650", "#d08a6a", "#5560a8", "#9a9a3c", "#c45b9c", "#3f8fc4", "#a05a3a", "#70a0a0",
)  # fmt: skip
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1d2733;
  margin:2rem auto;max-width:1180px;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}
th,td{padding:.25rem .6rem;border-bottom:1px solid #dfe4ea;text-align:right}
th:first-child,td:first-child{text-align:left}
td.best{font-weight:600;background:#eef5ee}
p.note{color:#56616e;max-width:80ch}
"""
Rows = Sequence[Mapping[str, Any]]


def comparison_page(result: Mapping[str, Any], *, title: str, notes: Sequence[str] = ()) -> str:
    """The page of a `compare` result."""
    rows, curves = result["rows"], result["curves"]
    loads = sorted({row["load"] for row in rows})
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += [f'<p class="note">{html.escape(note)}</p>' for note in notes]
    for load in loads:
        part = [row for row in rows if row["load"] == load]
        parts += [f"<h2>Load {load:g}</h2>", html_table(part)]
    parts += _plots(rows, curves, loads)
    parts += [_sources(rows)]
    return page(title, parts)


def page(title: str, parts: Sequence[str]) -> str:
    """A whole HTML document around its parts."""
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    script = f"<script>{get_plotlyjs()}</script>"
    body = "\n".join(parts)
    return f"<!doctype html><html><head>{head}{script}</head><body>\n{body}\n</body></html>\n"


def write_page(text: str, path: Path) -> None:
    """Write the page, making its folder. BadRequest where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as err:
        text = f"{path}: cannot be written: {err.strerror or err}"
        raise BadRequest(text, field="path") from None


def check_writable(option: str, path: Path | None) -> None:
    """BadRequest, naming the option, where a page cannot be written: before the work, not after."""
    if path is None:
        return
    there = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if not there:
            path.unlink()
    except OSError as err:
        text = f"{option}: {path} cannot be written: {err.strerror or err}"
        raise BadRequest(text, field=option) from None


def html_table(rows: Rows) -> str:
    """Rows as a table; the best value of each lower-is-better column is marked."""
    used = [c for c in COLUMNS if any(look_up(row, c[0]) is not None for row in rows)]
    best = {path: _least(rows, path) for path, _ in used if path.startswith(("ttft", "tbt"))}
    head = "".join(f"<th>{html.escape(name)}</th>" for _, name in used)
    lines = [f"<table><tr>{head}</tr>"]
    for row in rows:
        cells = "".join(_table_cell(look_up(row, path), best.get(path)) for path, _ in used)
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def _least(rows: Rows, path: str) -> float:
    return min(float(look_up(row, path)) for row in rows)


def _table_cell(value: Any, best: float | None) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    mark = ' class="best"' if best is not None and value == best and best > 0 else ""
    return f"<td{mark}>{html.escape(text)}</td>"


def _plots(rows: Rows, curves: Rows, loads: Sequence[float]) -> list[str]:
    labels = list(dict.fromkeys(row["label"] for row in rows))
    colors = {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(labels)}
    parts = []
    if len(loads) > 1:
        parts += ["<h2>Mean and p99 TTFT against load</h2>", _by_load(rows, labels, colors)]
    for load in loads:
        part = [c for c in curves if c["load"] == load]
        parts += [f"<h2>TTFT at load {load:g}</h2>", _cdf(part, colors, "ttft_s", load)]
        if any(c["tbt_s"] for c in part):
            parts += [f"<h2>TBT at load {load:g}</h2>", _cdf(part, colors, "tbt_s", load)]
        chosen = [row for row in rows if row["load"] == load]
        parts += [f"<h2>Hits achieved and reachable at load {load:g}</h2>", _hits(chosen, load)]
        parts += _load_over_time(part, load)
    return parts


def figure_html(figure: go.Figure, name: str, *, height: int = 380) -> str:
    """A figure as a part of a page; `name` becomes its stable element id."""
    figure.update_layout(
        template="plotly_white", height=height, margin={"l": 60, "r": 20, "t": 20, "b": 50}
    )
    text: str = figure.to_html(full_html=False, include_plotlyjs=False, div_id=name)
    return text


def _by_load(rows: Rows, labels: Sequence[str], colors: Mapping[str, str]) -> str:
    figure = go.Figure()
    for label in labels:
        part = sorted((r for r in rows if r["label"] == label), key=lambda r: float(r["load"]))
        for name, dash in (("mean", "solid"), ("p99", "dot")):
            figure.add_scatter(
                x=[r["load"] for r in part],
                y=[r["ttft_s"][name] for r in part],
                name=f"{label} {name}",
                legendgroup=label,
                showlegend=name == "mean",
                line={"color": colors[label], "dash": dash},
            )
    figure.update_yaxes(type="log", title="TTFT, seconds (dotted: p99)")
    figure.update_xaxes(title="load, times the trace's own")
    return figure_html(figure, "ttft-by-load", height=460)


def _cdf(curves: Rows, colors: Mapping[str, str], column: str, load: float) -> str:
    figure = go.Figure()
    for curve in curves:
        values = curve[column]
        steps = [i / max(len(values) - 1, 1) for i in range(len(values))]
        color = colors[curve["label"]]
        figure.add_scatter(x=values, y=steps, name=curve["label"], line={"color": color})
    figure.update_xaxes(type="log", title="seconds")
    figure.update_yaxes(title="share of requests", range=[0, 1])
    return figure_html(figure, f"cdf-{column}-{load:g}")


def _hits(rows: Rows, load: float) -> str:
    labels = [r["label"] for r in rows]
    figure = go.Figure()
    reach = [r["reachable_hit_ratio"] for r in rows]
    figure.add_bar(x=labels, y=reach, name="reachable", marker={"color": "#cfd6de"})
    hit = [r["hit_ratio"] for r in rows]
    figure.add_bar(x=labels, y=hit, name="achieved", marker={"color": "#2f6db3"})
    figure.update_yaxes(title="share of prompt tokens", rangemode="tozero")
    figure.update_layout(barmode="group")
    return figure_html(figure, f"hits-{load:g}")


def _load_over_time(curves: Rows, load: float) -> list[str]:
    parts = []
    for curve in curves:
        samples = curve.get("samples")
        if samples is None or not samples.at_s:
            continue
        name = html.escape(curve["label"])
        parts.append(f"<h2>Queue of each node over time: {name}, load {load:g}</h2>")
        matrix = [list(column) for column in zip(*samples.queue_s, strict=True)]
        figure = go.Figure(
            go.Heatmap(
                x=samples.at_s,
                y=[f"n{i}" for i in range(len(matrix))],
                z=matrix,
                colorscale="Blues",
                colorbar={"title": "queue, s"},
            )
        )
        figure.update_xaxes(title="virtual seconds")
        parts.append(figure_html(figure, f"queue-{curve['label']}-{load:g}", height=300))
    return parts


def _sources(rows: Rows) -> str:
    """What each policy is, and what a peer's formula leaves out here."""
    names = dict.fromkeys(str(row["label"]).split(":")[0] for row in rows)
    lines = ["<h2>Policies</h2><ul>"]
    for name in names:
        policy = get_policy(name)
        text = f"<b>{html.escape(name)}</b> ({html.escape(policy.source)})"
        if policy.leaves_out:
            text += f": leaves out {html.escape(policy.leaves_out)}"
        lines.append(f"<li>{text}</li>")
    return "\n".join([*lines, "</ul>"])
