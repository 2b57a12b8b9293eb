"""Data tables: column formats in one place."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any

import pandas as pd
import streamlit as st

from core import wire
from dashboard import view_models as vm

ROW_PX = 35
_PERCENT = "percent"


def fleet_table(nodes: Sequence[wire.NodeView]) -> None:
    """All nodes, dense."""
    st.dataframe(
        pd.DataFrame(vm.fleet_rows(nodes)),
        key="fleet",
        hide_index=True,
        height=table_height(len(nodes)),
        column_config=_fleet_columns(),
        alt="All nodes with state, load, latency and cache",
    )


def series_table(series: wire.Series, zone: tzinfo, zone_name: str) -> None:
    """The table twin of the overview's charts."""
    frame = pd.DataFrame(vm.series_rows(series))
    if frame.empty:
        st.caption("Nothing was measured in this range.")
        return
    frame["Time"] = pd.to_datetime(frame["Time"], utc=True).dt.tz_convert(zone)
    columns: dict[str, Any] = {
        "Time": st.column_config.DatetimeColumn(f"Time ({zone_name})", format="HH:mm:ss"),
        **{n: st.column_config.NumberColumn(format=_PERCENT) for n in ("Reuse", "Reachable")},
        "Reported": st.column_config.NumberColumn(format=_PERCENT),
        **{
            f"{name} ms": st.column_config.NumberColumn(format="%.1f")
            for name in ("TTFT p50", "TTFT p99", "TBT p50", "TBT p99")
        },
    }
    st.dataframe(
        frame, key="series", hide_index=True, height=300, column_config=columns,
        alt="Measurements over time",
    )  # fmt: skip


def table_height(rows: int, most: int = 12) -> int:
    """Height that shows `rows`, at most `most` of them."""
    return ROW_PX * (min(max(rows, 1), most) + 1) + 2


def _fleet_columns() -> dict[str, Any]:
    number, bar = st.column_config.NumberColumn, st.column_config.ProgressColumn
    text = st.column_config.TextColumn
    return {
        "Node": text(pinned=True),
        "State": text(help="Health by probes and traffic; draining and breaker go before healthy"),
        "Load": bar(
            format=_PERCENT, min_value=0, max_value=1,
            help="load(n): the largest of its KV, batch and queue shares",
        ),
        "KV use": bar(format=_PERCENT, min_value=0, max_value=1, help="As the engine reports it"),
        "Queue s": number(format="%.3f", help="Predicted wait until a new prompt could start"),
        "Queued tokens": number(format="localized", help="Uncached prompt tokens queued or running"),
        "In flight": number(help="Requests reserved by this scheduler and not ended"),
        "Running": number(help="As the engine reports it"),
        "Waiting": number(help="As the engine reports it"),
        "TTFT p50 ms": number(format="%.0f", help="Of the last five minutes"),
        "TTFT p99 ms": number(format="%.0f", help="Of the last five minutes"),
        "Reuse": number(format=_PERCENT, help="Cached share of prompt tokens, as it reports"),
        "Cached tokens": number(format="compact", help="Held by the node, as its events say"),
        "Cache signal": text(help="How far the node's cache signal is believed"),
        "Decisions": number(format="localized", help="Since the service started"),
        "Reading s": number(format="%.1f", help="Age of its last metrics reading"),
        "Notes": text(width="large"),
    }  # fmt: skip
