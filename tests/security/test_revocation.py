"""What is revoked stops working on every replica within seconds."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import aiohttp
from gateway_world import serving

from core.settings import load_settings
from core.wiring import running_service

WITHIN_S = 5.0
ADMIN = {"authorization": "Bearer " + "a-token-for-the-tests-of-revocation"}


async def replica(stack, tmp_path, url, name):
    """The address of a whole service of its own over the database they share."""
    auth = {"require_api_key": True, "admin_token": ADMIN["authorization"].split()[1]}
    settings = load_settings().model_copy(
        update={
            "state_dir": tmp_path / name,
            "database_url": url,
            "auth": load_settings().auth.model_validate(auth),
        }
    )
    service = await stack.enter_async_context(running_service(settings))
    address, _ = await stack.enter_async_context(serving(service))
    return address


async def test_token_key_and_role_end_on_both_replicas(tmp_path, database_url):
    async with AsyncExitStack() as stack:
        both = [await replica(stack, tmp_path, database_url, name) for name in ("one", "two")]
        client = await stack.enter_async_context(aiohttp.ClientSession())

        async def ask(method, url, path, body=None, token=None):
            headers = {"authorization": f"Bearer {token}"} if token else ADMIN
            async with client.request(method, url + path, json=body, headers=headers) as answer:
                return answer.status, await answer.json()

        async def stops(path, token, status, method="GET"):
            """Both replicas refuse within the promised time."""
            began = time.monotonic()
            for url in both:
                while (await ask(method, url, path, token=token))[0] != status:
                    assert time.monotonic() - began < 30.0
                    await asyncio.sleep(0.05)
            took = time.monotonic() - began
            print(f"{path} refused on both after {took:.2f} s (promised: {WITHIN_S:g} s)")

        one = both[0]
        _, token = await ask("POST", one, "/admin/v1/tokens", {"name": "ci", "role": "operator"})
        _, key = await ask("POST", one, "/admin/v1/keys", {"name": "k", "tenant": "acme"})
        user = {"name": "ada", "role": "operator", "password": "correct horse battery"}
        assert (await ask("POST", one, "/admin/v1/users", user))[0] == 201
        asked = {"user": "ada", "password": "correct horse battery"}
        _, session = await ask("POST", one, "/admin/v1/login", asked)
        for url in both:
            assert (await ask("GET", url, "/admin/v1/state", token=token["token"]))[0] == 200
            assert (await ask("GET", url, "/v1/models", token=key["key"]))[0] == 200
            assert (await ask("GET", url, "/admin/v1/state", token=session["token"]))[0] == 200

        await ask("DELETE", one, f"/admin/v1/tokens/{token['id']}")
        await stops("/admin/v1/state", token["token"], 401)
        await ask("DELETE", one, f"/admin/v1/keys/{key['id']}")
        await stops("/v1/models", key["key"], 401)
        # Less of a role holds for the running session at once.
        await ask("PATCH", one, "/admin/v1/users/ada", {"role": "viewer"})
        await stops("/admin/v1/shadow/stop", session["token"], 403, "POST")
        await ask("PATCH", one, "/admin/v1/users/ada", {"disabled": True})
        await stops("/admin/v1/state", session["token"], 401)
