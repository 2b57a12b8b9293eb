"""Every route of the admin API, asked by everybody: exactly the documented cells are open."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from datetime import timedelta

import aiohttp
from gateway_world import gateway
from yarl import URL

from core.clock import SystemClock
from core.gateway.admin import create_admin
from core.gateway.auth import NOBODY, ROLE_KEY, GuardedAdmin, declare_roles
from core.identity.authority import Authority, AuthRules
from core.identity.identities import Identities
from core.identity.principal import AccessRole
from storage.store import open_storage

RANK = {NOBODY: -1, "viewer": 0, "operator": 1, "admin": 2}
READING = ("login", "oidc", "logout", "lookup", "what-if")
"""Last parts of POST routes that change nothing, or only the caller's own session."""
ADMIN_ONLY = re.compile(r"/admin/v1/(users|tokens|keys|audit)")


@asynccontextmanager
async def guarded_world(tmp_path, **rules):
    """A service on a database; `call(role, …)` asks as somebody with that role."""
    with open_storage(f"sqlite:///{tmp_path}/records.db") as storage:
        authority = Authority(AuthRules(**rules), store=storage.store)
        async with gateway(store=storage.store, sink=storage.sink, authority=authority) as w:
            acts = Identities(storage.store, SystemClock())
            w.extra["acts"] = acts
            w.extra["tokens"] = {
                role.value: acts.create_token(role.value, role)[0].text for role in AccessRole
            }
            yield w


def routes(service):
    """(method, path, least role) of every route."""
    document = declare_roles(create_admin(service))
    return [
        (method.upper(), path, operation[ROLE_KEY])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]


async def status(w, method, path, token=None):
    """Status of a request whose body is nothing anybody takes."""
    url = w.url + re.sub(r"\{[^}]*\}", "987654321", path)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    body = None if method == "GET" else {"no": "such field"}
    async with w.client.request(method, url, json=body, headers=headers) as answer:
        return answer.status


async def test_every_route_declares_its_least_role(tmp_path):
    async with guarded_world(tmp_path) as w:
        found = routes(w.service)
        assert len(found) > 50
        for method, path, least in found:
            assert least in RANK, path
            if method != "GET" and least in (NOBODY, "viewer"):
                assert path.rpartition("/")[2] in READING, path
            if ADMIN_ONLY.match(path):
                assert least == "admin", path
        app = create_admin(w.service)
        app.openapi = None  # takes a second to write: nobody's request may wait for that
        door = GuardedAdmin(app, w.service)
        door.prepare()
        for method, path, least in found:
            role = door.least_role(method, re.sub(r"\{[^}]*\}", "987654321", path))
            assert (NOBODY if role is None else role.value) == least, path


async def test_exactly_the_documented_cells_are_open(tmp_path):
    async with guarded_world(tmp_path, anonymous_role=None) as w:
        tokens = w.extra["tokens"]
        wrong = []
        for method, path, least in routes(w.service):
            for role, token in [(None, None), *tokens.items()]:
                got = await status(w, method, path, token)
                allowed = RANK[least] <= (-1 if role is None else RANK[role])
                expected = None if allowed else 401 if role is None else 403
                if (got if got in (401, 403) else None) != expected:
                    wrong.append((method, path, least, role, got))
        assert not wrong


async def test_credentials_that_are_over_open_nothing(tmp_path):
    async with guarded_world(tmp_path) as w:
        acts = w.extra["acts"]
        over, _ = acts.create_token("over", AccessRole.ADMIN, life=timedelta(microseconds=1))
        revoked, _ = acts.create_token("revoked", AccessRole.ADMIN)
        acts.revoke_token(revoked.id)
        key, _ = acts.create_key("key", "acme")
        for text in (over.text, revoked.text, key.text):
            for method, path, least in routes(w.service):
                if least == NOBODY:
                    continue
                assert await status(w, method, path, text) in (401, 429), path


SPELLINGS = ("audit/", "/audit", "AUDIT", "%61udit", "users/../audit", "audit;x", "audit%2F")


async def test_no_spelling_of_a_path_gets_past_the_door(tmp_path):
    async with guarded_world(tmp_path) as w, aiohttp.ClientSession() as raw:
        headers = {"authorization": f"Bearer {w.extra['tokens']['operator']}"}
        for spelling in SPELLINGS:
            url = URL(f"{w.url}/admin/v1/{spelling}", encoded=True)
            async with raw.get(url, headers=headers) as answer:
                assert answer.status in (403, 404), (spelling, await answer.text())


async def test_a_stream_ends_when_its_reader_is_shut_out(tmp_path):
    async with guarded_world(tmp_path) as w:
        acts = w.extra["acts"]
        made, _ = acts.create_token("reader", AccessRole.VIEWER)
        headers = {"authorization": f"Bearer {made.text}"}
        async with w.client.get(f"{w.url}/admin/v1/events?kind=test", headers=headers) as stream:
            assert b"connected" in await stream.content.readuntil(b"\n\n")
            w.service.record_event("test.first", "", {})
            assert b"test.first" in await stream.content.readuntil(b"\n\n")
            acts.revoke_token(made.id)
            w.service.forget_identities()
            w.service.record_event("test.second", "", {})
            rest = await stream.content.read()
            assert b"test.second" not in rest
