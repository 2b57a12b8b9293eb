"""Data tables: column formats in one place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from datetime import tzinfo
from typing import Any, Literal

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import streamlit as st

from core import wire
from dashboard.decisions import models as dm
from dashboard.overview import models as vm
from dashboard.parts.export import note
from dashboard.parts.format import NONE
from dashboard.parts.shared import shared

ROW_PX = 34
SELECT = "select a row (Shift+Space on the keyboard)"
"""How a row is chosen, for headings and captions."""
BY, BY_PX = "By", 110
"""Who did it; a name has room."""
_PERCENT = "percent"


def arrow(rows: Sequence[dict[str, object]]) -> Any:
    """Rows as the widget sends them; as a data frame, for it to mend, where a column is mixed."""
    return arrow_frame(pd.DataFrame(list(rows)))


def arrow_frame(frame: Any) -> Any:
    """The same of a data frame."""
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException:
        return frame


def data_table(table: Any, *, alt: str, **more: Any) -> Any:
    """A table, as Streamlit draws it with the options `more`; it can be taken along as a file.

    `alt` says what it is: to who cannot see it, and to who takes it along.
    """
    widths = {BY: st.column_config.TextColumn(width=BY_PX)} if BY in _names(table) else {}
    columns = widths | more.pop("column_config", {})
    return st.dataframe(note(table, alt), alt=alt, column_config=columns, **more)


def _names(table: Any) -> Sequence[str]:
    """Names of a frame's columns, pandas' or Arrow's."""
    return list(getattr(table, "column_names", None) or table.columns)


def fleet_table(
    nodes: Sequence[wire.NodeView],
    *,
    given: object = None,
    choice: tuple[str, ...] = (),
    key: str = "fleet",
    most: int = 12,
    on_select: Callable[[], None] | None = None,
) -> None:
    """All nodes, dense; `most` rows before it scrolls. With `on_select` a row can be chosen.

    The table is shared by those who look at the nodes of the same answer `given` (by default the
    list itself) by the same `choice`.
    """
    selection: dict[str, Any] = {}
    if on_select is not None:
        selection = {"on_select": on_select, "selection_mode": "single-row"}
    table = shared(
        "fleet", *choice, given=(nodes if given is None else given,),
        make=lambda: arrow(vm.fleet_rows(nodes)),
    )  # fmt: skip
    data_table(
        table,
        key=key,
        hide_index=True,
        placeholder=NONE,
        row_height=ROW_PX,
        height=table_height(len(nodes), most=most),
        column_config=_fleet_columns(),
        alt="All nodes with state, load, latency and cache",
        **selection,
    )


def select_table(
    rows: Sequence[dict[str, object]],
    *,
    key: str,
    alt: str,
    percent: Sequence[str] = (),
    choose: bool = False,
    on_select: Callable[[int], None] | None = None,
    columns: dict[str, Any] | None = None,
    most: int = 12,
    given: tuple[object, ...] | None = None,
    choice: tuple[Hashable, ...] = (),
) -> int | None:
    """A table of which a row can be chosen: its number is returned with `choose`, or given to
    `on_select` as it is chosen. With `given`, the answers that the rows were made from, and
    `choice`, plain values they depend on, it is shared by all who look at the same."""

    def chosen() -> int | None:
        found = st.session_state[key]["selection"]["rows"]
        return found[0] if found else None

    def selected() -> None:
        number = chosen()
        if on_select is not None and number is not None and number < len(rows):
            on_select(number)

    more: dict[str, Any] = {}
    if choose or on_select is not None:
        more = {"selection_mode": "single-row", "on_select": selected if on_select else "rerun"}
    table = (
        arrow(rows)
        if given is None
        else shared(key, *choice, given=given, make=lambda: arrow(rows))
    )
    data_table(
        table, key=key, hide_index=True, placeholder=NONE, row_height=ROW_PX,
        height=table_height(len(rows), most=most), alt=alt,
        column_config={
            **{name: st.column_config.NumberColumn(format=_PERCENT) for name in percent},
            **(columns or {}),
        },
        **more,
    )  # fmt: skip
    return chosen() if choose else None


def migration_table(
    rows: Sequence[dict[str, object]], *, key: str, choose: bool = False
) -> int | None:
    """Migrations; with `choose`, the number of the chosen row is returned."""
    number = st.column_config.NumberColumn
    columns = {
        "Tokens": number(format="localized"),
        "Moved tokens": number(format="localized"),
        "Computed": number("Computed tokens", format="localized"),
        **{n: number(format="%.2f") for n in ("Benefit s", "Predicted s", "Took s")},
        "Why": st.column_config.TextColumn(width="large"),
    }
    return select_table(rows, key=key, alt="Migrations", choose=choose, columns=columns)


def hot_table(
    rows: Sequence[dict[str, object]],
    *,
    key: str,
    most: int = 12,
    on_select: Callable[[], None] | None = None,
) -> None:
    """Hot prefixes; with `on_select` one can be chosen."""
    number = st.column_config.NumberColumn
    selection: dict[str, Any] = {}
    if on_select is not None:
        selection = {"on_select": on_select, "selection_mode": "single-row"}
    data_table(
        pd.DataFrame(list(rows)),
        key=key,
        hide_index=True,
        row_height=ROW_PX,
        height=table_height(len(rows), most=most),
        alt="Hot prefixes with tokens, accesses and holders",
        **selection,
        column_config={
            "Prefix": st.column_config.TextColumn(help="Key of its last block"),
            "Tokens": number(format="localized"),
            "Asked for /s": number(format="%.2f", help="Averaged over about a minute"),
            "Hits": number(format="localized", help="Accesses since it is counted"),
            "Tokens saved /s": number(
                format="compact", help="Asked for /s x tokens: not computed where a holder takes it"
            ),
            "On": st.column_config.TextColumn(width="medium"),
        },
    )


def time_table(
    rows: Sequence[dict[str, object]],
    *,
    key: str,
    alt: str,
    zone: tzinfo,
    zone_name: str,
    percent: Sequence[str] = (),
) -> None:
    """Rows with a column "Time" in the reader's zone; `percent` names columns with shares."""
    frame = pd.DataFrame(list(rows))
    frame["Time"] = pd.to_datetime(frame["Time"], utc=True).dt.tz_convert(zone)
    columns: dict[str, Any] = {
        "Time": st.column_config.DatetimeColumn(
            f"Time ({zone_name})", format="YYYY-MM-DD HH:mm:ss"
        ),
        **{name: st.column_config.NumberColumn(format=_PERCENT) for name in percent},
    }
    data_table(
        frame, key=key, hide_index=True, placeholder=NONE, row_height=ROW_PX, height=300,
        column_config=columns, alt=alt,
    )  # fmt: skip


def series_table(series: wire.Series, zone: tzinfo, zone_name: str) -> None:
    """The table twin of the overview's charts."""
    if not series.points:
        st.caption("Nothing was measured in this range.")
        return
    table = shared("series", given=(series, zone), make=lambda: _series_frame(series, zone))
    columns: dict[str, Any] = {
        "Time": st.column_config.DatetimeColumn(f"Time ({zone_name})", format="HH:mm:ss"),
        **{n: st.column_config.NumberColumn(format=_PERCENT) for n in ("Reuse", "Reachable")},
        "Reported": st.column_config.NumberColumn(format=_PERCENT),
        **{
            f"{name} ms": st.column_config.NumberColumn(format="%.1f")
            for name in ("TTFT p50", "TTFT p99", "TBT p50", "TBT p99")
        },
    }
    data_table(
        table, key="series", hide_index=True, placeholder=NONE,
        row_height=ROW_PX, height=300, column_config=columns,
        alt="Measurements over time",
    )  # fmt: skip


def _series_frame(series: wire.Series, zone: tzinfo) -> Any:
    frame = pd.DataFrame(vm.series_rows(series))
    frame["Time"] = pd.to_datetime(frame["Time"], utc=True).dt.tz_convert(zone)
    return arrow_frame(frame)


def table_height(rows: int, most: int = 12) -> int | Literal["content"]:
    """As high as its rows, or as `most` of them and half of the next, which says: scroll.

    A few rows more than `most` are no reason to scroll.
    """
    return "content" if rows <= most + 4 else ROW_PX * (most + 1) + ROW_PX // 2


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
        "Queued tokens": number(format="localized", help="Uncached prompt tokens, not done"),
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


def decision_table(
    rows: Sequence[wire.DecisionRow],
    *,
    key: str,
    zone: tzinfo,
    zone_name: str,
    on_select: Callable[[], None] | None = None,
) -> None:
    """A page of decisions; with `on_select` one row can be selected."""
    selection: dict[str, Any] = {}
    if on_select is not None:
        selection = {"on_select": on_select, "selection_mode": "single-row"}
    frame = pd.DataFrame(dm.table_rows(rows))
    frame["Time"] = pd.to_datetime(frame["Time"], utc=True).dt.tz_convert(zone)
    number, percent = st.column_config.NumberColumn, st.column_config.NumberColumn(format=_PERCENT)
    data_table(
        frame,
        key=key,
        hide_index=True,
        placeholder=NONE,
        row_height=ROW_PX,
        height=table_height(len(rows), most=9),
        **selection,
        alt="Decisions, newest first",
        column_config={
            "Time": st.column_config.DatetimeColumn(
                f"Time ({zone_name})", format="YYYY-MM-DD HH:mm:ss.SSS"
            ),
            "Match": percent,
            "Reachable": percent,
            "Reported": percent,
            "Prompt": number("Prompt tokens", format="localized"),
            "TTFT predicted": number("TTFT predicted ms", format="%.1f"),
            "TTFT observed": number("TTFT observed ms", format="%.1f"),
        },
    )


def candidate_table(rows: Sequence[dict[str, object]], *, key: str) -> None:
    """Candidates with their terms, inputs and why each lost."""
    data_table(
        pd.DataFrame(list(rows)),
        key=key,
        hide_index=True,
        placeholder=NONE,
        row_height=ROW_PX,
        height=table_height(len(rows), most=17),
        column_config={
            "Node": st.column_config.TextColumn(pinned=True),
            "Why it lost": st.column_config.TextColumn(width="large"),
        },
        alt="Candidates",
    )


def plain_table(rows: Sequence[dict[str, object]], *, key: str, alt: str) -> None:
    """A few rows of text."""
    data_table(
        pd.DataFrame(list(rows)), key=key, hide_index=True, height=table_height(len(rows)), alt=alt
    )
