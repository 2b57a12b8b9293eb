"""Exporting the filtered decisions as a file, made by the service."""

from __future__ import annotations

import streamlit as st

from core import wire
from dashboard import session
from dashboard.decisions.filters import Filters, query_of

ROWS = (1_000, 10_000, 50_000)
"""Choices; longer files come from the API directly, without passing through the console."""


def export_menu(filters: Filters) -> None:
    """Format, length, and the button that fetches the file when it is pressed."""
    with st.popover("Export", help="The filtered decisions as a file"):
        kind = st.segmented_control(
            "Format", ["csv", "parquet"], default="csv", required=True, key="export_format"
        )
        rows = st.selectbox("Newest rows, at most", ROWS, key="export_rows")
        query = query_of(filters, window=session.window(), cursor=None)
        asked = export_query(query, str(kind), int(rows or ROWS[0]))
        client = session.reader()
        st.download_button(
            f"Download {kind}", lambda: client.export(asked), file_name=f"decisions.{kind}",
            mime="text/csv" if kind == "csv" else "application/vnd.apache.parquet",
            key="export_do", on_click="ignore",
        )  # fmt: skip
        st.caption(f"All of it: `GET {wire.API_PREFIX}/decisions/export?format={kind}&limit=…`")


def export_query(query: wire.DecisionQuery, kind: str, rows: int) -> wire.ExportQuery:
    """The same filters, as a file of at most so many rows."""
    given = query.model_dump(exclude={"cursor", "limit"})
    return wire.ExportQuery.model_validate({**given, "format": kind, "limit": rows})
