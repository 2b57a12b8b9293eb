"""The door of the admin API: who is let in where, and what the others are told."""

import stat

import pytest
from gateway_world import gateway

from core import wire
from core.clock import SystemClock
from core.errors import Invalid
from core.identity import admin_file
from core.identity.authority import Authority, AuthRules
from core.identity.credentials import digest
from core.identity.first_start import FirstStart, auth_rules, print_once
from core.identity.identities import Identities
from core.identity.principal import AccessRole
from core.settings import AuthSettings, ServerAddress, load_settings
from storage.store import Store, open_storage

TOKEN = "cdr_t_" + "a" * 12 + "_" + "b" * 64
OPERATOR = {"authorization": f"Bearer {TOKEN}"}


async def call(w, method, path, *, status, body=None, **headers):
    async with w.client.request(
        method, f"{w.url}/admin/v1{path}", json=body, headers=headers
    ) as answer:
        text = await answer.read()
        assert answer.status == status, text
        return answer, text


async def test_without_credentials_this_machine_may_read_and_not_act():
    async with gateway(authority=Authority(admin_digest=digest(TOKEN))) as w:
        _, text = await call(w, "GET", "/whoami", status=200)
        who = wire.WhoAmI.model_validate_json(text)
        assert (who.name, who.role, who.anonymous) == ("anonymous", "viewer", True)
        await call(w, "GET", "/nodes", status=200)
        node = {"id": "n", "url": "http://127.0.0.1:9"}
        answer, text = await call(w, "POST", "/nodes", status=401, body=node)
        assert answer.headers["www-authenticate"] == "Bearer"
        error = wire.ErrorBody.model_validate_json(text).error
        assert error.code == "unauthorized" and "operator" in error.message
        # What is wrong with a body is nothing to strangers.
        await call(w, "POST", "/nodes", status=401, body={"no": "node"})
        await call(w, "POST", "/nodes", status=422, body={"no": "node"}, **OPERATOR)
        await call(w, "POST", "/nodes", status=201, body=node, **OPERATOR)


async def test_a_bad_token_is_refused_even_where_none_is_needed():
    async with gateway(authority=Authority(admin_digest=digest(TOKEN))) as w:
        for bad in (TOKEN[:-1] + "c", "x", "cdr_t_", "é"):
            await call(w, "GET", "/nodes", status=401, authorization=f"Bearer {bad}")
        _, text = await call(w, "GET", "/whoami", status=200, **OPERATOR)
        assert wire.WhoAmI.model_validate_json(text).role == "admin"


async def test_another_name_for_this_machine_earns_no_role():
    async with gateway(authority=Authority()) as w:
        await call(w, "GET", "/nodes", status=401, host="evil.example:8080")
        await call(w, "GET", "/nodes", status=200, host="localhost:8080")


async def test_nobody_is_anonymous_where_others_can_reach_us():
    rules = AuthRules(loopback=False)
    async with gateway(authority=Authority(rules, admin_digest=digest(TOKEN))) as w:
        await call(w, "GET", "/nodes", status=401)
        await call(w, "GET", "/openapi.json", status=401)
        await call(w, "GET", "/openapi.json", status=200, **OPERATOR)


async def test_acts_carry_the_name_of_who_acted():
    async with gateway(authority=Authority(admin_digest=digest(TOKEN))) as w:
        node = {"id": "n", "url": "http://127.0.0.1:9"}
        await call(w, "POST", "/nodes", status=201, body=node, **OPERATOR)
        why = {"reason": "maintenance", "author": "somebody else"}
        _, text = await call(w, "POST", "/nodes/n/cordon", status=200, body=why, **OPERATOR)
        assert wire.NodeView.model_validate_json(text).drain.actor == "admin-token"


@pytest.fixture
def store(tmp_path):
    with open_storage(f"sqlite:///{tmp_path}/records.db") as opened:
        yield opened.store


def first_start(tmp_path, store, host="127.0.0.1", said=None, **auth):
    server = ServerAddress(host=host)
    told = said if said is not None else []
    return FirstStart(
        AuthSettings(**auth),
        server,
        tmp_path / "state",
        store=store,
        clock=SystemClock(),
        tell=lambda token, path: told.append(token),
    )


def test_no_token_is_made_that_nobody_could_be_told(tmp_path, store, caplog):
    (tmp_path / "state").write_text("a file in the folder's place")
    first = first_start(tmp_path, store)
    first.run()
    assert not first.done and store.tokens() == [] and "state_dir: no token" in caplog.text
    (tmp_path / "state").unlink()
    first.run()
    assert first.done and admin_file.read(tmp_path / "state")


async def test_a_first_start_leaves_one_token_for_its_owner_alone(tmp_path, store):
    said = []
    first_start(tmp_path, store, said=said).run()
    path = admin_file.path_of(tmp_path / "state")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = admin_file.read(tmp_path / "state")
    assert said == [token]
    first_start(tmp_path, store, said=said).run()
    assert len(said) == 1 and admin_file.read(tmp_path / "state") == token
    authority = Authority(store=store)
    who = await authority.identify([(b"authorization", f"Bearer {token}".encode())], "127.0.0.1")
    assert (who.name, who.role) == ("first-start", "admin")
    (entry,) = store.audit()
    assert (entry.actor, entry.kind, entry.action) == ("conductor", "system", "token.created")
    assert token not in entry.after


def test_a_service_that_others_reach_refuses_to_start_with_nobody_to_sign_in(tmp_path, store):
    with pytest.raises(Invalid, match="conductor users add") as refused:
        first_start(tmp_path, store, host="0.0.0.0").run()
    assert refused.value.field == "server.host" and not (tmp_path / "state").exists()
    first_start(tmp_path, store, host="0.0.0.0", admin_token="x" * 32).run()
    Identities(store, SystemClock()).add_user("ada", AccessRole.ADMIN, "correct horse battery")
    first_start(tmp_path, store, host="0.0.0.0").run()


def test_a_first_start_without_a_database_waits_for_it(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/not-there.db")
    first = first_start(tmp_path, store)
    first.run()
    assert not first.done and admin_file.read(tmp_path / "state") is None
    store.close()
    with open_storage(f"sqlite:///{tmp_path}/not-there.db"):
        first.run()
    assert first.done and admin_file.read(tmp_path / "state")


def test_the_first_token_is_printed_to_a_terminal_only(tmp_path, capsys, monkeypatch):
    print_once("the-token", tmp_path)
    assert "the-token" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_once("the-token", tmp_path)
    assert capsys.readouterr().out.count("the-token") == 1


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True),
                           ("0.0.0.0", False), ("::", False), ("10.1.2.3", False)],
)  # fmt: skip
def test_what_is_open_depends_on_where_we_listen(host, loopback):
    rules = auth_rules(AuthSettings(), ServerAddress(host=host))
    assert rules.loopback is loopback and rules.require_api_key is not loopback
    assert (rules.anonymous_role is not None) is loopback


def test_short_admin_tokens_are_refused_and_long_ones_are_not_shown(monkeypatch):
    monkeypatch.setenv("CONDUCTOR_AUTH__ADMIN_TOKEN", "short")
    with pytest.raises(Invalid, match="shorter than 32") as refused:
        load_settings()
    assert refused.value.field == "auth.admin_token"
    monkeypatch.setenv("CONDUCTOR_AUTH__ADMIN_TOKEN", "s3cret" * 8)
    loaded = load_settings()
    assert "s3cret" not in repr(loaded) + loaded.model_dump_json()
