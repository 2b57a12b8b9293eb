"""The spool's file format: rows as records that can be told from damage. Pure.

A segment begins with a record that names the tables and their columns, so that a later release
reads it by name. Every record is a marker of two bytes, the length and the CRC-32 of what
follows, and that: MessagePack of the table's number and the row's values. Reading goes on behind
a damaged stretch at the next marker whose length and checksum hold.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from sqlalchemy import Text

from storage.insert import Row
from storage.models import metadata
from storage.rows import COLUMNS

_MARK = b"\xc5\x9a"
_HEAD = struct.Struct("<2sII")
_RECORD_MAX = 1 << 24
_FORMAT = 1
_NUMBERS = {name: number for number, name in enumerate(COLUMNS)}
_NAMES = tuple(COLUMNS)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

Layout = tuple[tuple[str, tuple[str, ...]], ...]
"""Tables in the order of their numbers, with their columns in the order of the values."""


def encoded(row: Row) -> bytes:
    """A row as a record; ValueError, TypeError or OverflowError where a value has no form."""
    return _framed(_encode((_NUMBERS[row.table], *row.values)))


def segment_head() -> bytes:
    """The first record of a segment."""
    return _framed(_encode({"format": _FORMAT, "tables": list(COLUMNS.items())}))


def count(data: bytes) -> int:
    """How many rows a segment seems to hold, by lengths alone: quick, and wrong where damaged."""
    found, at = -1, 0
    while at + _HEAD.size <= len(data):
        mark, length, _ = _HEAD.unpack_from(data, at)
        if mark != _MARK or length > _RECORD_MAX:
            break
        found, at = found + 1, at + _HEAD.size + length
    return max(found, 0)


def rows(data: bytes) -> Iterator[Row | None]:
    """The rows of a segment in order; None for each damaged stretch that was skipped."""
    layout: Layout = tuple(COLUMNS.items())
    for payload in _payloads(data):
        try:
            value = None if payload is None else _decode(payload)
            if isinstance(value, dict):
                layout = tuple((name, tuple(columns)) for name, columns in value["tables"])
                continue
            row = None if value is None else _row(layout, value)
        except (msgspec.DecodeError, LookupError, TypeError, ValueError):
            row = None
        yield row


def _framed(payload: bytes) -> bytes:
    return _HEAD.pack(_MARK, len(payload), zlib.crc32(payload)) + payload


def _payloads(data: bytes) -> Iterator[bytes | None]:
    at, damaged = 0, False
    while at < len(data):
        payload = _payload(data, at)
        if payload is not None:
            if damaged:
                yield None
            damaged = False
            yield payload
            at += _HEAD.size + len(payload)
            continue
        damaged = True
        at = data.find(_MARK, at + 1)
        if at < 0:
            break
    if damaged:
        yield None


def _payload(data: bytes, at: int) -> bytes | None:
    """The payload of the record at `at`; None where there is none, or it is damaged."""
    if at + _HEAD.size > len(data):
        return None
    mark, length, checksum = _HEAD.unpack_from(data, at)
    if mark != _MARK or length > _RECORD_MAX:
        return None
    payload = data[at + _HEAD.size : at + _HEAD.size + length]
    return payload if len(payload) == length and zlib.crc32(payload) == checksum else None


def _row(layout: Layout, value: list[Any]) -> Row | None:
    """A row in today's order of columns; None for a table of another release."""
    name, columns = layout[value[0]]
    if name in _NUMBERS and columns == COLUMNS[name]:
        return Row(name, tuple(value[1:]))
    if name not in _NUMBERS:
        return None
    return Row(name, _fitted(name, dict(zip(columns, value[1:], strict=True))))


def _fitted(name: str, known: Mapping[str, Any]) -> tuple[Any, ...]:
    """Values by column name; columns that the writing release did not have are empty."""
    return tuple(known[c] if c in known else _empty(name, c) for c in COLUMNS[name])


def _empty(table: str, column: str) -> Any:
    found = metadata.tables[table].c[column]
    if found.nullable:
        return None
    return "" if isinstance(found.type, Text) else 0
