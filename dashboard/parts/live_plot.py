"""The one adapter to Streamlit's component interface: charts that update in place.

`st.plotly_chart` replaces its chart at each change of data and forgets the zoom; this component
hands the new figure to `Plotly.react` instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import plotly
import streamlit as st

from dashboard.parts.theme import Figure

_JS = Path(__file__).with_name("live_plot.js").read_text()
_HTML = "<div class='cd-plot' role='figure' aria-label='Chart' style='width:100%'></div>"
_NAME = "conductor_live_plot"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A figure as it is sent, so that it is serialised once for all who look at it."""

    spec: str
    height: int
    meta: str
    """What it shows, in words; may be empty."""


def prepared(figure: Figure) -> Prepared:
    """Serialise a figure."""
    spec = orjson.dumps(figure, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    layout = figure["layout"]
    return Prepared(spec, layout["height"], layout.get("meta", ""))


def live_plot(figure: Figure | Prepared, *, key: str, alt: str, clicks: bool = False) -> str | None:
    """Draw `figure`, or update the chart that has this key. `alt` describes it in words.

    With `clicks`, returns the id of the hierarchy's cell that was clicked just now, else None.
    """
    renderer = _component()
    ready = figure if isinstance(figure, Prepared) else prepared(figure)
    result = renderer(
        data={
            "spec": ready.spec,
            "alt": f"{alt}. {ready.meta}" if ready.meta else alt,
            "version": plotly.__version__,
            "clicks": clicks,
        },
        key=key,
        height=ready.height,
        on_clicked_change=_nothing,
    )
    clicked = getattr(result, "clicked", None)
    return clicked if isinstance(clicked, str) else None


def _nothing() -> None:
    """The value is read where the chart is drawn."""


def figure_of(spec: str) -> Figure:
    """The figure inside a component's data, for tests."""
    found: Figure = json.loads(spec)
    return found


def _component() -> Any:
    # Registered per run: a registration belongs to the running server, not to the module.
    return st.components.v2.component(_NAME, html=_HTML, js=_JS, isolate_styles=False)
