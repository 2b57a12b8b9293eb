"""`conductor doctor`: every finding in plain words, and never a crash."""

import socket

import pytest
from engine_here import engine_here
from sqlalchemy import text

from core.doctor import Check, checks
from core.engines.emulated.__main__ import write_tokenizer
from core.settings import Settings
from storage import migrate
from storage.database import writer_engine


def settings(tmp_path, **more):
    ports = {"server": {"port": 0}, "console": {"port": 0}}
    return Settings(**({"state_dir": tmp_path / "state"} | ports | more))


async def found(tmp_path, **more):
    return {check.name: check for check in await checks(settings(tmp_path, **more))}


async def test_a_fresh_installation_is_well(tmp_path):
    all_of_it = await found(tmp_path)
    assert not any(check.failed for check in all_of_it.values())
    assert "will be created" in all_of_it["database"].detail
    assert all_of_it["tunables"].detail == "policy min_ttft"
    assert all_of_it["nodes"].level == "note"
    assert {"python", "package zmq", "server address", "console address"} <= set(all_of_it)


async def test_looking_creates_nothing(tmp_path):
    url = f"sqlite:///{tmp_path / 'deep' / 'x.db'}"
    assert "will be created" in (await found(tmp_path, database_url=url))["database"].detail
    assert list(tmp_path.iterdir()) == []


async def test_an_existing_database_tells_its_version(tmp_path):
    (tmp_path / "state").mkdir()
    s = settings(tmp_path)
    migrate.upgrade(s.database)
    assert f"at schema {migrate.head()}" in (await found(tmp_path))["database"].detail


async def test_what_the_service_would_refuse_or_could_not_keep_is_a_failure(tmp_path):
    (tmp_path / "state").mkdir()
    s = settings(tmp_path)
    migrate.upgrade(s.database)
    engine = writer_engine(s.database)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    check = (await found(tmp_path))["database"]
    assert check.failed and "9999" in check.detail
    (tmp_path / "file").write_text("")
    check = (await found(tmp_path, state_dir=tmp_path / "file" / "state"))["state_dir"]
    assert check.failed and "is no folder" in check.detail


@pytest.mark.parametrize(
    ("more", "name", "says"),
    [
        ({"tunables": {"policy": "nope"}}, "tunables", "nope"),
        ({"tunables": {"linear.alpha": 7}}, "tunables", "linear.alpha"),
        ({"database_url": "postgresql+psycopg://u@127.0.0.1:9/x"}, "database", ""),
    ],
)
async def test_what_is_wrong_is_said_without_a_crash(tmp_path, more, name, says):
    check = (await found(tmp_path, **more))[name]
    assert check.failed
    assert says in check.detail
    assert check.detail


async def test_a_port_in_use_is_a_note(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        check = (await found(tmp_path, server={"port": port}))["server address"]
    assert check.level == "note"
    assert str(port) in check.detail


async def test_a_node_that_cannot_be_reached_fails_by_name(tmp_path):
    node = {"id": "gone", "url": "http://127.0.0.1:9"}
    check = (await found(tmp_path, nodes=[node]))["node gone"]
    assert check.failed
    assert "http://127.0.0.1:9" in check.detail


async def test_a_node_is_described_with_its_events_and_tokens(tmp_path):
    write_tokenizer(tmp_path / "tokenizer")
    models = [{"name": "tiny", "tokenizer_dir": tmp_path / "tokenizer"}]
    async with engine_here(block_size=64, kv_tokens=64_000) as (url, engine):
        node = {"id": "e", "url": url, "engine": "emulated"}
        told = await found(tmp_path, nodes=[node], models=models)
        assert told["node e"].level == "ok"
        assert "tiny" in told["node e"].detail
        assert "block 64" in told["node e"].detail
        assert told["node e events"].level == "ok"
        assert str(engine.publisher.live_port) in told["node e events"].detail
        parity = told["node e tokens of tiny"]
        assert parity.level == "ok", parity.detail
        assert "own ids" in parity.detail
        off = await found(tmp_path, nodes=[node | {"events": "off"}])
        assert off["node e events"].level == "note"
        assert "are off" in off["node e events"].detail
        assert off["node e tokens of tiny"].level == "note"


async def test_a_tokenizer_that_cannot_be_loaded_fails(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    models = [{"name": "tiny", "tokenizer_dir": tmp_path}]
    node = {"id": "e", "url": "http://127.0.0.1:9"}
    told = await found(tmp_path, nodes=[node], models=models)
    assert told["tokenizers"].failed
    assert "tiny" in told["tokenizers"].detail
    assert told["node e"].failed


def test_a_check_shows_its_level():
    assert Check("x", "failed", "why").as_dict() == {
        "name": "x",
        "level": "failed",
        "detail": "why",
    }
    assert Check("x", "ok", "").colour == "green"
    assert Check("x", "failed", "").colour == "red"
