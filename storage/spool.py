"""The spool: rows that the database could not take yet, on the local disk until it can.

Theory of operation. Rows are appended in memory, written to the current segment file at the next
`write`, and synced to the disk by `sync`. A segment is sealed when it is full or when somebody
wants to read it; sealed segments never change. `take` reads the oldest rows, `done` says that
they are stored: a segment is deleted when all its rows are. Nothing else is remembered, so after
a crash the segment in work is read once more from its beginning, and its rows are stored once all
the same, by their keys.

Limits. When the files together exceed `bytes_max`, the oldest segment is dropped and its rows are
counted. When the disk cannot be written, rows stay in memory, up to `memory_max` bytes; beyond,
the oldest are dropped and counted. Telemetry is refused from half of either limit on.

Several processes may share a folder. Each run marks its segments with its name and holds a lock
on a file of that name; what a dead run left is adopted at the next start. Without a folder
everything stays in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from storage import spool_format
from storage.insert import Row
from storage.rows import mended

MIB = 1 << 20


@dataclass(slots=True, eq=False)
class _Segment:
    path: Path
    rows: int
    size: int
    unread: Iterator[Row | None] | None = None
    """Set while the segment is being read."""
    file: int | None = None
    """Descriptor while it is the current one."""


@dataclass(slots=True, eq=False)
class Taken:
    """Rows taken from the spool; hand them back to `done` when they are stored."""

    rows: list[Row]
    segment: _Segment | None = None
    ends_segment: bool = False
    records: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolCounters:
    """`rows` and `size_bytes` are now; the others since the start."""

    rows: int = 0
    memory_rows: int = 0
    """Those of `rows` that are not in a file yet."""
    size_bytes: int = 0
    dropped: int = 0
    damaged: int = 0
    """Stretches of files that could not be read."""
    failures: int = 0
    """Failed attempts to write to the disk."""
    last_error: str = ""


class Spool:
    """Rows in waiting. Every method may be called from any thread; none raises."""

    def __init__(
        self,
        folder: Path | None,
        *,
        bytes_max: int = 256 * MIB,
        segment_bytes: int = 4 * MIB,
        memory_max: int = 192 * MIB,
    ) -> None:
        self._folder = folder
        self.bytes_max = bytes_max if folder is not None else 0
        """Files beyond this are dropped, oldest first; 0 without a folder."""
        self._bytes_max = bytes_max
        self._segment_bytes = segment_bytes
        self._memory_max = memory_max
        self._lock = threading.RLock()
        self._memory: deque[bytes] = deque()
        self._memory_bytes = 0
        self._segments: deque[_Segment] = deque()
        self._current: _Segment | None = None
        self._unsynced: list[int] = []
        self._adopted: dict[str, int] = {}
        """Locks held on the runs whose segments were adopted."""
        self._run = f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(3)}"
        self._run_lock: int | None = None
        self._number = 0
        self._dirty = self._folder_changed = False
        """Whether the current segment, or the list of them, is not synced yet."""
        self._dropped = self._damaged = self._failures = 0
        self._last_error = ""

    @property
    def on_disk(self) -> bool:
        """Whether rows outlive the process."""
        return self._folder is not None

    def append(self, rows: Iterable[Row]) -> None:
        """Keep rows in memory for the next `write`. Values without a form are dropped."""
        with self._lock:
            for row in rows:
                record = None if self._refused(row) else _encoded(row)
                if record is None:
                    self._dropped += 1
                    continue
                self._memory.append(record)
                self._memory_bytes += len(record)
            while self._memory_bytes > self._memory_max:
                self._memory_bytes -= len(self._memory.popleft())
                self._dropped += 1

    def write(self) -> bool:
        """Put what is in memory into files; False where the disk would not take it all."""
        if self._folder is None:
            return True
        with self._lock:
            try:
                self._open_folder(self._folder)
                while self._memory:
                    self._write_some(self._folder)
                    self._drop_oldest()
            except OSError as error:
                self._failed(error)
                return False
        return True

    def sync(self) -> None:
        """Wait until the disk has everything written so far."""
        with self._lock:
            files, self._unsynced = self._unsynced, []
            current = self._current.file if self._current is not None and self._dirty else None
            try:
                if current is not None:
                    files.append(os.dup(current))
                self._dirty = False
                if self._folder is not None and self._folder_changed:
                    files.append(os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC))
                self._folder_changed = False
            except OSError as error:  # no descriptor is free, or the folder is gone: next time
                self._failed(error)
        for descriptor in files:
            try:
                os.fsync(descriptor)
            except OSError as error:
                self._failed(error)
            finally:
                os.close(descriptor)

    def take(self, limit: int) -> Taken | None:
        """The oldest rows, at most `limit`; None when there are none. Ask again after `done`."""
        with self._lock:
            self._seal()
            while self._segments:
                segment = self._segments[0]
                try:
                    taken = self._read(segment, limit)
                except FileNotFoundError as error:  # somebody made room: its rows are lost
                    self._failed(error)
                    self._dropped += segment.rows
                    self._delete(segment)
                    continue
                except OSError as error:
                    self._failed(error)
                    self._segments.rotate(-1)
                    return None
                if taken.rows:
                    return taken
                self._delete(segment)
            return self._take_from_memory(limit)

    def done(self, taken: Taken) -> None:
        """These rows are stored: forget them."""
        with self._lock:
            if taken.segment is None:
                for _ in range(min(len(taken.records), len(self._memory))):
                    if self._memory[0] is not taken.records[0]:
                        break  # dropped meanwhile: memory was full
                    self._memory_bytes -= len(self._memory.popleft())
                    taken.records.pop(0)
            elif taken.segment in self._segments:
                taken.segment.rows = max(taken.segment.rows - len(taken.rows), 0)
                if taken.ends_segment:
                    self._delete(taken.segment)

    def close(self) -> int:
        """Write and sync what is left, and let other processes adopt it; how many rows are lost."""
        with self._lock:
            self.write()
            self._seal()
            self.sync()
            lost = len(self._memory)
            self._memory.clear()
            self._memory_bytes = 0
            for name, descriptor in self._adopted.items():
                self._let_go(name, descriptor)
            if self._run_lock is not None:
                self._let_go(self._run, self._run_lock)
            self._adopted, self._run_lock = {}, None
            self._segments.clear()
            return lost

    def counters(self) -> SpoolCounters:
        """Figures for metrics and the console."""
        with self._lock:
            files = [*self._segments, *([self._current] if self._current else [])]
            return SpoolCounters(
                rows=sum(s.rows for s in files) + len(self._memory),
                memory_rows=len(self._memory),
                size_bytes=self._files_bytes() + self._memory_bytes,
                dropped=self._dropped,
                damaged=self._damaged,
                failures=self._failures,
                last_error=self._last_error,
            )

    def _failed(self, error: OSError) -> None:
        self._failures += 1
        self._last_error = f"{type(error).__name__}: {error.strerror or error}"

    def _refused(self, row: Row) -> bool:
        if row.table != "node_telemetry":
            return False
        limit = self._bytes_max if self._folder is not None else self._memory_max
        size = self._files_bytes() + self._memory_bytes
        return size * 2 >= limit or self._memory_bytes * 2 >= self._memory_max

    def _open_folder(self, folder: Path) -> None:
        """Make the folder, lock this run's name, and adopt what dead runs left. Once."""
        if self._run_lock is not None:
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._run_lock = _locked(folder / f"{self._run}.lock")
        names = {path.stem.partition("-")[0] for path in folder.glob("*.*")}
        for run in sorted(names - {self._run}):
            lock = _locked(folder / f"{run}.lock")
            if lock is not None:
                try:
                    self._adopt(folder, run, lock)
                except OSError as error:  # left for a later start; the others are not to suffer
                    self._failed(error)

    def _adopt(self, folder: Path, run: str, lock: int) -> None:
        """Take over the segments of a run that holds its lock no longer."""
        paths = sorted(folder.glob(f"{run}-*.spool"))
        if not paths:
            self._let_go(run, lock)
            return
        self._adopted[run] = lock
        for path in paths:
            data = path.read_bytes()
            self._segments.append(_Segment(path, spool_format.count(data), len(data)))

    def _write_some(self, folder: Path) -> None:
        """Append rows from memory to the current segment until it is full, whole rows only."""
        segment = self._current or self._new_segment(folder)
        self._current = segment
        assert segment.file is not None
        room = max(self._segment_bytes - segment.size, 1)
        chosen, size = 0, 0
        for record in self._memory:
            chosen, size = chosen + 1, size + len(record)
            if size >= room:
                break
        _write_all(segment.file, b"".join(islice(self._memory, chosen)), at=segment.size)
        for _ in range(chosen):
            self._memory_bytes -= len(self._memory.popleft())
        segment.rows += chosen
        segment.size += size
        self._dirty = True
        if segment.size >= self._segment_bytes:
            self._seal()

    def _new_segment(self, folder: Path) -> _Segment:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may be gone meanwhile
        path = folder / f"{self._run}-{self._number:08d}.spool"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            head = spool_format.segment_head()
            _write_all(file, head, at=0)
        except OSError:
            os.close(file)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._number += 1
        self._folder_changed = True
        return _Segment(path, 0, len(head), file=file)

    def _seal(self) -> None:
        """Make the current segment one that is only read from now on."""
        if self._current is None:
            return
        if self._current.file is not None:
            self._unsynced.append(self._current.file)
            self._current.file = None
        self._segments.append(self._current)
        self._current = None

    def _drop_oldest(self) -> None:
        """Keep within the limit: whole segments go, the oldest first."""
        while self._files_bytes() > self._bytes_max and self._segments:
            self._dropped += self._segments[0].rows
            self._delete(self._segments[0])

    def _files_bytes(self) -> int:
        return sum(s.size for s in self._segments) + (self._current.size if self._current else 0)

    def _read(self, segment: _Segment, limit: int) -> Taken:
        if segment.unread is None:
            segment.unread = spool_format.rows(segment.path.read_bytes())
        found: list[Row] = []
        ended = True
        for row in segment.unread:
            if row is None:
                self._damaged += 1
                continue
            found.append(row)
            if len(found) >= limit:
                ended = False
                break
        return Taken(found, segment, ends_segment=ended)

    def _take_from_memory(self, limit: int) -> Taken | None:
        records = list(islice(self._memory, limit))
        if not records:
            return None
        rows = [row for row in spool_format.rows(b"".join(records)) if row is not None]
        return Taken(rows, records=records)

    def _delete(self, segment: _Segment) -> None:
        self._segments.remove(segment)
        with contextlib.suppress(OSError):
            segment.path.unlink()
        run = segment.path.name.partition("-")[0]
        if run in self._adopted and not any(s.path.name.startswith(run) for s in self._segments):
            self._let_go(run, self._adopted.pop(run))

    def _let_go(self, run: str, lock: int) -> None:
        """Give up a run's name; its lock file goes when no segment needs it."""
        assert self._folder is not None
        if not any(self._folder.glob(f"{run}-*.spool")):
            with contextlib.suppress(OSError):
                (self._folder / f"{run}.lock").unlink()
        os.close(lock)


def _write_all(file: int, data: bytes, *, at: int) -> None:
    """Write at an offset, all or nothing: what a full disk took of it is cut off again."""
    view, done = memoryview(data), 0
    try:
        while done < len(data):
            done += os.pwrite(file, view[done:], at + done)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, at)
        raise


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock on the file; None where another process has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:
        os.close(file)
        raise
    return file


def _encoded(row: Row) -> bytes | None:
    """The row as a record, mended where its texts have no form; None where it has none at all."""
    for values in (row.values, mended(row.values)):
        try:
            return spool_format.encoded(Row(row.table, values))
        except (TypeError, ValueError, OverflowError):
            continue
    return None
