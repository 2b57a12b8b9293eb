"""A throw-away Postgres server for tests, from whatever server binaries the machine has.

It lives in a temporary directory, listens on a free port of 127.0.0.1 alone, trusts everybody
there, and does not wait for the disk. Where tests run as root, it runs as the user `postgres`,
because it refuses to run as root.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

_USER = "conductor"


class NoPostgres(Exception):
    """The machine has no server to start; the text says what was looked for."""


def server_binaries() -> Path:
    """Directory of initdb and postgres: the PATH's, else the newest below /usr/lib."""
    found = shutil.which("initdb")
    if found is not None and Path(found).resolve().with_name("postgres").exists():
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version)
    if not versions:
        raise NoPostgres("no Postgres server: no initdb in the PATH or in /usr/lib/postgresql")
    return versions[-1].parent


def _version(path: Path) -> float:
    name = path.parent.parent.name
    return float(name) if name.replace(".", "", 1).isdigit() else 0.0


class PostgresServer:
    """One cluster. `start` and `stop` may be repeated; `remove` ends it and its files."""

    def __init__(self) -> None:
        self._bin = server_binaries()
        self._as: dict[str, Any] = _other_user()
        self._root = Path(tempfile.mkdtemp(prefix="conductor-postgres-"))
        if self._as:
            shutil.chown(self._root, self._as["user"], self._as["group"])
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._template = ""
        self.port = _free_port()
        self._run("initdb", "-D", self._data, "-U", _USER, "-A", "trust", "-E", "UTF8",
                  "--locale=C.UTF-8", "--no-sync")  # fmt: skip

    @property
    def _data(self) -> str:
        return str(self._root / "data")

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """SQLAlchemy URL of a database; `port` where something stands between."""
        return f"postgresql://{_USER}@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Start and wait until it answers."""
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._root),
            "fsync": "off",
            "shared_buffers": "64MB",
            "max_connections": 60,
            "autovacuum": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            [self._bin / "postgres", "-D", self._data, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._as,
        )
        deadline = time.monotonic() + 60.0
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the Postgres server did not start")
            time.sleep(0.05)

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._process is not None

    def stop(self, *, at_once: bool = True) -> None:
        """Stop: at once as a crash would, or after the sessions were ended in order."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGQUIT if at_once else signal.SIGINT)
        self._process.wait(30.0)
        self._process = None

    def remove(self) -> None:
        """Stop and delete everything."""
        self.stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def new_database(self, *, template: str = "template0") -> str:
        """URL of a new empty database, or of a copy of `template`."""
        name = f"t{os.getpid()}_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def empty(self, url: str) -> None:
        """Take every row out of a database, migrated or not; what ran in it is ended."""
        database = url.rpartition("/")[2]
        self.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
        )
        tables = self.execute(
            "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
            " AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'",
            database,
        )
        if tables:
            names = ", ".join(f'"{name}"' for (name,) in tables)
            # The audit refuses to be emptied, even by the owner of the database.
            self.execute(f"SET session_replication_role = replica; TRUNCATE {names}", database)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement in a connection of its own; its rows, if it has any."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _answers(self) -> bool:
        try:
            return self.execute("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._bin / program, *arguments],
            check=True,
            cwd=self._root,
            stdout=subprocess.DEVNULL,
            **self._as,
        )


def _other_user() -> dict[str, Any]:
    """Arguments that make a process run as `postgres`, where we are root."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        raise NoPostgres("no Postgres server: root needs the user postgres to run it") from None
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
