"""The first administrator's token, in a file that only its owner can read.

A service that starts for the first time makes one, prints it once, and leaves it in its state
directory, where the command line and the launcher on the same machine find it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

NAME = "admin.token"


def path_of(state_dir: Path) -> Path:
    """Where the token of a state directory is."""
    return state_dir / NAME


def read(state_dir: Path) -> str | None:
    """The token; None where there is none that we may read."""
    with contextlib.suppress(OSError):
        return path_of(state_dir).read_text().strip() or None
    return None


def check(state_dir: Path) -> None:
    """OSError where no token could be left: to be known before one is made."""
    path = write(state_dir, "")
    path.unlink()


def write(state_dir: Path, token: str) -> Path:
    """Leave a token there, readable by the owner alone from its first byte on."""
    state_dir.mkdir(parents=True, exist_ok=True)
    path = path_of(state_dir)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    return path
