"""Users, credentials and the administrative audit on both databases."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from record_cases import draft
from sqlalchemy import text

from core.clock import ManualClock
from core.conductor import Conductor
from core.domain import NodeId, NodeSpec
from core.errors import Conflict, NotFound, StoreError
from core.gateway.audit_watch import AGAIN_S
from core.gateway.service import Service
from core.identity.identities import Identities
from core.identity.principal import AccessRole
from core.ports import (
    EventRecord,
    IdentityChange,
    IdentityStore,
    KeyRecord,
    NodeWord,
    RevisionRecord,
    ScheduledRecord,
    TokenRecord,
    UserRecord,
)
from core.prompt import Prompts
from storage.database import writer_engine
from storage.store import open_storage

AT = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
LATER = datetime(2126, 1, 1, tzinfo=UTC)
ADA = UserRecord(
    name="ada", role="operator", password_hash="$argon2id$x", created_at=AT, created_by="root",
    changed_at=AT,
)  # fmt: skip
TOKEN = TokenRecord(
    id="t1", kind="t", name="ci", role="viewer", digest="d", created_at=AT, created_by="ada"
)
SESSION = TokenRecord(
    id="s1", kind="s", name="ada", role="operator", owner="ada", digest="d", created_at=AT,
    created_by="ada", expires_at=LATER,
)  # fmt: skip
KEY = KeyRecord(
    id="k1", name="batch", tenant="acme", digest="d", cache_salt="salt", requests_per_s=2.5,
    concurrent_max=3, tokens_per_min=10**12, created_at=AT, created_by="ada", expires_at=LATER,
)  # fmt: skip


@pytest.fixture
def store(record_url):
    with open_storage(record_url) as opened:
        yield opened.store


def run(url, statement, **values):
    engine = writer_engine(url)
    try:
        with engine.begin() as connection:
            connection.execute(text(statement), values)
    finally:
        engine.dispose()


def test_identities_come_back_as_they_were_put(store):
    fits: IdentityStore = store
    assert not fits.has_identities()
    store.commit_identity(IdentityChange(users=(ADA,), tokens=(TOKEN,), keys=(KEY,)), draft())
    assert store.user("ada") == ADA and list(store.users()) == [ADA]
    assert store.token("t1") == TOKEN and store.key("k1") == KEY
    assert list(store.keys()) == [KEY] and store.tenant_salt("acme") == "salt"
    assert store.tenant_salt("other") == "" and store.has_identities()
    for ask in (store.user, store.token, store.key):
        with pytest.raises(NotFound):
            ask("nobody")


def test_a_session_has_its_users_role_and_fate(store):
    store.commit_identity(IdentityChange(users=(ADA,), tokens=(SESSION,)), draft())
    promoted = UserRecord(**{**_fields(ADA), "role": "admin"})
    store.commit_identity(IdentityChange(users=(promoted,)), draft())
    assert store.token("s1").role == "admin" and store.token("s1").good_at(AT)
    gone = UserRecord(**{**_fields(ADA), "disabled": True})
    store.commit_identity(IdentityChange(users=(gone,)), draft())
    assert not store.token("s1").good_at(AT)
    store.commit_identity(IdentityChange(users=(ADA,), end_sessions_of="ada"), draft())
    assert not store.token("s1").good_at(AT) and not store.tokens()


def test_of_two_changes_to_a_user_the_later_one_has_to_know_the_earlier(store):
    store.commit_identity(IdentityChange(users=(ADA,), heard={"ada": None}), draft())
    shut_out = UserRecord(**{**_fields(ADA), "disabled": True, "changed_at": LATER})
    store.commit_identity(IdentityChange(users=(shut_out,), heard={"ada": AT}), draft())
    promoted = UserRecord(**{**_fields(ADA), "role": "admin", "changed_at": LATER})
    for stale in ({"ada": AT}, {"ada": None}):
        with pytest.raises(Conflict, match="user: "):
            store.commit_identity(IdentityChange(users=(promoted,), heard=stale), draft())
    assert store.user("ada") == shut_out and store.verify_audit() == (2, None)
    with pytest.raises(NotFound):
        store.commit_identity(IdentityChange(users=(), heard={"bob": AT}), draft())


class SlowIdentities(Identities):
    """Somebody shuts ada out while another act on her is on its way."""

    def _commit(self, action, *args, **change):
        if not getattr(self, "met", False):
            self.met = True
            Identities(self._store, self._clock).change_user("ada", disabled=True)
        super()._commit(action, *args, **change)


def test_a_new_role_lets_nobody_in_again_whom_another_shut_out(store):
    clock = ManualClock()
    Identities(store, clock).add_user("ada", AccessRole.VIEWER, "correct horse battery")
    clock.advance(1.0)
    with pytest.raises(Conflict):
        SlowIdentities(store, clock).change_user("ada", role=AccessRole.OPERATOR)
    assert store.user("ada").disabled


def test_nobody_can_sign_in_with_what_is_over_or_taken_back(store):
    over = TokenRecord(**{**_fields(TOKEN), "expires_at": AT})
    back = TokenRecord(**{**_fields(TOKEN), "id": "t2", "revoked_at": AT})
    disabled = UserRecord(**{**_fields(ADA), "disabled": True})
    change = IdentityChange(users=(disabled,), tokens=(over, back, SESSION))
    store.commit_identity(change, draft())
    assert not store.has_identities()


def test_the_audit_is_numbered_and_read_in_pages(store):
    for i in range(7):
        store.append_audit(draft(f"act.{i % 2}", target=f"n{i}", before='{"a":1}', reason="é\x00"))
    page = store.audit(limit=3)
    assert [e.number for e in page] == [7, 6, 5]
    assert [e.number for e in store.audit(before=5, limit=10)] == [4, 3, 2, 1]
    assert [e.number for e in store.audit(action="act.1")] == [6, 4, 2]
    assert len(store.audit(action="act*")) == 7 and store.audit(target="n%") == []
    assert page[0].before == '{"a":1}' and page[0].reason == "é\ufffd"
    assert store.verify_audit() == (7, None)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE admin_audit SET reason = 'another' WHERE number = 2",
        "DELETE FROM admin_audit WHERE number = 2",
    ],
)
def test_entries_cannot_be_changed(store, record_url, statement):
    for _ in range(3):
        store.append_audit(draft())
    with pytest.raises(Exception, match="only be added to"):
        run(record_url, statement)
    assert store.verify_audit() == (3, None)


@pytest.mark.parametrize("column", ["actor", "peer", "reason", "after", "at_us", "digest"])
def test_one_changed_byte_is_found(store, record_url, column):
    for i in range(5):
        store.append_audit(draft(reason="because", after='{"weight": 2}', peer=f"10.0.0.{i}"))
    with unguarded(record_url):
        new = "at_us + 1" if column == "at_us" else f"'x' || substr({column}, 2)"
        run(record_url, f"UPDATE admin_audit SET {column} = {new} WHERE number = 3")
    checked, fault = store.verify_audit()
    assert (checked, fault.number) == (2, 3) and "changed" in fault.what


def test_a_missing_entry_is_found(store, record_url):
    for _ in range(4):
        store.append_audit(draft())
    with unguarded(record_url):
        run(record_url, "DELETE FROM admin_audit WHERE number = 2")
    checked, fault = store.verify_audit()
    assert (checked, fault.number, fault.what) == (1, 2, "is missing")


def audit_watch(store):
    service = Service(conductor=Conductor(), clock=ManualClock(), prompts=Prompts(), store=store)
    return service, service.audit_watch


async def test_the_chain_is_read_again_in_batches_and_a_fault_fires_an_alert(
    store, record_url, monkeypatch
):
    monkeypatch.setattr("core.gateway.audit_watch.BATCH", 3)
    for _ in range(7):
        store.append_audit(draft())
    service, watch = audit_watch(store)
    assert watch.broken is None
    for known, checked in ((None, 3), (None, 6), (0.0, 7)):
        await watch.look()
        assert (watch.broken, watch.checked) == (known, checked)
    with unguarded(record_url):
        run(record_url, "UPDATE admin_audit SET actor = 'xoot' WHERE number = 2")
        await watch.look()
        assert watch.broken == 0.0  # old entries wait for the next whole reading
        service.clock.advance(AGAIN_S)
        await watch.look()
        assert watch.broken == 1.0 and watch.fault.number == 2
        service.monitoring.sample()
        alert = service.monitoring.board.get("audit_broken")
        assert (alert.state, alert.rule.severity, alert.evidence["entry"]) == ("firing", "page", 2)
        run(record_url, "UPDATE admin_audit SET actor = 'root' WHERE number = 2")
    await watch.look()
    service.monitoring.sample()
    assert watch.broken == 0.0 and alert.state == "resolved"


async def test_entries_taken_off_the_end_are_missed(store, record_url):
    for _ in range(4):
        store.append_audit(draft())
    _, watch = audit_watch(store)
    await watch.look()
    with unguarded(record_url):
        run(record_url, "DELETE FROM admin_audit WHERE number > 2")
    await watch.look()
    assert (watch.fault.number, watch.fault.what) == (4, "is missing")


def test_many_writers_leave_one_chain(store):
    def write():
        for _ in range(10):
            store.append_audit(draft())

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.verify_audit() == (40, None)


def test_an_act_and_its_entry_are_stored_together_or_not_at_all(store, record_url):
    def revision(number):
        return RevisionRecord(
            number=number, base=number - 1, at=AT, author="a", reason="r", changes={}, values={}
        )

    event = EventRecord(id="e", at=AT, kind="x")
    store.commit_act(revision=revision(1), events=(event,), audit=draft("tunables.changed"))
    with unwritable(record_url, "admin_audit"), pytest.raises(StoreError):
        store.commit_act(revision=revision(2), audit=draft("tunables.changed"))
    assert [r.number for r in store.revisions()] == [1]
    with unwritable(record_url, "admin_audit"), pytest.raises(StoreError):
        store.commit_identity(IdentityChange(users=(ADA,)), draft())
    assert store.users() == []
    assert store.verify_audit() == (1, None)


def test_a_scheduled_change_ends_once_whoever_ends_it(store):
    """One replica calls it off, another that has not heard of it yet carries it out."""
    waits = ScheduledRecord(
        id="s", created_at=AT, due_at=LATER, author="a", reason="r", changes={}, expected={}
    )
    store.commit_act(scheduled=(waits,))
    off = msgspec.structs.replace(waits, state="cancelled", note="ada: not today")
    store.commit_act(scheduled=(off,), audit=draft("tunables.schedule_cancelled"))
    made = RevisionRecord(number=1, base=0, at=AT, author="a", reason="r", changes={}, values={})
    done = msgspec.structs.replace(waits, state="done", revision=1)
    with pytest.raises(Conflict, match="is over already"):
        store.commit_act(revision=made, scheduled=(done,), audit=draft("tunables.changed"))
    (kept,) = store.scheduled(pending_only=False)
    assert (kept.state, kept.note) == ("cancelled", "ada: not today")
    assert store.revisions() == [] and store.verify_audit() == (1, None)


def word(at, heard=None, **data):
    spec = NodeSpec(id=NodeId("x"), url="http://127.0.0.1:9")
    return NodeWord(name="x", data=data, at=at, heard=heard, spec=spec)


def test_a_word_on_a_node_is_stored_with_its_entry_or_not_at_all(store, record_url):
    later, event = AT + timedelta(seconds=1), EventRecord(id="e", at=AT, kind="node.cordoned")
    store.commit_act(word=word(AT, weight=2.0), audit=draft("node.change"))
    with unwritable(record_url, "admin_audit"), pytest.raises(StoreError):
        store.commit_act(word=word(later, AT, weight=3.0), events=(event,), audit=draft())
    (said,) = store.standings()
    assert (said.data, said.at) == ({"weight": 2.0}, AT)
    assert store.nodes()[0].updated_at == AT and store.events() == []
    store.commit_act(word=word(later, AT, weight=3.0), events=(event,), audit=draft())
    (said,) = store.standings()
    assert (said.data, said.at) == ({"weight": 3.0}, later)
    assert store.nodes()[0].first_seen_at == AT and store.nodes()[0].updated_at == later


def test_who_has_not_heard_the_last_word_cannot_speak(store):
    later = AT + timedelta(seconds=1)
    store.commit_act(word=word(AT, weight=2.0), audit=draft("node.change"))
    for heard in (None, AT - timedelta(seconds=1)):
        with pytest.raises(Conflict, match="meanwhile"):
            store.commit_act(word=word(later, heard, weight=3.0), audit=draft("node.change"))
    assert store.standings()[0].data == {"weight": 2.0} and len(store.audit()) == 1


def test_old_sessions_are_forgotten(store):
    old = TokenRecord(**{**_fields(SESSION), "id": "s0", "expires_at": AT - timedelta(days=400)})
    store.commit_identity(IdentityChange(users=(ADA,), tokens=(old,)), draft())
    with pytest.raises(NotFound):
        store.token("s0")


def _fields(record):
    return {name: getattr(record, name) for name in record.__struct_fields__}


class unguarded:  # noqa: N801 (reads like a statement)
    """What somebody who owns the database can do: take the guards away."""

    def __init__(self, url):
        self.url = url

    def __enter__(self):
        if self.url.startswith("sqlite"):
            for act in ("update", "delete"):
                run(self.url, f"DROP TRIGGER admin_audit_no_{act}")
        else:
            run(self.url, "ALTER TABLE admin_audit DISABLE TRIGGER ALL")

    def __exit__(self, *_):
        if not self.url.startswith("sqlite"):
            run(self.url, "ALTER TABLE admin_audit ENABLE TRIGGER ALL")


class unwritable:  # noqa: N801
    """A table that takes no rows meanwhile."""

    def __init__(self, url, table):
        self.url, self.table = url, table

    def __enter__(self):
        run(self.url, f"ALTER TABLE {self.table} RENAME TO hidden")

    def __exit__(self, *_):
        run(self.url, f"ALTER TABLE hidden RENAME TO {self.table}")
