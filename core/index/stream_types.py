"""What the event cursor is and asks for: states, actions, counters."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from core.index.events import Batch


class Status(enum.StrEnum):
    """Where the stream stands."""

    UNKNOWN = "unknown"
    LIVE = "live"
    REPLAYING = "replaying"
    COOLING = "cooling"


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply this batch to the index."""

    seq: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Ask the replay socket for batches from `from_seq` on; hand replies back with the token."""

    token: int
    from_seq: int


@dataclass(frozen=True, slots=True)
class Forget:
    """All blocks of the node vanish; what is applied next builds on nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class Degraded:
    """The signal cannot be trusted until Recovered."""

    reason: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """The signal is good again."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The engine has started again with an empty cache (a Forget follows)."""

    reason: str


Action = Apply | RequestReplay | Forget | Degraded | Recovered | Restarted


@dataclass(slots=True)
class CursorStats:
    """Counters since the cursor was made."""

    applied: int = 0
    duplicates: int = 0
    gaps: int = 0
    replays: int = 0
    replayed: int = 0
    restarts: int = 0
    forgotten: int = 0
    malformed: int = 0
    held_dropped: int = 0


class Held:
    """Live batches held back while a replay runs, by number; bounded in count and bytes."""

    def __init__(self, batches_max: int, bytes_max: int) -> None:
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._payloads: dict[int, bytes] = {}
        self._bytes = 0

    def add(self, seq: int, payload: bytes) -> bool:
        """Keep a batch; False where there is no room."""
        full = len(self._payloads) >= self._batches_max
        if full or self._bytes + len(payload) > self._bytes_max:
            return False
        self._payloads[seq] = payload
        self._bytes += len(payload)
        return True

    def take(self, seq: int) -> bytes | None:
        """The batch `seq` if it is held; those before it are let go."""
        for old in [number for number in self._payloads if number < seq]:
            self._bytes -= len(self._payloads.pop(old))
        payload = self._payloads.pop(seq, None)
        self._bytes -= len(payload or b"")
        return payload

    def clear(self) -> None:
        """Let everything go."""
        self._payloads.clear()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._payloads)


class NoiseMeter:
    """Notices when more than `limit` bad frames came within `window_s` seconds."""

    def __init__(self, limit: int, window_s: float) -> None:
        self._window_s = window_s
        self._at: deque[float] = deque(maxlen=limit + 1)

    def count(self, now: float) -> bool:
        """Another bad frame; True when there were too many lately (and then starts over)."""
        self._at.append(now)
        if len(self._at) < (self._at.maxlen or 0) or now - self._at[0] > self._window_s:
            return False
        self._at.clear()
        return True


@dataclass(slots=True)
class Replay:
    """A replay that runs.

    proves: its first reply has to be the batch applied last. replied: whether any reply came.
    """

    token: int
    proves: bool
    heard_at: float
    replied: bool = False
