"""Filtered decisions beside their outcomes as a CSV or Parquet file, piece by piece.

The columns of the table `audit` of `storage.transfer`, but chosen by a `DecisionQuery` and newest
first. Nothing is held back: a page is read, rendered and handed over, then the next one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from core.errors import BadRequest
from core.ports import Cursor, DecisionQuery, Page, StoredDecision
from storage.rows import COLUMNS, decision_values, outcome_values
from storage.transfer import AUDIT, FORMATS, csv_sink, parquet_sink, source_of

_PAGE = 1_000
_GROUP = 10_000
"""Rows of a Parquet row group: smaller ones are read slowly."""
Stored = list[StoredDecision]
_NAMES = source_of(AUDIT).names


def pieces(
    ask: Callable[..., Page], query: DecisionQuery, format: str, limit: int
) -> Iterator[bytes]:
    """The pieces of the file; `ask` is `Store.decisions`.

    The first page is read before this returns, so that what is wrong with the query, or a store
    that is away, is an error here and not a file that ends early.
    """
    if format not in FORMATS:
        raise BadRequest(f"format: {format!r} is not one of {', '.join(FORMATS)}", field="format")
    pages = _pages(ask, query, limit)
    first = next(pages, [])
    rendered = _csv if format == "csv" else _parquet
    return rendered(chain([first], pages))


def _pages(ask: Callable[..., Page], query: DecisionQuery, limit: int) -> Iterator[Stored]:
    before: Cursor | None = None
    left = limit
    while left > 0:
        page = ask(query, before=before, limit=min(_PAGE, left))
        left -= len(page.rows)
        yield list(page.rows)
        before = page.next
        if before is None:
            return


def _csv(pages: Iterator[Stored]) -> Iterator[bytes]:
    text = io.StringIO(newline="")
    with csv_sink(text, AUDIT) as sink:
        for page in pages:
            sink.write([_row(stored) for stored in page])
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()


def _parquet(pages: Iterator[Stored]) -> Iterator[bytes]:
    file, group = _Pieces(), Stored()
    with parquet_sink(file, AUDIT, source_of(AUDIT)) as sink:
        for page in pages:
            group += page
            if len(group) >= _GROUP:
                sink.write([_row(stored) for stored in group])
                group = []
                yield file.taken()
        if group:
            sink.write([_row(stored) for stored in group])
    yield file.taken()


def _row(stored: StoredDecision) -> tuple[Any, ...]:
    """In the order of the audit's columns."""
    found = dict(zip(COLUMNS["decisions"], decision_values(stored.decision), strict=True))
    if stored.outcome is not None:
        values = outcome_values(stored.outcome)
        found |= {f"outcome_{n}": v for n, v in zip(COLUMNS["outcomes"], values, strict=True)}
    return tuple(found.get(name) for name in _NAMES)


class _Pieces(io.BytesIO):
    """A file that is only written, whose beginning is given away as it grows."""

    def __init__(self) -> None:
        super().__init__()
        self._given = 0

    def tell(self) -> int:
        """Bytes written in all."""
        return self._given + super().tell()

    def seekable(self) -> bool:
        """Never: what was given away cannot be changed."""
        return False

    def taken(self) -> bytes:
        """What was written since the last call."""
        data = self.getvalue()
        self._given += len(data)
        super().seek(0)
        self.truncate()
        return data

    def close(self) -> None:
        """Stay open: the last piece is asked for after the writer has closed it."""
