"""Drives `store_child.py`: what it handed over and when, and how it ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from record_cases import wait_for

CHILD = Path(__file__).with_name("store_child.py")


class StoreProcess:
    """A process that records; `handed` maps each decision's number to when it was handed over."""

    def __init__(self, url: str, spool_dir: Path, *, first: int = 0, per_s: float = 200.0) -> None:
        self.handed: dict[int, float] = {}
        self.said: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), url, str(spool_dir), str(first), str(per_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> StoreProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Never outlive the test, whatever came of it."""
        if not self._ended():
            self._process.kill()
            self._process.wait(60.0)

    def wait_for_more(self, count: int, timeout_s: float = 60.0) -> None:
        """Until it has handed over `count` further decisions."""
        wanted = len(self.handed) + count
        wait_for(lambda: len(self.handed) >= wanted or self._ended(), timeout_s)
        assert not self._ended(), "the process ended by itself"

    def tell(self, command: str) -> None:
        """A command for its standard input, obeyed when this returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        wait_for(lambda: f"did {command}" in self.said)

    def kill(self) -> float:
        """kill -9; the moment before."""
        at = time.monotonic()
        self._process.kill()
        self._join(-signal.SIGKILL)
        return at

    def stop(self) -> int:
        """An orderly end; how many records it dropped."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.close()
        self._join(0)
        return int(self.said[-1].rpartition(" ")[2])

    def _join(self, code: int) -> None:
        assert self._process.wait(60.0) == code
        self._reader.join(10.0)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def _ended(self) -> bool:
        return self._process.poll() is not None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            first, _, rest = line.strip().partition(" ")
            if first.isdigit() and rest:
                self.handed[int(first)] = float(rest)
            elif line.endswith("\n"):
                self.said.append(line.strip())
