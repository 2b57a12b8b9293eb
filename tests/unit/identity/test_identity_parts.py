"""Credentials, passwords, throttles, addresses, and what is remembered while a store is away."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.clock import ManualClock
from core.errors import Invalid, NotFound, Overloaded, StoreError, Unauthorized
from core.identity import passwords
from core.identity.authority import Authority
from core.identity.credentials import Credential, CredentialKind, digest, matches, mint, parse
from core.identity.memory import GOOD_S, OUTAGE_S, UNKNOWN_S, Memory
from core.identity.peers import is_local_name, is_loopback, origin
from core.identity.principal import ACTING, AccessRole, Kind, Principal, author
from core.identity.throttle import KEYS_MAX, Throttle
from core.ports import UserRecord

AT = datetime(2026, 3, 1, tzinfo=UTC)


# -- credentials ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(CredentialKind))
def test_a_credential_reads_back_and_hides_its_secret(kind):
    made = mint(kind)
    assert parse(made.text) == made and matches(made.text, made.digest)
    assert made.secret not in repr(made) and len(made.secret) == 64
    assert mint(kind).secret != made.secret


@given(st.text(max_size=100))
def test_other_texts_are_no_credentials(text):
    assert parse(text) is None or text.startswith("cdr_")


def test_every_changed_character_is_noticed():
    made = mint(CredentialKind.TOKEN)
    for i in range(0, len(made.text), 7):
        other = made.text[:i] + ("0" if made.text[i] != "0" else "1") + made.text[i + 1 :]
        assert not matches(other, digest(made.text))
    assert Credential(made.kind, made.id, "x").digest != made.digest


# -- passwords -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    ["short", "Password12345", "aaaaaaaaaaaa", "changeme!!!!", "x" * 257, "my-name-is-ada"],
)
def test_passwords_that_are_guessed_first_are_refused(bad):
    with pytest.raises(Invalid) as refused:
        passwords.check(bad, "ada")
    assert refused.value.field == "password" and bad not in refused.value.message


def test_a_password_is_kept_as_argon2id_and_verified():
    kept = passwords.hashed("correct horse battery")
    assert kept.startswith("$argon2id$") and "m=65536,t=3,p=4" in kept
    assert passwords.verified("correct horse battery", kept)
    assert not passwords.verified("correct horse", kept)
    assert not passwords.verified("correct horse battery", None)
    assert not passwords.verified("x", "no hash at all")


# -- throttle ------------------------------------------------------------------------------------


def test_after_too_many_failures_there_is_a_pause_for_that_key_alone():
    throttle = Throttle(failures_max=3, window_s=60)
    for now in (0.0, 10.0, 20.0):
        throttle.check("a", now)
        throttle.failed("a", now)
    with pytest.raises(Overloaded) as refused:
        throttle.check("a", 30.0)
    assert refused.value.retry_after_s == pytest.approx(30.0)
    throttle.check("b", 30.0)
    throttle.check("a", 60.5)
    throttle.failed("a", 61.0)
    with pytest.raises(Overloaded):
        throttle.check("a", 62.0)
    throttle.forgive("a")
    throttle.check("a", 62.0)


def test_a_throttle_is_bounded():
    throttle = Throttle(failures_max=1, window_s=60)
    for i in range(KEYS_MAX + 10):
        throttle.failed(str(i), 0.0)
    throttle.check("0", 1.0)
    with pytest.raises(Overloaded):
        throttle.check(str(KEYS_MAX), 1.0)


class OneUser:
    """A store with one user."""

    record = UserRecord(
        name="ada", role="viewer", password_hash=passwords.hashed("correct horse battery"),
        created_at=AT, created_by="root", changed_at=AT,
    )  # fmt: skip

    def user(self, name):
        if name != "ada":
            raise NotFound("no")
        return self.record

    def commit_identity(self, change, audit):
        self.made = change

    def token(self, id):
        raise NotFound("no")


async def test_five_wrong_passwords_and_even_the_right_one_waits():
    authority = Authority(store=OneUser(), clock=ManualClock())
    who = Principal(name="anonymous", role=None, kind=Kind.ANONYMOUS, peer="10.0.0.1")
    token = ACTING.set(who)
    try:
        for _ in range(5):
            with pytest.raises(Unauthorized):
                await authority.sign_in("ada", "wrong")
        with pytest.raises(Overloaded):
            await authority.sign_in("ada", "correct horse battery")
        ACTING.set(Principal(name="anonymous", role=None, kind=Kind.ANONYMOUS, peer="10.0.0.2"))
        text, session = await authority.sign_in("ada", "correct horse battery")
        assert parse(text).kind is CredentialKind.SESSION and session.owner == "ada"
    finally:
        ACTING.reset(token)


async def test_guesses_that_come_all_at_once_are_counted_one_by_one():
    authority, tried = Authority(store=OneUser(), clock=ManualClock()), []
    who = Principal(name="anonymous", role=None, kind=Kind.ANONYMOUS, peer="10.0.0.1")
    token = ACTING.set(who)
    try:
        guesses = (authority.sign_in("ada", f"wrong {n}") for n in range(40))
        tried = await asyncio.gather(*guesses, return_exceptions=True)
    finally:
        ACTING.reset(token)
    looked_at = sum(isinstance(error, Unauthorized) for error in tried)
    assert 5 <= looked_at <= 6, "two are looked at side by side"
    assert sum(isinstance(error, Overloaded) for error in tried) == 40 - looked_at


# -- memory --------------------------------------------------------------------------------------


class Asked:
    """A store of names that can go away."""

    def __init__(self, *known):
        self.known, self.asked, self.away = set(known), 0, False

    def __call__(self, id):
        self.asked += 1
        if self.away:
            raise StoreError("away")
        if id not in self.known:
            raise NotFound(id)
        return id


def remembered(memory, id):
    return asyncio.run(memory.get(id))


def test_a_good_answer_holds_until_it_is_old_or_something_changed():
    store, clock = Asked("a"), ManualClock()
    memory = Memory(store, clock.now)
    assert memory.fresh("a") is None
    for _ in range(3):
        assert remembered(memory, "a") == "a"
    assert store.asked == 1 and memory.fresh("a") == "a"
    clock.advance(GOOD_S + 1)
    assert memory.fresh("a") is None and remembered(memory, "a") == "a"
    store.known.clear()
    assert remembered(memory, "a") == "a"  # nobody said that it changed
    memory.forget()
    assert remembered(memory, "a") is None and memory.fresh("a") is None


def test_the_unknown_is_asked_about_again_soon():
    store, clock = Asked(), ManualClock()
    memory = Memory(store, clock.now)
    assert remembered(memory, "a") is None and remembered(memory, "a") is None
    assert store.asked == 1
    store.known.add("a")
    clock.advance(UNKNOWN_S + 1)
    assert remembered(memory, "a") == "a"


def test_while_the_store_is_away_the_known_go_on_for_a_quarter_of_an_hour():
    store, clock = Asked("a"), ManualClock()
    memory = Memory(store, clock.now)
    assert remembered(memory, "a") == "a"
    store.away = True
    clock.advance(OUTAGE_S - 1)
    memory.forget()
    assert remembered(memory, "a") == "a" and memory.outage_answers == 1
    with pytest.raises(StoreError):
        remembered(memory, "b")
    clock.advance(2)
    with pytest.raises(StoreError):
        remembered(memory, "a")
    store.away = False
    assert remembered(memory, "a") == "a"


# -- addresses and roles -------------------------------------------------------------------------

TRUSTED = (ip_network("10.0.0.0/8"),)


@pytest.mark.parametrize(
    ("peer", "said", "found"),
    [
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.9, 10.9.9.9", "203.0.113.9"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "no address", "10.0.0.1"),
        ("10.0.0.1", "1.1.1.1, <script>", "10.0.0.1"),
        ("", "1.1.1.1", ""),
    ],
)
def test_only_trusted_proxies_are_believed(peer, said, found):
    assert origin(peer, said, TRUSTED) == found


def test_which_names_and_addresses_are_this_machine():
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "::", "localhost.evil", "")))
    assert all(map(is_local_name, ("localhost:8080", "127.0.0.1", "[::1]:80", "LOCALHOST")))
    assert not any(map(is_local_name, ("evil.example", "127.0.0.1.evil.example:80", "", "[::]")))


def test_roles_include_those_below():
    viewer, operator, admin = AccessRole
    assert admin.covers(viewer) and operator.covers(operator) and not viewer.covers(operator)


def test_acts_are_recorded_under_the_callers_own_name():
    assert author("somebody") == "conductor"
    for kind, name in ((Kind.TOKEN, "ci"), (Kind.ANONYMOUS, "somebody")):
        token = ACTING.set(Principal(name="ci", role=AccessRole.ADMIN, kind=kind))
        assert author(" somebody ") == name
        ACTING.reset(token)
