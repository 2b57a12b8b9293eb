"""Fixtures of more than one room: a throw-away Postgres server for the whole run."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from postgres_server import NoPostgres, PostgresServer

# Timings never decide a test: a busy machine is no failure.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main module as it was: Streamlit's runner puts each page in its place, and a process
    that a later test spawns would run that page anew."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server, shared by the tests that make databases in it and leave it running."""
    try:
        server = PostgresServer()
    except NoPostgres as reason:
        pytest.skip(str(reason))
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path) -> str:
    """URL of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'records.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.new_database()


@pytest.fixture(scope="session")
def _one_database(postgres_server: PostgresServer) -> str:
    return postgres_server.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def record_url(request: pytest.FixtureRequest, tmp_path) -> str:
    """URL of a database without rows, of each kind in turn; faster than a new one a test."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'records.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url: str = request.getfixturevalue("_one_database")
    server.empty(url)
    return url
