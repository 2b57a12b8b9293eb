"""The steps an event cursor takes; which, and when, is told in event_stream."""

from __future__ import annotations

from collections import deque

import xxhash

from core.errors import MalformedFrame
from core.index.events import Frame, decode_batch
from core.index.stream_types import (
    Action,
    Apply,
    CursorStats,
    Degraded,
    Forget,
    Held,
    NoiseMeter,
    Recovered,
    Replay,
    RequestReplay,
    Restarted,
    Status,
)

ATTEMPTS_MAX = 3
COOLING_S = 30.0
DIGESTS = 64
HELD_BATCHES_MAX = 8_192
HELD_BYTES_MAX = 64 << 20
MALFORMED_MAX = 10
MALFORMED_WINDOW_S = 60.0


class CursorSteps:
    """State of a cursor and the single steps that its transitions are made of."""

    def __init__(self, *, has_replay: bool) -> None:
        self.status = Status.UNKNOWN
        self.has_replay = has_replay
        self.degraded = False
        self.stats = CursorStats()
        self.last_live: int | None = None
        self.last_applied: int | None = None
        """None where nothing is applied and whatever comes first is next."""
        self.applied_digest = 0
        """Of the last applied payload: with its number, what a snapshot resumes from."""
        self._now = 0.0
        self._frame: Frame | None = None
        self._out: list[Action] = []
        self._digests: deque[int] = deque(maxlen=DIGESTS)
        self._held = Held(HELD_BATCHES_MAX, HELD_BYTES_MAX)
        self._noise = NoiseMeter(MALFORMED_MAX, MALFORMED_WINDOW_S)
        self._replay: Replay | None = None
        self._tokens = 0
        self._attempts = 0
        self._replaying_since = 0.0
        self._cooling_until = 0.0
        self._reason = ""

    def too_noisy(self, now: float) -> bool:
        """Count a malformed frame; True when there were too many lately."""
        self.stats.malformed += 1
        noisy = self._noise.count(now)
        self._reason = "too many malformed frames" if noisy else "malformed frame"
        return noisy

    def begin(self) -> None:
        """At the start: from a snapshot if what follows can be asked for, else from nothing."""
        if self.last_applied is not None and self.has_replay:
            self.catch_up()
            return
        if self.last_applied is not None:
            self._reason = "no replay to continue the snapshot"
            self.forget()
        self.learn()

    def learn(self) -> None:
        """From nothing: replay everything, or take the stream as it comes."""
        self.last_applied = None
        if self.has_replay:
            self.catch_up()
        else:
            self.go_live()

    def catch_up(self) -> None:
        """Ask for what is missing, with all attempts before us."""
        self._attempts = 0
        self._replaying_since = self._now
        self.ask()

    def ask(self) -> None:
        """Request a replay from the last applied batch on."""
        self.status = Status.REPLAYING
        self._tokens += 1
        from_seq = -1 if self.last_applied is None else self.last_applied
        self._replay = Replay(self._tokens, from_seq >= 0, self._now)
        self.stats.replays += 1
        self._out.append(RequestReplay(self._tokens, max(from_seq, 0)))

    def apply(self) -> None:
        """Apply the live frame at hand."""
        if self._frame is not None:
            self._apply_payload(self._frame.seq, self._frame.payload)

    def _apply_payload(self, seq: int, payload: bytes) -> None:
        self.last_applied = seq
        self.applied_digest = digest(payload)
        try:
            batch = decode_batch(payload)
        except MalformedFrame:
            # Its removals are lost, and a replay would bring the same bytes again.
            if self.too_noisy(self._now):
                self.give_up()
            else:
                self.forget()
            return
        self.stats.applied += 1
        self._out.append(Apply(seq, batch))

    def apply_reply(self) -> None:
        """Apply the reply at hand."""
        self._attempts = 0
        self.stats.replayed += 1
        self.apply()
        self._digests.append(self.applied_digest)

    def hold(self) -> None:
        """Keep the live frame at hand for after the replay."""
        frame = self._frame
        # Without room it is dropped: the live mark remembers it, a later replay brings it.
        if frame is not None and not self._held.add(frame.seq, frame.payload):
            self.stats.held_dropped += 1

    def drain(self) -> None:
        """The replay is complete: apply what was held, then go live or ask for the rest."""
        self._replay = None
        if self.last_applied is None:
            self.last_applied = -1
        while (payload := self._held.take(self.last_applied + 1)) is not None:
            self._attempts = 0
            self._apply_payload(self.last_applied + 1, payload)
            if self.status is not Status.REPLAYING:
                return
        if self.last_live is not None and self.last_applied < self.last_live:
            self._reason = "replay ended early"
            self.retry()
        else:
            self.go_live()

    def hole(self) -> None:
        """The replay skipped a batch."""
        self._reason = "replay has a hole"
        self.retry()

    def retry(self) -> None:
        """Ask again, or give up after too many attempts without progress."""
        self._attempts += 1
        if self._attempts >= ATTEMPTS_MAX:
            self.give_up()
        else:
            self.ask()

    def forget(self) -> None:
        """Have the node forgotten."""
        self.stats.forgotten += 1
        self._out.append(Forget(self._reason))

    def lost_history(self) -> None:
        """The replay begins too late: relearn from there."""
        if self.last_applied is not None:
            self._reason = "history lost"
            self.forget()
        self.apply_reply()

    def gap(self) -> None:
        """The live frame at hand leaves a hole before it."""
        self.stats.gaps += 1
        self.hold()
        if self.has_replay:
            self.catch_up()
        else:
            self._reason = "batches were lost"
            self.give_up()

    def backwards(self) -> None:
        """The live frame at hand is numbered like an older one."""
        self._reason = "sequence went backwards"

    def foreign(self) -> None:
        """The replay is of another process than what was applied; so may be what is held."""
        self._reason = "replay of another process"
        self.restart()

    def renumber(self) -> None:
        """The live numbers so far were the old process's; the frame at hand is the new one's."""
        self._digests.clear()
        self.last_live = None
        if self._frame is not None:
            self.last_live = self._frame.seq
            self._digests.append(digest(self._frame.payload))

    def restart(self) -> None:
        """The engine has started again, with an empty cache."""
        self.stats.restarts += 1
        self._out.append(Restarted(self._reason))
        self.forget()
        self._held.clear()
        self._replay = None
        self.last_applied = None

    def relearn(self) -> None:
        """Learn from nothing with the first live frame at hand."""
        if self.has_replay:
            self.hold()
            self.learn()
        else:
            self.learn()
            self.apply()

    def drop(self) -> None:
        """The frame at hand is known already."""
        self.stats.duplicates += 1

    def give_up(self) -> None:
        """Nothing can be trusted: forget, and rest for a while."""
        self.forget()
        self._out.append(Degraded(self._reason))
        self.degraded = True
        self.status = Status.COOLING
        self._cooling_until = self._now + COOLING_S
        self._replay = None
        self._held.clear()
        self.last_applied = None

    def go_live(self) -> None:
        """All that was published is applied."""
        self.status = Status.LIVE
        self._replay = None
        self._held.clear()
        if self.degraded:
            self.degraded = False
            self._out.append(Recovered())


def digest(payload: bytes) -> int:
    """Fingerprint of a payload; batches carry a time, so equal ones are the same batch."""
    return int(xxhash.xxh3_64_intdigest(payload))
