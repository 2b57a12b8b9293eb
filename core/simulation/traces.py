"""Request traces: reading, checking and writing them.

Two published formats are read, one JSON object a line, told apart by the first line:

* *Mooncake* (FAST'25): `timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids` of
  512 tokens each. Our generator writes this format with optional extras (`session`, `turn`,
  `parent`, `tenant`, `type`, `think_s`, `priority`) that other readers ignore.
* *Bailian* (the Qwen usage traces): `timestamp` in seconds, `chat_id`, `parent_chat_id`, `turn`,
  `type`, lengths, and `hash_ids` of 16 tokens each.

Equal ids mean equal prefixes, so ids stand in for the hashes of real tokens. The last id may name
a partly filled block; only whole blocks can be reused.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from core.errors import BadRequest

Format = Literal["mooncake", "bailian"]
BLOCK_TOKENS: dict[Format, int] = {"mooncake": 512, "bailian": 16}
LINE_BYTES_MAX = 16 * 2**20


class TraceError(BadRequest):
    """A trace line that cannot be read; the message names file, line number and field."""


@dataclass(slots=True, kw_only=True)
class TraceRequest:
    """One request of a trace. Lengths in tokens, times in seconds from the trace's start.

    parent: index in the trace of the previous turn of the session, -1 for a first turn.
    think_s: recorded pause between the previous turn's end and this arrival; None if unknown.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: list[int]
    session: str = ""
    turn: int = 1
    parent: int = -1
    tenant: str = ""
    kind: str = ""
    think_s: float | None = None
    priority: int = 0


@dataclass(slots=True, kw_only=True)
class Trace:
    """A whole trace in order of arrival, with the size of the blocks its ids stand for."""

    name: str
    block_tokens: int
    requests: list[TraceRequest]
    skipped: int = 0
    """Malformed lines left out on request."""
    skip_reasons: dict[str, int] = field(default_factory=dict)
    """Field name -> malformed lines left out for it."""

    @property
    def duration_s(self) -> float:
        """Time from the first arrival to the last."""
        if not self.requests:
            return 0.0
        return self.requests[-1].arrival_s - self.requests[0].arrival_s

    def head(self, count: int) -> Trace:
        """The first `count` requests; parents always stand before their children, so they hold."""
        return self._part(self.requests[:count], f"{self.name}[:{count}]")

    def halves(self) -> tuple[Trace, Trace]:
        """The trace cut at half its time; a turn whose parent falls in the first half loses it."""
        middle = self.requests[0].arrival_s + self.duration_s / 2 if self.requests else 0.0
        first = [r for r in self.requests if r.arrival_s < middle]
        second = [_rebased(r, len(first)) for r in self.requests[len(first) :]]
        return self._part(first, f"{self.name}/1"), self._part(second, f"{self.name}/2")

    def _part(self, requests: list[TraceRequest], name: str) -> Trace:
        return Trace(name=name, block_tokens=self.block_tokens, requests=requests)


def read_trace(
    path: Path | str,
    *,
    block_tokens: int | None = None,
    skip_bad: bool = False,
    limit: int | None = None,
) -> Trace:
    """Read a Mooncake or Bailian trace (plain or .gz), sorted by arrival (stable).

    Raises TraceError at the first malformed line, naming file, line and field; with `skip_bad`
    such lines are left out and counted. `block_tokens` overrides the format's block size.
    """
    reader = _Reader(Path(path), block_tokens, skip_bad)
    reader.read(limit)
    return reader.finish()


def trace_lines(trace: Trace) -> Iterator[bytes]:
    """The trace as lines of the Mooncake format with our extras; timestamps in whole ms."""
    for r in trace.requests:
        row: dict[str, Any] = {
            "timestamp": round(r.arrival_s * 1e3),
            "input_length": r.prompt_tokens,
            "output_length": r.output_tokens,
            "hash_ids": r.hash_ids,
        }
        if r.session:
            row |= {"session": r.session, "turn": r.turn, "parent": r.parent}
        optional = {"tenant": r.tenant, "type": r.kind, "priority": r.priority}
        row |= {name: value for name, value in optional.items() if value}
        if r.think_s is not None:
            row["think_s"] = round(r.think_s, 3)
        yield orjson.dumps(row) + b"\n"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes `path` when the context ends well: what fails half-way
    leaves neither half a file nor a gap where one was. Pipes and devices are written directly."""
    if path.exists() and not path.is_file():
        yield path
        return
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_trace(trace: Trace, path: Path | str) -> None:
    """Write `trace` so that `read_trace` returns it again (times rounded to the millisecond).

    BadRequest where the file cannot be written.
    """
    target = Path(path)
    opener = gzip.open if target.suffix == ".gz" else open
    try:
        with replacing(target) as part, opener(part, "wb") as out:
            out.writelines(trace_lines(trace))
    except OSError as err:
        text = f"out: cannot write {target}: {err.strerror or err}"
        raise BadRequest(text, field="out") from None


class _Reader:
    """Reads lines into requests; knows where it is, so that errors can say so."""

    def __init__(self, path: Path, block_tokens: int | None, skip_bad: bool) -> None:
        self.path = path
        self.block_tokens = block_tokens
        self.skip_bad = skip_bad
        self.format: Format | None = None
        self.requests: list[TraceRequest] = []
        self.chats: list[tuple[int, int]] = []
        self.rows: list[int] = []
        self.reasons: dict[str, int] = {}
        self.line = 0

    def read(self, limit: int | None) -> None:
        try:
            with self._open() as lines:
                for self.line, raw in enumerate(lines, 1):
                    if limit is not None and len(self.requests) >= limit:
                        break
                    if raw.strip():
                        self._take(raw)
        except (OSError, EOFError, zlib.error) as err:
            # A disk that fails, or a .gz that is cut off, damaged, or none.
            text = f"{self.path}: cannot read the trace after line {self.line}: {err}"
            raise TraceError(text, field="trace") from None

    def _open(self) -> Any:
        try:
            return gzip.open(self.path) if self.path.suffix == ".gz" else self.path.open("rb")
        except OSError as err:
            text = f"{self.path}: cannot read the trace: {err.strerror or err}"
            raise TraceError(text, field="trace") from None

    def _take(self, raw: bytes) -> None:
        try:
            request, chat = self._parse(raw)
        except TraceError as err:
            if not self.skip_bad:
                raise
            name = err.field or "line"
            self.reasons[name] = self.reasons.get(name, 0) + 1
            return
        self.requests.append(request)
        self.chats.append(chat)
        self.rows.append(self.line)

    def _fail(self, name: str, expected: str) -> TraceError:
        return TraceError(f"{self.path}:{self.line}: {name}: {expected}", field=name)

    def _parse(self, raw: bytes) -> tuple[TraceRequest, tuple[int, int]]:
        if len(raw) > LINE_BYTES_MAX:
            raise self._fail("line", f"longer than {LINE_BYTES_MAX} bytes")
        try:
            row = orjson.loads(raw)
        except orjson.JSONDecodeError as err:
            raise self._fail("line", f"not JSON: {err}") from None
        if not isinstance(row, dict):
            raise self._fail("line", "expected a JSON object")
        if self.format is None:
            self.format = "bailian" if "chat_id" in row else "mooncake"
            self.block_tokens = self.block_tokens or BLOCK_TOKENS[self.format]
        return self._request(row)

    def _request(self, row: dict[str, Any]) -> tuple[TraceRequest, tuple[int, int]]:
        bailian = self.format == "bailian"
        request = TraceRequest(
            arrival_s=self._number(row, "timestamp") / (1.0 if bailian else 1e3),
            prompt_tokens=self._whole(row, "input_length"),
            output_tokens=self._whole(row, "output_length"),
            hash_ids=self._ids(row),
            session=self._text(row, "session"),
            turn=self._whole(row, "turn", default=1),
            tenant=self._text(row, "tenant"),
            kind=self._text(row, "type"),
            think_s=self._number(row, "think_s") if "think_s" in row else None,
            priority=self._whole(row, "priority", default=0),
        )
        self._check_blocks(request)
        if bailian:
            parent = self._whole(row, "parent_chat_id", default=-1, low=-1)
            return request, (self._whole(row, "chat_id"), parent)
        return request, (-1, self._whole(row, "parent", default=-1, low=-1))

    def _number(self, row: dict[str, Any], name: str) -> float:
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._fail(name, f"expected a number, not {_shown(row, name)}")
        if not math.isfinite(value) or value < 0:
            raise self._fail(name, f"expected a finite number >= 0, not {value}")
        return float(value)

    def _whole(
        self, row: dict[str, Any], name: str, *, default: int | None = None, low: int = 0
    ) -> int:
        value = row.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self._fail(name, f"expected a whole number >= {low}, not {_shown(row, name)}")
        return value

    def _text(self, row: dict[str, Any], name: str) -> str:
        value = row.get(name, "")
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise self._fail(name, f"expected a text, not {_shown(row, name)}")
        return str(value)

    def _ids(self, row: dict[str, Any]) -> list[int]:
        ids = row.get("hash_ids")
        if not isinstance(ids, list):
            raise self._fail("hash_ids", f"expected a list, not {_shown(row, 'hash_ids')}")
        for i, value in enumerate(ids):
            if type(value) is not int or not 0 <= value < 2**64:
                raise self._fail("hash_ids", f"expected ids >= 0, not {value!r} at position {i}")
        return ids

    def _check_blocks(self, r: TraceRequest) -> None:
        size = self.block_tokens or 1
        whole = r.prompt_tokens // size
        most = -(-r.prompt_tokens // size)
        if not whole <= len(r.hash_ids) <= most:
            wanted = f"{whole}" if whole == most else f"{whole} or {most}"
            text = f"expected {wanted} ids for {r.prompt_tokens} tokens, found {len(r.hash_ids)}"
            raise self._fail("hash_ids", text)

    def finish(self) -> Trace:
        order = sorted(range(len(self.requests)), key=lambda i: self.requests[i].arrival_s)
        place = {old: new for new, old in enumerate(order)}
        if self.format == "bailian":
            self._link_chats(place)
        elif self.format == "mooncake":
            self._link_rows(place)
        return Trace(
            name=self.path.name,
            block_tokens=self.block_tokens or BLOCK_TOKENS["mooncake"],
            requests=[self.requests[i] for i in order],
            skipped=sum(self.reasons.values()),
            skip_reasons=dict(sorted(self.reasons.items())),
        )

    def _link_chats(self, place: dict[int, int]) -> None:
        """Parents and session names from chat ids; a parent outside the trace starts a session."""
        by_chat = {chat: i for i, (chat, _) in enumerate(self.chats)}
        for i in sorted(place, key=place.__getitem__):
            chat, parent_chat = self.chats[i]
            parent = by_chat.get(parent_chat, -1)
            request = self.requests[i]
            if parent >= 0 and place[parent] < place[i]:
                request.parent = place[parent]
                request.session = self.requests[parent].session
            else:
                request.session = str(chat)

    def _link_rows(self, place: dict[int, int]) -> None:
        """Parents written by our generator count lines from 0; a skipped parent is none."""
        by_row = {row - 1: i for i, row in enumerate(self.rows)}
        for i, (_, parent_row) in enumerate(self.chats):
            parent = by_row.get(parent_row, -1) if parent_row >= 0 else -1
            known = parent >= 0 and place[parent] < place[i]
            self.requests[i].parent = place[parent] if known else -1


def _rebased(r: TraceRequest, start: int) -> TraceRequest:
    parent = r.parent - start if r.parent >= start else -1
    return TraceRequest(
        arrival_s=r.arrival_s,
        prompt_tokens=r.prompt_tokens,
        output_tokens=r.output_tokens,
        hash_ids=r.hash_ids,
        session=r.session,
        turn=r.turn,
        parent=parent,
        tenant=r.tenant,
        kind=r.kind,
        think_s=r.think_s if parent >= 0 else None,
        priority=r.priority,
    )


def _shown(row: dict[str, Any], name: str) -> str:
    return repr(row[name])[:60] if name in row else "nothing"
