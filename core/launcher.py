"""Child processes of `conductor up`: started in order, watched, and all stopped at the end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from core.errors import Conflict, EngineTimeout, EngineUnreachable

_STOP_S = 15.0
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


class StopSignal:
    """Whether somebody asked us to stop. The handler only sets a flag and writes a byte: a lock
    taken there could be held already by the code it interrupts."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._set = False

    def listen(self, *numbers: int) -> None:
        """Take these signals from now on (main thread only)."""
        for number in numbers:
            signal.signal(number, self._handle)

    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """Wait for a signal, at most `seconds`; whether one has come."""
        if not self._set:
            select.select([self._read], [], [], seconds)
        return self._set

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._set = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")


@dataclass(slots=True)
class Child:
    """One running process and the log that holds its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


class Processes:
    """Starts children and stops every one of them on exit, last started first.

    Children run in sessions of their own, so that a Ctrl-C reaches only the parent, and are
    killed by the kernel if the parent dies without stopping them (Linux).
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(
        self, name: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> Child:
        """Start `argv`, its output going to a log named after it."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def dead(self) -> list[Child]:
        """Children that have ended."""
        return [c for c in self.children if c.process.poll() is not None]

    def stop(self) -> None:
        """SIGTERM one after another, last started first; SIGKILL to whoever does not end."""
        for child in reversed(self.children):
            if child.process.poll() is None:
                child.process.terminate()
            try:
                child.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait()
        self.children.clear()


def wait_until(ready: Callable[[], bool], child: Child, *, timeout_s: float, what: str) -> None:
    """Poll `ready`; EngineUnreachable when the child ends first, EngineTimeout at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if child.process.poll() is not None:
            raise EngineUnreachable(
                f"{child.name} ended with code {child.process.returncode} before {what}; "
                f"its log {child.log} ends with:\n{child.tail()}"
            )
        if time.monotonic() > deadline:
            raise EngineTimeout(f"{child.name}: no {what} within {timeout_s:g} s, see {child.log}")
        time.sleep(0.05)


def answers(url: str) -> bool:
    """Whether a GET of `url` answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=1.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def require_free(host: str, port: int, *, what: str) -> None:
    """Conflict naming the setting when something listens on the port already."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as e:
            raise Conflict(
                f"{what}.port: {host}:{port} cannot be used ({e.strerror}); "
                f"set CONDUCTOR_{what.upper()}__PORT or stop what uses it",
                field=f"{what}.port",
            ) from None


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
