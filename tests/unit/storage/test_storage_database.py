"""URLs, engines, conversions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from core.errors import BadRequest
from storage.database import parse_url, reader_engine, writer_engine
from storage.types import from_micros, to_micros


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("conductor.db", "not a URL"),
        ("", "not a URL"),
        ("mysql://u@h/db", "not sqlite or postgresql"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_by_name(url: str, part: str):
    with pytest.raises(BadRequest, match=part) as caught:
        parse_url(url)
    assert caught.value.field == "database_url"


def test_writer_makes_the_folder_and_uses_wal(tmp_path):
    engine = writer_engine(f"sqlite:///{tmp_path / 'a' / 'b' / 'x.db'}")
    assert not (tmp_path / "a").exists(), "nothing is made before it is needed"
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 1
    engine.dispose()


def test_readers_cannot_write_and_need_the_file(tmp_path):
    url = f"sqlite:///{tmp_path / 'odd name #1%.db'}"
    reader = reader_engine(url)
    with pytest.raises(OperationalError), reader.connect():
        pass
    writer = writer_engine(url)
    with writer.begin() as connection:
        connection.execute(text("CREATE TABLE t (x)"))
        connection.execute(text("INSERT INTO t VALUES (1)"))
    with reader.connect() as connection:
        assert connection.execute(text("SELECT x FROM t")).scalar() == 1
        with pytest.raises(OperationalError, match="readonly"):
            connection.execute(text("DELETE FROM t"))
    reader.dispose()
    writer.dispose()


@given(st.datetimes(min_value=datetime(1980, 1, 1), max_value=datetime(2200, 1, 1)))
def test_times_survive_to_the_microsecond(naive: datetime):
    at = naive.replace(tzinfo=UTC)
    assert from_micros(to_micros(at)) == at
    elsewhere = at.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert to_micros(elsewhere) == to_micros(at)


def test_naive_times_are_refused():
    with pytest.raises(ValueError, match="no time zone"):
        to_micros(datetime(2026, 1, 1))
