"""Server-sent events without sockets: framing, and what a completion stream tells on its way.

Bytes in, bytes out. `SseFramer` cuts a byte stream at blank lines so that only whole events are
passed on: what it returns, joined, is what it was fed. `StreamObserver` reads tokens, usage and
engine errors out of those events and changes nothing, except that it can leave out the one
usage event which the gateway itself asked for.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from math import ceil
from typing import Any

import orjson

EVENT_BYTES_MAX = 1 << 20
"""A longer event is passed on in pieces and no longer read."""
GAPS_MAX = 65_536
"""Token gaps kept of one stream; later ones count in the mean only."""
TAIL_SHARE = 0.1
"""TBT is the mean of the longest tenth of the gaps (F)."""

DONE = b"[DONE]"
_BOUNDARY = re.compile(rb"\r\n(?:\r\n|\n|\r)|\n(?:\r\n|\n|\r)|\r(?!\n)(?:\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseFramer:
    """Cuts bytes into whole events (their blank line included); keeps the unfinished rest."""

    __slots__ = ("overlong", "rest")

    def __init__(self) -> None:
        self.rest = b""
        self.overlong = False
        """An event broke the size limit: the bytes pass on uncut from here."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Events completed by `chunk`; nothing is lost, changed or reordered."""
        data = self.rest + chunk if self.rest else chunk
        if self.overlong:
            return [data]
        if b"\r" in data:
            return self._cut(data)
        if data.endswith(b"\n\n") and data.count(b"\n\n") == 1:
            self.rest = b""
            return [data]
        parts = data.split(b"\n\n")
        self._keep(parts.pop())
        events = [part + b"\n\n" for part in parts]
        return self._with_overlong(events)

    def flush(self) -> bytes:
        """The unfinished rest, given up by the framer."""
        rest, self.rest = self.rest, b""
        return rest

    def _cut(self, data: bytes) -> list[bytes]:
        events, start = [], 0
        for found in _BOUNDARY.finditer(data):
            events.append(data[start : found.end()])
            start = found.end()
        self._keep(data[start:])
        return self._with_overlong(events)

    def _keep(self, rest: bytes) -> None:
        self.rest = rest
        self.overlong = len(rest) > EVENT_BYTES_MAX

    def _with_overlong(self, events: list[bytes]) -> list[bytes]:
        return [*events, self.flush()] if self.overlong else events


def event_data(event: bytes) -> bytes:
    """The data of one event: its `data` lines joined by newlines, b"" where it has none."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2]
    lines = []
    for line in _LINE_END.split(event):
        if line.startswith(b"data:"):
            value = line[5:]
            lines.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(lines)


def error_event(body: bytes) -> bytes:
    """An event that carries an error body (one line of JSON)."""
    return b"data: " + body + b"\n\n"


class StreamObserver:
    """Reads a completion stream as it passes: first token, gaps, usage, errors, the end.

    stream_error: the engine adapter's reading of an event's data as an error message.
    strip_usage: leave out the usage-only event (its `choices` are empty).
    """

    __slots__ = (
        "_framer",
        "_last_s",
        "_stream_error",
        "_strip",
        "_usage_data",
        "done",
        "error",
        "events",
        "first_event_s",
        "first_token_s",
        "gap_count",
        "gap_sum_s",
        "gaps",
        "last_token_s",
        "stripped",
        "tokens",
    )

    def __init__(
        self, stream_error: Callable[[bytes], str | None], *, strip_usage: bool = False
    ) -> None:
        self._framer = SseFramer()
        self._stream_error = stream_error
        self._strip = strip_usage
        self._usage_data = b""
        self.done = False
        self.error: str | None = None
        """The engine's message, where it ended the stream with an error object."""
        self.events = 0
        self.tokens = 0
        """Events that carried output: tokens, where the engine sends each by itself."""
        self.stripped = 0
        self.first_event_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.gaps = array("d")
        self.gap_sum_s = 0.0
        self.gap_count = 0

    def feed(self, chunk: bytes, now: float) -> bytes:
        """Take bytes as they came at `now`; the whole events to pass on, maybe b""."""
        events = self._framer.feed(chunk)
        if len(events) == 1:
            return b"" if self._read(events[0], now) else events[0]
        return b"".join([event for event in events if not self._read(event, now)])

    def flush(self) -> bytes:
        """What is left of an unfinished event at the end of the stream."""
        return self._framer.flush()

    @property
    def overlong(self) -> bool:
        """Whether an event was too long to be read."""
        return self._framer.overlong

    def usage(self) -> dict[str, Any] | None:
        """The last event that carried a usage object, parsed; None without one."""
        if not self._usage_data:
            return None
        try:
            found = orjson.loads(self._usage_data)
        except orjson.JSONDecodeError:
            return None
        return found if isinstance(found, dict) else None

    def tbt_s(self) -> float | None:
        """Mean of the longest tenth of the token gaps, seconds; None without a gap."""
        return tail_mean(self.gaps)

    def tpot_s(self) -> float | None:
        """Mean token gap in seconds; None without a gap."""
        return self.gap_sum_s / self.gap_count if self.gap_count else None

    def _read(self, event: bytes, now: float) -> bool:
        """Note one event; True where it is the usage event to leave out."""
        data = event_data(event)
        if not data:
            return False
        self.events += 1
        if self.first_event_s is None:
            self.first_event_s = now
        if _may_be_special(data) and (handled := self._special(data)) is not None:
            return handled
        self.tokens += 1
        last, self.last_token_s = self.last_token_s, now
        if last is None:
            self.first_token_s = now
        else:
            self._gap(now - last)
        return False

    def _special(self, data: bytes) -> bool | None:
        """What is no token, or brings more than one: whether to leave it out, None for a token."""
        if data == DONE:
            self.done = True
            return False
        if b'"error"' in data and self._note_error(data):
            return False
        if b'"usage"' in data and b'"usage":null' not in data:
            self._usage_data = data
            if b'"choices":[]' in data:
                self.stripped += self._strip
                return self._strip
        return False if _role_only(data) else None

    def _note_error(self, data: bytes) -> bool:
        message = self._stream_error(data)
        if message is None:
            return False
        self.error = self.error or message
        return True

    def _gap(self, gap: float) -> None:
        self.gap_count += 1
        self.gap_sum_s += gap
        if self.gap_count <= GAPS_MAX:
            self.gaps.append(gap)


def tail_mean(gaps: array[float]) -> float | None:
    """Mean of the longest TAIL_SHARE of the gaps (at least one); None without gaps."""
    if not gaps:
        return None
    longest = sorted(gaps, reverse=True)[: max(1, ceil(len(gaps) * TAIL_SHARE))]
    return sum(longest) / len(longest)


def _may_be_special(data: bytes) -> bool:
    """Whether an event may be more or less than one token; plain searches are the fastest."""
    return b'"usage"' in data or b'"role"' in data or b'"error"' in data or data == DONE


def _role_only(data: bytes) -> bool:
    """Whether a chat chunk opens the message without a token in it."""
    return b'"role"' in data and (b'"content":""' in data or b'"content":null' in data)
