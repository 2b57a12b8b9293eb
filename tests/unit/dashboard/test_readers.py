"""Readers with the same rights share a poller and answers; what is a person's own they do not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dashboard_samples import answering, node, point, series, state

from core import gateway, wire
from dashboard import live as live_module
from dashboard import session
from dashboard.api import feed as feed_module
from dashboard.api.client import AdminClient, Refused, Unreachable
from dashboard.api.feed import Feed
from dashboard.api.lenders import LENT_S, REFUSED_S, Lenders
from dashboard.launch import URL_VARIABLE
from dashboard.parts import kept as kept_module
from dashboard.parts.kept import kept
from dashboard.parts.store import Kept
from dashboard.settings.saved import views

STATE, WHO = "/admin/v1/state", "/admin/v1/whoami"


class Service:
    """Answers by who asks: `roles` of the tokens that are good; notes what each asked for."""

    def __init__(self) -> None:
        self.roles = {"": "viewer", "ann": "viewer", "bob": "viewer", "ops": "operator"}
        self.asked: list[tuple[str, str]] = []
        self.url = ""

    def answer(self, token: str, path: str) -> tuple[int, str]:
        """Status and body."""
        self.asked.append((token, path))
        role = self.roles.get(token)
        if role is None:
            return 401, json.dumps({"error": {"message": "the token is not known"}})
        if path == WHO:
            who = wire.WhoAmI(name=token, role=role, kind="token", anonymous=not token)
            return 200, who.model_dump_json()
        if path == STATE:
            return 200, state(node("a")).model_dump_json()
        if path == "/admin/v1/series":
            return 200, series(point(0)).model_dump_json()
        return 200, wire.SavedViewList(views=[]).model_dump_json()

    def who_asked(self, path: str) -> set[str]:
        """Tokens that asked for a path."""
        return {token for token, asked in list(self.asked) if asked == path}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service and a console without a past; its pollers tick fast."""
    made = Service()
    with answering(lambda token, address: made.answer(token, address.partition("?")[0])) as url:
        made.url = url
        _without_past(monkeypatch, url)
        yield made
        monkeypatch.setattr(feed_module, "INTEREST_S", 0.0)
        _until(lambda: all(thread.name != "feed" for thread in threading.enumerate()))


def _without_past(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    whos, answers = Kept(), Kept()
    monkeypatch.setenv(URL_VARIABLE, url)
    monkeypatch.setattr(feed_module, "TICK_S", 0.02)
    monkeypatch.setattr(session, "_whos", lambda: whos)
    monkeypatch.setattr(kept_module, "_kept", lambda: answers)
    session._feed.cache_clear()
    session._client.cache_clear()


class Browser:
    """One open page: whose token it carries, and from where."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, token: str, peer: str = "") -> None:
        self._patch, self._token, self._peer = monkeypatch, token, peer
        self._state: dict[str, Any] = {}

    @contextmanager
    def run(self) -> Iterator[None]:
        """A refresh of it."""
        self._patch.setattr(session, "token", lambda: self._token)
        self._patch.setattr(session, "peer", lambda: self._peer)
        self._patch.setattr(session.st, "session_state", self._state)
        with session.one_run():
            yield

    def feed(self) -> Feed:
        """The poller it looks at."""
        with self.run():
            session.feed().look()
            return session.feed()

    def kept(self, read: Callable[[], object]) -> object:
        """An answer that is kept."""
        with self.run():
            return kept("k", ttl_s=60.0, read=read)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tokens_of_one_role_share_a_poller_and_answers_and_other_readers_have_another(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob, ops = (Browser(monkeypatch, token) for token in ("ann", "bob", "ops"))
    here, there = (Browser(monkeypatch, "", peer) for peer in ("10.0.0.1", "10.0.0.2"))
    every = (ann, bob, ops, here, there)
    feeds = [browser.feed() for browser in every]
    assert feeds[0] is feeds[1]
    assert len(set(feeds)) == 4  # another role, and each address of those without a token
    assert service.who_asked(STATE) == {"ann", "ops", ""}  # bob's token was never needed
    answers = [browser.kept(object) for browser in every]
    assert answers[0] is answers[1]
    assert len(set(answers)) == 4
    assert feeds[0]._look.error == ""


def test_no_other_route_answers_by_who_asks() -> None:
    """What readers share holds as long as a GET route looks at nothing of its caller but the role:
    `/whoami`, the saved views, and of decisions what an administrator sees more."""
    sources = Path(gateway.__file__).parent
    looking = {path.name for path in sources.rglob("*.py") if "ACTING" in path.read_text()}
    assert looking == {"auth.py", "admin.py", "admin_identity.py", "admin_views.py"}


def test_what_is_a_persons_own_is_asked_with_their_token(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("ann", "bob"):
        browser = Browser(monkeypatch, token)
        browser.feed()
        with browser.run():
            assert session.user().name == token
            views().all()
    assert service.who_asked("/admin/v1/views") == {"ann", "bob"}
    assert service.who_asked(WHO) == {"ann", "bob"}


def test_a_revoked_token_sees_nothing_more_and_the_others_notice_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "WHO_S", 0.05)
    monkeypatch.setattr(session, "WHO_MEANWHILE_S", 0.3)
    ann, bob = Browser(monkeypatch, "ann"), Browser(monkeypatch, "bob")
    shared = ann.feed()
    answer = bob.kept(object)
    assert bob.feed() is shared and ann.kept(object) is answer
    assert service.who_asked(STATE) == {"ann"}
    del service.roles["ann"]

    def shut_out() -> bool:
        assert bob.feed() is shared and not shared._look.error
        with ann.run():
            return session.must_sign_in()

    _until(shut_out)
    seen = shared._look.tick
    _until(lambda: shut_out() and shared._look.tick > seen + 2)  # it goes on with bob's
    assert "bob" in service.who_asked(STATE)
    own = ann.feed()
    assert own is not shared
    assert own._look.refused and own._look.state is None
    with pytest.raises(Unreachable, match="not known"):
        ann.kept(object)
    assert bob.kept(object) is answer


def test_who_shows_no_token_is_asked_about_by_address(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a trusted proxy a far reader without a token is nobody, and is shown the way in."""
    asked: list[str] = []

    def whoami(client: AdminClient, **_: object) -> wire.WhoAmI:
        asked.append(client._http.headers.get("x-forwarded-for", ""))
        if asked[-1] == "10.0.0.9":
            raise Refused(401, wire.ErrorDetail(message="sign in", type="unauthorized", code="x"))
        return wire.WhoAmI(name="anonymous", role="viewer", kind="anonymous", anonymous=True)

    monkeypatch.setattr(AdminClient, "whoami", whoami)
    far, near = Browser(monkeypatch, "", "10.0.0.9"), Browser(monkeypatch, "", "")
    with far.run():
        assert session.must_sign_in()
    with near.run():
        assert not session.must_sign_in() and session.user().role == "viewer"
    assert asked == ["10.0.0.9", ""]


def test_a_page_left_open_gives_way_to_the_way_in_once_its_token_is_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawings: list[str] = []
    ann = Browser(monkeypatch, "ann")
    monkeypatch.setattr(live_module.st, "fragment", lambda run, **_: run)
    monkeypatch.setattr(live_module.st, "rerun", lambda: drawings.append("anew"))
    monkeypatch.setattr(live_module, "redraw_strip", lambda: None)
    with ann.run():
        live_module.live(lambda: drawings.append("refresh"), key="k")
        del service.roles["ann"]
        session._whos().clear()
        live_module.live(lambda: None, key="k")
    assert drawings == ["refresh", "anew"]


def test_nobody_shares_whose_token_was_not_confirmed_lately(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that does not say who somebody is may have taken the token back."""
    ann = Browser(monkeypatch, "ann")
    shared = ann.feed()
    said = session._Said(
        wire.WhoAmI(name="ann", role="viewer", kind="token"),
        shared.good_s - session.WHO_MEANWHILE_S - 1.0,
    )
    monkeypatch.setattr(session, "_ask_who", lambda: said)
    with ann.run():
        assert session.rights() == session.own_rights()
        assert session.feed() is not shared
        assert session.user().name == "ann"


def test_the_last_answers_stay_while_the_service_is_away(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = Browser(monkeypatch, "ann")
    shared = ann.feed()
    monkeypatch.setattr(AdminClient, "state", _away)
    _until(lambda: bool(ann.feed()._look.error))
    monkeypatch.setattr(session, "WHO_S", 0.0)  # as if much time had passed
    assert ann.feed() is shared and shared._look.state is not None
    assert service.asked.count(("ann", WHO)) == 1  # nobody waits for it
    with ann.run():
        assert session.user().name == "ann" and not session.must_sign_in()


def _away(_: AdminClient) -> wire.FleetState:
    raise Unreachable("away")


def test_a_good_token_after_a_refused_one_waits_for_its_own_look(service: Service) -> None:
    feed = Feed()
    feed.lend(AdminClient(service.url, "gone"))
    assert feed.look().refused
    feed.lend(AdminClient(service.url, "bob"))
    found = feed.look()
    assert found.state is not None and not found.error


def test_a_lender_is_used_until_it_leaves_or_is_refused() -> None:
    now = [0.0]
    lenders = Lenders(lambda: now[0])
    ann, bob, cid = (AdminClient("http://unused", token) for token in ("ann", "bob", "cid"))
    assert all(lenders.lend(each) for each in (ann, bob))
    assert [lenders.pick(), lenders.pick()] == [bob, bob]
    lenders.lend(ann)
    assert lenders.pick() is bob  # its connection is open
    now[0] = LENT_S + 1.0
    lenders.lend(cid)
    assert lenders.pick() is cid  # the others have left
    assert not lenders.refuse(cid)
    assert lenders.pick() is cid  # there is no other
    assert lenders.lend(ann) and lenders.pick() is ann
    assert not lenders.lend(cid)
    assert lenders.refuse(ann) is False
    now[0] += REFUSED_S
    assert lenders.lend(cid)
