"""The tables of a page as files: whatever is shown as a table can be taken along."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import streamlit as st

_SHOWN = "tables_shown"
"""Session key of the tables that the page drew last, by what they are."""
MIME = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}


def begin_page() -> None:
    """A page is drawn anew: forget the tables of the one before."""
    st.session_state[_SHOWN] = {}


def note(table: Any, what: str) -> Any:
    """Keep a table (a data frame, or Arrow's) for whoever wants it as a file; gives it back."""
    st.session_state.setdefault(_SHOWN, {})[what] = table
    return table


def export_tables(page: str) -> None:
    """Open the dialog over all tables that were noted since `begin_page`."""
    _dialog(page, dict(st.session_state.get(_SHOWN, {})))


@st.dialog("Tables of this page", width="medium")
def _dialog(page: str, tables: Mapping[str, Any]) -> None:
    if not tables:
        st.write("Nothing on this page is shown as a table now.")
        return
    what = str(st.selectbox("Table", list(tables), key="export_table"))
    kind = str(
        st.segmented_control(
            "Format", list(MIME), default="csv", required=True, key="export_table_format"
        )
    )
    table = tables[what]
    st.caption(f"{len(table):,} rows, as they were shown when this was opened.")
    st.download_button(
        f"Download {kind}", lambda: as_file(table, kind), mime=MIME[kind],
        file_name=f"{page}-{slug(what)}.{kind}", key="export_table_do", type="primary",
        on_click="ignore",
    )  # fmt: skip


def as_file(table: Any, kind: str) -> bytes:
    """A table as CSV or Parquet. Columns of mixed types become text in Parquet."""
    frame = table.to_pandas() if isinstance(table, pa.Table) else table
    if kind == "csv":
        text: str = frame.to_csv(index=False)
        return text.encode()
    file = io.BytesIO()
    pq.write_table(_typed(frame), file)
    return file.getvalue()


def slug(what: str) -> str:
    """A name for a file: letters and digits with hyphens between."""
    words = "".join(c if c.isalnum() else " " for c in what.lower()).split()
    return "-".join(words)


def _typed(frame: Any) -> Any:
    """With one type a column."""
    columns = {}
    for name in frame.columns:
        column = frame[name]
        try:
            columns[str(name)] = pa.Array.from_pandas(column)
        except pa.ArrowException:
            texts = [None if pd.isna(value) else str(value) for value in column]
            columns[str(name)] = pa.array(texts, pa.string())
    return pa.table(columns)
