"""Tables out to CSV and Parquet files, and back in, piece by piece with progress.

An export reads pages by key, each in a transaction of its own, so it keeps nobody waiting however
long it takes; the file appears under its name when it is complete. An import stores by key like
the writer does: it may be repeated, and what is there already stays. `audit` is for reading only:
decisions beside their outcomes, times as timestamps.

In CSV, a text that a spreadsheet would take for a formula gets an apostrophe in front, which an
import takes away again; nothing and an empty text look the same, and come back as what the
column allows.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Double,
    Engine,
    Integer,
    Table,
    Text,
    and_,
    func,
    or_,
    select,
)

from core.errors import BadRequest, Conflict
from storage import models
from storage.insert import Inserter, Row, insert_new
from storage.rows import COLUMNS
from storage.types import from_micros, to_micros
from storage.walks import PLACED

AUDIT = "audit"
FORMATS = ("csv", "parquet")
_PAGE = 5_000
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
_KEYS = {
    "decisions": ("at_us", "id"),
    "outcomes": ("decided_us", "decision_id"),
    "node_telemetry": ("at_us", "node"),
    "events": ("at_us", "id"),
    "nodes": ("id",),
    "revisions": ("number",),
    "scheduled_changes": ("id",),
    "standings": ("name",),
}
STORED = tuple(_KEYS)
"""What can be imported."""
NAMES = (*STORED, AUDIT)
"""What can be exported."""
Progress = Callable[[int], object]
"""Called with the number of further rows done."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What is read: columns under their names in the file, in the order of a key."""

    columns: tuple[ColumnElement[Any], ...]
    names: tuple[str, ...]
    key: tuple[ColumnElement[Any], ...]
    source: Any


class _Sink(Protocol):
    def write(self, rows: Sequence[Sequence[Any]]) -> None: ...


def count(connection: Connection, name: str, start: datetime | None, end: datetime | None) -> int:
    """How many rows an export will have, more or less."""
    source = source_of(name)
    statement = select(func.count()).select_from(source.source)
    return int(connection.scalar(statement.where(*_range(source, start, end))) or 0)


def export(
    engine: Engine,
    name: str,
    path: Path,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    progress: Progress = lambda _: None,
) -> int:
    """Write a table, or its rows with start <= time < end, to a new file; how many rows.

    The format follows the file's ending. Conflict where the file exists.
    """
    source, kind = source_of(name), _format(path)
    if path.exists():
        raise Conflict(f"file: {path} exists already", field="file")
    part = path.with_name(f"{path.name}.part")
    done = 0
    try:
        with _file_sink(part, kind, name, source) as sink:
            for rows in _pages(engine, source, start, end):
                sink.write([tuple(row) for row in rows])
                done += len(rows)
                progress(len(rows))
        part.rename(path)
    except OSError as error:
        why = error.strerror or error
        raise BadRequest(f"file: {path} cannot be written: {why}", field="file") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return done


def load(
    engine: Engine, name: str, path: Path, *, progress: Progress = lambda _: None
) -> tuple[int, int]:
    """Store a file's rows; how many it has, and how many of them were new.

    BadRequest names the row and column of a value that does not fit.
    """
    if name not in _KEYS:
        raise BadRequest(f"table: {name!r} is not one of {', '.join(STORED)}", field="table")
    table = models.metadata.tables[name]
    inserter = Inserter(engine)
    read = new = 0
    pages = _csv_pages(path, table) if _format(path) == "csv" else _parquet_pages(path, table)
    for rows in pages:
        new += _store(engine, inserter, table, rows)
        read += len(rows)
        progress(len(rows))
    return read, new


def _store(engine: Engine, inserter: Inserter, table: Table, rows: list[dict[str, Any]]) -> int:
    if table.name in COLUMNS:
        names = COLUMNS[table.name]
        return inserter.store(Row(table.name, tuple(row[c] for c in names)) for row in rows)
    with engine.begin() as connection:
        return insert_new(connection, table, rows)


def source_of(name: str) -> _Source:
    """What an export of a table reads; BadRequest for a name that is none."""
    if name == AUDIT:
        d, o = models.decisions, models.outcomes
        theirs = [c for c in o.c if c.name not in ("decision_id", "decided_us", "prefill_node")]
        columns = (*d.c, *(c.label(f"outcome_{c.name}") for c in theirs))
        key: tuple[ColumnElement[Any], ...] = (d.c.at_us, d.c.id)
        return _Source(columns, tuple(c.name for c in columns), key, PLACED)
    if name not in _KEYS:
        raise BadRequest(f"table: {name!r} is not one of {', '.join(NAMES)}", field="table")
    table = models.metadata.tables[name]
    columns = (*table.c,)
    return _Source(columns, tuple(c.name for c in columns), _key(table), table)


def _key(table: Table) -> tuple[ColumnElement[Any], ...]:
    return tuple(table.c[name] for name in _KEYS[table.name])


def _range(
    source: _Source, start: datetime | None, end: datetime | None
) -> Iterator[ColumnElement[bool]]:
    at_us: ColumnElement[Any] = source.key[0]
    if (start or end) and not str(getattr(at_us, "name", "")).endswith("_us"):
        raise BadRequest("start: this table has no times to choose by", field="start")
    if start is not None:
        yield at_us >= to_micros(start)
    if end is not None:
        yield at_us < to_micros(end)


def _pages(
    engine: Engine, source: _Source, start: datetime | None, end: datetime | None
) -> Iterator[Sequence[Any]]:
    """Pages in the order of the key, each read on its own."""
    places = [n for key in source.key for n, column in enumerate(source.columns) if column is key]
    ordered = select(*source.columns).select_from(source.source)
    ordered = ordered.where(*_range(source, start, end)).order_by(*source.key).limit(_PAGE)
    after: tuple[Any, ...] | None = None
    while True:
        statement = ordered if after is None else ordered.where(_after(source.key, after))
        with engine.connect() as connection:
            rows = connection.execute(statement).all()
        if rows:
            yield rows
        if len(rows) < _PAGE:
            return
        after = tuple(rows[-1][place] for place in places)


def _after(key: Sequence[ColumnElement[Any]], values: Sequence[Any]) -> ColumnElement[bool]:
    """Strictly behind a place in the order of the key, in a form that walks its first column."""
    first, rest = key[0], key[1:]
    beyond: ColumnElement[bool] = first > values[0]
    if not rest:
        return beyond
    return and_(first >= values[0], or_(beyond, _after(rest, values[1:])))


def _format(path: Path) -> str:
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise BadRequest(f"file: {path.name} ends in neither .csv nor .parquet", field="file")
    return kind


@contextmanager
def _file_sink(path: Path, kind: str, name: str, source: _Source) -> Iterator[_Sink]:
    if kind == "csv":
        with path.open("w", newline="", encoding="utf-8") as file, csv_sink(file, name) as sink:
            yield sink
    else:
        with parquet_sink(path, name, source) as sink:
            yield sink


@contextmanager
def csv_sink(file: TextIO, name: str) -> Iterator[_Sink]:
    """Writes rows of a table's export to an open text file, its heading first."""
    names = source_of(name).names
    writer = csv.writer(file)
    writer.writerow(names)
    times = {place for place, label in enumerate(names) if label.endswith("_us")}
    yield _CsvSink(writer, times if name == AUDIT else set())


class _CsvSink:
    def __init__(self, writer: Any, times: set[int]) -> None:
        self._writer, self._times = writer, times

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self._writer.writerow(
                _time_text(value) if place in self._times else _cell(value)
                for place, value in enumerate(row)
            )


def _time_text(at_us: int | None) -> str:
    return "" if at_us is None else from_micros(at_us).isoformat()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


@contextmanager
def parquet_sink(file: Path | BinaryIO, name: str, source: _Source) -> Iterator[_Sink]:
    """Writes rows of a table's export as row groups; complete when the context ends."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [
        pa.field(label, _arrow_type(pa, name, label, column))
        for label, column in zip(source.names, source.columns, strict=True)
    ]
    schema = pa.schema(fields, metadata={"conductor.table": name})
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        yield _ParquetSink(pa, writer, schema)


class _ParquetSink:
    def __init__(self, pa: Any, writer: Any, schema: Any) -> None:
        self._pa, self._writer, self._schema = pa, writer, schema

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        arrays = [
            self._pa.array(column, type=field.type)
            for column, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        self._writer.write_table(self._pa.Table.from_arrays(arrays, schema=self._schema))


def _arrow_type(pa: Any, name: str, label: str, column: ColumnElement[Any]) -> Any:
    if name == AUDIT and label.endswith("_us"):
        return pa.timestamp("us", tz="UTC")
    kinds = {BigInteger: pa.int64(), Integer: pa.int64(), Double: pa.float64(), Text: pa.string()}
    return kinds[type(column.type)]


def _csv_pages(path: Path, table: Table) -> Iterator[list[dict[str, Any]]]:
    with _reading(path) as file:
        reader = csv.DictReader(file)
        columns = _columns(table, reader.fieldnames or ())
        page: list[dict[str, Any]] = []
        for number, cells in enumerate(reader, start=2):
            _check_whole(cells, number)
            page.append({c.name: _parsed(c, cells.get(c.name), number) for c in columns})
            if len(page) >= _PAGE:
                yield page
                page = []
        if page:
            yield page


def _check_whole(cells: dict[Any, Any], number: int) -> None:
    """BadRequest for a line with fewer or more cells than the heading: a file that was cut off."""
    if None in cells or None in cells.values():
        text = f"file: line {number} has not as many cells as the heading; is the file whole?"
        raise BadRequest(text, field="file")


def _parquet_pages(path: Path, table: Table) -> Iterator[list[dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            columns = _columns(table, file.schema_arrow.names)
            schema = pa.schema(
                [(n, _arrow_type(pa, "", n, table.c[n])) for n in file.schema_arrow.names]
            )
            for batch in file.iter_batches(_PAGE):
                rows: list[Mapping[str, Any]] = batch.cast(schema).to_pylist()
                yield [{c.name: row.get(c.name, _empty(c)) for c in columns} for row in rows]
    except (pa.ArrowException, OSError) as error:
        raise BadRequest(f"file: {path} cannot be read: {error}", field="file") from None


@contextmanager
def _reading(path: Path) -> Iterator[TextIO]:
    """The file, as text; whatever is wrong with it is a BadRequest, not the database's fault."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise BadRequest(f"file: {path} cannot be read: {error.strerror}", field="file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadRequest(f"file: {path} is no CSV file: {error}", field="file") from None


def _columns(table: Table, given: Sequence[str]) -> list[Column[Any]]:
    """The table's columns; BadRequest where the file has others, or lacks the key."""
    strange = [name for name in given if name not in table.c]
    missing = [name for name in _KEYS[table.name] if name not in given]
    if strange or missing:
        what = f"has the column {strange[0]!r}" if strange else f"lacks the column {missing[0]!r}"
        raise BadRequest(f"file: it {what}, so it is no export of {table.name}", field="file")
    return list(table.c)


def _fitting(value: int) -> int:
    """ValueError for more than 64 bits, which no database takes."""
    if not -(2**63) <= value < 2**63:
        raise ValueError(value)
    return value


def _empty(column: Column[Any]) -> Any:
    if column.nullable:
        return None
    return "" if isinstance(column.type, Text) else 0


def _parsed(column: Column[Any], cell: str | None, number: int) -> Any:
    if not cell:
        return _empty(column)
    try:
        if isinstance(column.type, Integer):
            return _fitting(int(cell))
        if isinstance(column.type, Double):
            return float(cell)
    except ValueError:
        raise BadRequest(
            f"file: line {number}, {column.name}: {cell!r} is not a number", field="file"
        ) from None
    return cell.removeprefix("'")
