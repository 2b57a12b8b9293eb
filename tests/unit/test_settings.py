"""Process settings: file, environment, defaults; errors name the field and what was expected."""

import json

import pytest

from core.domain import EngineKind, LinkKind, Role
from core.errors import Invalid
from core.settings import NodeSettings, Settings, load_settings


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith("CONDUCTOR_"):
            monkeypatch.delenv(name)


def written(tmp_path, text, name="fleet.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def refused(tmp_path, text, name="fleet.toml"):
    with pytest.raises(Invalid) as caught:
        load_settings(written(tmp_path, text, name))
    return caught.value


def test_defaults_need_no_file():
    s = load_settings()
    assert (s.server.host, s.server.port, s.console.port) == ("127.0.0.1", 8080, 8501)
    assert s.nodes == ()
    assert s.database == f"sqlite:///{s.state_dir.resolve()}/conductor.db"
    assert s.limits.retries_max == 2
    assert s.tunable_changes() == {}


FLEET = """
seed = 7
state_dir = "/tmp/x"

[server]
host = "0.0.0.0"
port = 9000

[[nodes]]
id = "p1"
url = "http://10.0.0.1:8000/"
role = "prefill"
models = ["m"]
links = ["ib-ndr", "tcp"]
host = "h1"
rack = "r1"
kv_transfer = "nixl"
tenants = ["a", "b"]

[nodes.events]
live = "tcp://10.0.0.1:5557"
replay = "tcp://10.0.0.1:5558"

[[nodes]]
id = "d1"
url = "https://10.0.0.2"
engine = "sglang"
events = "off"
dp_rank = 1

[tunables]
policy = "linear"
"slo.ttft_s" = 5.0
[tunables.linear]
alpha = 0.7
"""


def test_a_file_describes_the_fleet(tmp_path):
    s = load_settings(written(tmp_path, FLEET))
    assert (s.server.host, s.server.port, s.seed) == ("0.0.0.0", 9000, 7)
    first, second = (node.spec() for node in s.nodes)
    assert first.url == "http://10.0.0.1:8000"
    assert first.role is Role.PREFILL
    assert first.links == (LinkKind.IB_NDR, LinkKind.TCP)
    assert (first.place.host, first.place.rack, first.place.zone) == ("h1", "r1", "")
    assert first.events.live == "tcp://10.0.0.1:5557"
    assert first.events.replay == "tcp://10.0.0.1:5558"
    assert first.tenants == frozenset({"a", "b"})
    assert second.engine is EngineKind.SGLANG
    assert second.events is None
    assert second.dp_rank == 1
    assert s.tunable_changes() == {
        "policy": "linear", "slo.ttft_s": 5.0, "linear.alpha": 0.7
    }  # fmt: skip


def test_json_is_read_too(tmp_path):
    s = load_settings(written(tmp_path, json.dumps({"server": {"port": 1}}), "fleet.json"))
    assert s.server.port == 1


def test_the_environment_beats_the_file_and_arguments_beat_both(tmp_path, monkeypatch):
    path = written(tmp_path, "seed = 1\n[server]\nport = 9000\nhost = '0.0.0.0'\n")
    monkeypatch.setenv("CONDUCTOR_SERVER__PORT", "9001")
    monkeypatch.setenv("CONDUCTOR_SEED", "2")
    monkeypatch.setenv("CONDUCTOR_UNRELATED", "x")
    s = load_settings(path)
    assert (s.server.port, s.server.host, s.seed) == (9001, "0.0.0.0", 2)
    assert load_settings(path, seed=3).seed == 3


def test_an_explicit_database_is_used_as_it_is():
    assert load_settings(database_url="postgresql://x/y").database == "postgresql://x/y"


NODE = "[[nodes]]\nid = 'a'\nurl = 'http://x'\n"
MODEL = "[[models]]\nname = 'm'\ntokenizer_dir = '/nowhere'\n"


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("[server]\nport = 70000\n", "server.port", "65535"),
        ("[server]\nports = 1\n", "server.ports", "not permitted"),
        ("nonsense = 1\n", "nonsense", "not permitted"),
        ("[limits]\nretry_share = 2.0\n", "limits.retry_share", "less than or equal to 1"),
        ("[probe]\ninterval_s = 0\n", "probe.interval_s", "greater than 0"),
        ("log_level = 'loud'\n", "log_level", "debug"),
        ("[[nodes]]\nid = 'a'\n", "nodes.0.url", "required"),
        ("[[nodes]]\nid = ''\nurl = 'http://x'\n", "nodes.0.id", "at least 1"),
        ("[[nodes]]\nid = 'rack1/gpu0'\nurl = 'http://x'\n", "nodes.0.id", "pattern"),
        ("[[nodes]]\nid = '..'\nurl = 'http://x'\n", "nodes.0.id", "pattern"),
        ("[[nodes]]\nid = 'a'\nurl = 'x:1'\n", "nodes.0.url", "http://"),
        (NODE + "role = 'both!'\n", "nodes.0.role", "prefill"),
        (NODE + "block_size = 0\n", "nodes.0.block_size", "1"),
        (NODE + "mfu = 1.5\n", "nodes.0.mfu", "1"),
        (NODE + "events = {live = 'tcp://*:5557'}\n", "nodes.0.events", "connect"),
        (NODE + NODE, "", "'a' appears twice"),
        (MODEL, "models.0.tokenizer_dir", "tokenizer.json"),
    ],
)
def test_errors_name_the_file_the_field_and_what_was_expected(tmp_path, text, field, says):
    e = refused(tmp_path, text)
    assert e.status == 422
    assert e.field.startswith(field or "settings")
    assert says in e.message
    assert "fleet.toml" in e.message


def test_a_file_that_cannot_be_read_or_parsed_is_named(tmp_path):
    assert "is not TOML" in refused(tmp_path, "= 1").message
    assert "is not JSON" in refused(tmp_path, "{", "fleet.json").message
    with pytest.raises(Invalid, match="cannot read"):
        load_settings(tmp_path / "absent.toml")


def test_a_wrong_value_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("CONDUCTOR_SERVER__PORT", "many")
    with pytest.raises(Invalid, match=r"server\.port"):
        load_settings()


def test_settings_cannot_be_changed_after_they_were_read():
    with pytest.raises(ValueError, match="frozen"):
        Settings().seed = 3


def test_every_field_is_described():
    for part in (Settings, *(f.annotation for f in Settings.model_fields.values())):
        for name, field in getattr(part, "model_fields", {}).items():
            described = field.description or hasattr(field.annotation, "model_fields")
            apart = ("nodes", "discovery", "models", "server", "console")
            assert described or name in apart, (part, name)
    for name, field in NodeSettings.model_fields.items():
        assert field.description, name
