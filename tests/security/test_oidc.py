"""Signing in through an identity provider: whose tokens are taken, and what they open."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from gateway_world import gateway
from joserfc.jwk import ECKey, RSAKey
from oidc_provider import CLIENT, OidcProvider

from core.clock import SystemClock
from core.errors import Invalid
from core.identity.authority import Authority
from core.identity.first_start import make_authority, make_provider
from core.identity.oidc import KEYS_AGAIN_S, check_address
from core.oidc_settings import OidcSettings
from core.settings import AuthSettings, ServerAddress
from storage.store import open_storage

ROLES = {"sre": "operator", "platform": "admin", "everybody": "viewer"}


class Clock(SystemClock):
    """The system's, and a monotonic one that can be moved on."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


@asynccontextmanager
async def world(tmp_path, **oidc):
    """A service whose provider runs on this machine; nobody may do anything unknown."""
    clock = Clock()
    with OidcProvider() as provider, open_storage(f"sqlite:///{tmp_path}/records.db") as storage:
        asked = {"issuer": provider.issuer, "client_id": CLIENT, "roles": ROLES, **oidc}
        settings = AuthSettings(anonymous_role="none", oidc=OidcSettings(**asked))
        authority = make_authority(settings, ServerAddress(), store=storage.store, clock=clock)
        async with gateway(store=storage.store, sink=storage.sink, authority=authority) as w:
            w.extra |= {"provider": provider, "clock": clock, "store": storage.store}
            yield w, provider


async def ask(w, method, path, body=None, token=""):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = f"{w.url}/admin/v1{path}"
    async with w.client.request(method, url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def sign_in(w, id_token):
    status, answer = await ask(w, "POST", "/login/oidc", {"id_token": id_token})
    return status, answer.get("token") or answer["error"]["message"]


async def test_a_person_signs_in_acts_under_the_name_and_signs_out(tmp_path):
    async with world(tmp_path, session_hours=2) as (w, provider):
        status, token = await sign_in(w, provider.sign(groups=["everybody", "sre", "other"]))
        assert status == 201
        _, who = await ask(w, "GET", "/whoami", token=token)
        assert (who["name"], who["role"], who["kind"]) == ("ada@example.org", "operator", "console")
        node = {"id": "n", "url": "http://127.0.0.1:9"}
        assert (await ask(w, "POST", "/nodes", node, token))[0] == 201
        assert (await ask(w, "GET", "/users", token=token))[0] == 403
        entries = await asyncio.to_thread(w.extra["store"].audit)
        assert [(e.action, e.actor, e.kind) for e in entries] == [
            ("node.register", "ada@example.org", "console"),
            ("session.begun", "ada@example.org", "console"),
        ]
        (session,) = await asyncio.to_thread(w.extra["store"].tokens)
        assert session.expires_at - session.created_at == timedelta(hours=2)
        assert (await ask(w, "POST", "/logout", token=token))[0] == 200
        assert (await ask(w, "GET", "/whoami", token=token))[0] == 401


async def test_the_highest_role_of_all_groups_holds_and_none_is_no_way_in(tmp_path):
    async with world(tmp_path, role_claim="realm.roles") as (w, provider):
        for groups, role in ((["sre", "platform"], "admin"), ("everybody", "viewer")):
            _, token = await sign_in(w, provider.sign(realm={"roles": groups}))
            assert (await ask(w, "GET", "/whoami", token=token))[1]["role"] == role
        for claims in ({}, {"realm": {"roles": ["guests"]}}, {"realm": 7}, {"groups": ["sre"]}):
            status, text = await sign_in(w, provider.sign(**claims))
            assert status == 403 and "has no role here" in text
        assert len(await asyncio.to_thread(w.extra["store"].audit)) == 2


def forged(provider, secret=b"", **header):
    """A token with a good body and a header of one's own, signed with what everybody knows."""
    body = provider.sign(groups=["platform"]).split(".")[1]
    text = f"{plain(json.dumps(header).encode())}.{body}"
    made = hmac.digest(secret, text.encode(), "sha256") if secret else b""
    return f"{text}.{plain(made)}"


def plain(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def bad_tokens(provider):
    now, good = int(time.time()), {"groups": ["platform"]}
    stranger = RSAKey.generate_key(2048, {"kid": "one"})
    signed = provider.sign(**good)
    return {
        "wrong audience": provider.sign(aud="another", **good),
        "several audiences": provider.sign(aud=[CLIENT, "another"], **good),
        "for another client": provider.sign(aud=[CLIENT, "b"], azp="b", **good),
        "wrong issuer": provider.sign(iss="http://127.0.0.1:1", **good),
        "expired": provider.sign(exp=now - 120, iat=now - 400, **good),
        "without an end": provider.sign(exp=None, **good),
        "without a beginning": provider.sign(iat=None, **good),
        "from the future": provider.sign(iat=now + 600, **good),
        "old": provider.sign(iat=now - 3_600, exp=now + 3_600, **good),
        "wrong key": provider.sign(key=stranger, **good),
        "unknown key": provider.sign(key=stranger, kid="two", **good),
        "no signature": forged(provider, alg="none", kid="one"),
        "the public key as a secret": forged(
            provider, provider.key.as_pem(private=False), alg="HS256", kid="one"
        ),
        "another body": ".".join(
            [signed.split(".")[0], provider.sign(aud="b").split(".")[1], signed.split(".")[2]]
        ),
        "unverified address": provider.sign(email_verified=False, **good),
        "no name": provider.sign(email=None, **good),
        "not a token": "x.y.z",
    }


async def test_tokens_that_are_not_good_open_nothing(tmp_path):
    async with world(tmp_path) as (w, provider):
        bad = bad_tokens(provider)
        assert (await sign_in(w, provider.sign(groups=["sre"])))[0] == 201
        for why, token in bad.items():
            status, text = await sign_in(w, token)
            assert status == 401, (why, text)
            assert token not in text
        assert provider.asked.count("/jwks") == 1  # bad tokens do not send us there each time
        assert len(await asyncio.to_thread(w.extra["store"].tokens)) == 1


async def test_guessing_is_slowed_down(tmp_path):
    async with world(tmp_path) as (w, _):
        found = [(await sign_in(w, "x.y.z"))[0] for _ in range(25)]
        assert set(found) == {401, 429} and found[-1] == 429


async def test_new_keys_of_the_provider_are_learnt(tmp_path):
    async with world(tmp_path) as (w, provider):
        assert (await sign_in(w, provider.sign(groups=["sre"])))[0] == 201
        provider.key = ECKey.generate_key("P-256", {"kid": "two", "use": "sig"})
        assert (await sign_in(w, provider.sign(groups=["sre"])))[0] == 401  # asked just before
        w.extra["clock"].ahead_s = KEYS_AGAIN_S + 1
        assert (await sign_in(w, provider.sign(groups=["sre"])))[0] == 201


async def test_a_provider_that_is_away_is_said_to_be(tmp_path):
    async with world(tmp_path) as (w, provider):
        token = provider.sign(groups=["sre"])
        provider.__exit__()
        status, text = await sign_in(w, token)
        assert status == 503 and "does not answer" in text


async def test_without_a_provider_there_is_no_such_way_in(tmp_path):
    with open_storage(f"sqlite:///{tmp_path}/records.db") as storage:
        async with gateway(authority=Authority(store=storage.store)) as w:
            status, text = await sign_in(w, "x.y.z")
            assert status == 404 and "auth.oidc" in text


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="client_id"):
        OidcSettings(issuer="https://id.example.org")
    for address in ("http://id.example.org", "ftp://x", "https://"):
        with pytest.raises(Invalid, match="https"):
            check_address(address)
    assert make_provider(OidcSettings(), SystemClock()) is None
