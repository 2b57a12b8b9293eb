"""Jobs of the Lab: one at a time, each in a process of its own, bounded in number, runs and time.

How it works. `submit` puts a job at the end of a bounded line. One thread takes them in order,
starts a process for each (spawned: a fork would copy the locks of the service's threads), and reads
its messages. Cancelling ends the process. Nothing of a job runs on the event loop that decides.

    waiting -> running -> done | failed
    waiting | running -> cancelled
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from core.control.lab_run import Result, Task, pieces, serve
from core.errors import NotFound, Overloaded

State = Literal["waiting", "running", "done", "cancelled", "failed"]
ENDED: frozenset[State] = frozenset({"done", "cancelled", "failed"})
_POLL_S = 0.1
_END_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRules:
    """Bounds, from the settings."""

    trace_dir: Path | None = None
    """Where traces lie that may be played."""
    runs_max: int = 400
    requests_max: int = 20_000
    time_max_s: float = 1800.0
    jobs_max: int = 20
    """Waiting, running and ended jobs that are kept."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One job; written by the Lab's thread, read by the event loop."""

    id: str
    task: Task | None
    """Let go of at the end: it may hold the recorded requests."""
    method: str
    source: str
    author: str
    reason: str
    base: int
    created_at: datetime
    total: int
    state: State = "waiting"
    done: int = 0
    error: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: Result | None = None
    stop: threading.Event = field(default_factory=threading.Event)


class Lab:
    """The line of jobs. `wall`: the time. `target`: what a job's process runs. `ended`: told, in
    the Lab's thread, of each job that has run; it must not raise."""

    def __init__(
        self,
        rules: LabRules,
        *,
        wall: Callable[[], datetime],
        target: Callable[[Any, Task], None] = serve,
        ended: Callable[[Job], None] = lambda _: None,
    ) -> None:
        self.rules = rules
        self._wall, self._target, self._ended = wall, target, ended
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def jobs(self) -> list[Job]:
        """Newest first."""
        with self._lock:
            return list(self._jobs.values())[::-1]

    def job(self, id: str) -> Job:
        """One job; NotFound."""
        with self._lock:
            if id not in self._jobs:
                raise NotFound(f"no Lab job {id!r}: it never was, or was forgotten", field="id")
            return self._jobs[id]

    def submit(self, job: Job) -> Job:
        """Put a job at the end of the line; Overloaded where it is full of unfinished ones."""
        with self._lock:
            self._make_room()
            self._jobs[job.id] = job
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._work, name="lab", daemon=True)
                self._thread.start()
        return job

    def cancel(self, id: str) -> Job:
        """End a job that is not over, or forget one that is."""
        job = self.job(id)
        with self._lock:
            if job.state in ENDED:
                self._jobs.pop(id, None)
            elif job.state == "waiting":
                self._end(job, "cancelled")
            job.stop.set()
        return job

    def close(self) -> None:
        """End what runs and what waits. Blocks until the process is gone."""
        with self._lock:
            self._stopped = True
            open_ = [j for j in self._jobs.values() if j.state not in ENDED]
            for job in open_:
                job.stop.set()
                if job.state == "waiting":
                    self._end(job, "cancelled")
            thread = self._thread
        if thread is not None:
            thread.join(2 * _END_S)

    def _make_room(self) -> None:
        while len(self._jobs) >= self.rules.jobs_max:
            over = next((id for id, j in self._jobs.items() if j.state in ENDED), None)
            if over is None:
                text = f"{len(self._jobs)} Lab jobs wait or run; cancel one or try again later"
                raise Overloaded(text, field="jobs", retry_after_s=30.0)
            del self._jobs[over]

    # -- in the thread ---------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._lock:
                job = next((j for j in self._jobs.values() if j.state == "waiting"), None)
                if job is None:
                    self._thread = None
                    return
                job.state, job.started_at = "running", self._wall()
            self._run(job)
            self._ended(job)

    def _run(self, job: Job) -> None:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        task = job.task
        assert task is not None, "a job keeps its task until it is over"
        bare = replace(task, decisions=(), seen=())
        process = context.Process(target=self._target, args=(theirs, bare), daemon=True)
        try:
            process.start()
            theirs.close()
            for piece in (*pieces(task), None):
                mine.send(piece)
            self._follow(job, mine)
        except (EOFError, OSError) as error:
            text = f"its process ended without a result ({type(error).__name__})"
            self._end(job, "failed", text)
        except Exception as error:
            # Not to be started, or its answer cannot be read: the job's failure, not ours.
            self._end(job, "failed", f"{type(error).__name__}: {error}")
        finally:
            mine.close()
            _ended(process)

    def _follow(self, job: Job, pipe: Connection) -> None:
        waited_s = 0.0
        while not job.stop.is_set():
            if pipe.poll(_POLL_S):
                kind, told = pipe.recv()
                if kind == "done":
                    job.done = told
                elif kind == "result":
                    job.result = told
                    self._end(job, "done")
                    return
                else:
                    self._end(job, "failed", str(told))
                    return
            elif (waited_s := self._age_s(job)) > self.rules.time_max_s:
                self._end(job, "failed", f"stopped after {waited_s:.0f} s, the longest allowed")
                return
        self._end(job, "cancelled")

    def _age_s(self, job: Job) -> float:
        assert job.started_at is not None
        return (self._wall() - job.started_at).total_seconds()

    def _end(self, job: Job, state: State, error: str = "") -> None:
        job.state, job.error, job.ended_at, job.task = state, error[:500], self._wall(), None


def _ended(process: Any) -> None:
    """The process is gone afterwards, and so is its entry in the system's table."""
    if process.pid is None:
        return
    process.terminate()
    process.join(_END_S)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()
