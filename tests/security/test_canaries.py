"""Marked secrets and prompts go in by every door, and are looked for in everything that is kept.

A whole service as a process, logging all it can, before an emulated engine. Afterwards its log,
its state directory (database, write-ahead log, spool), its metrics and every answer it gave are
searched, the last apart from those that hand a new secret out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time

import aiohttp
from gateway_world import MODEL, ROOT, Engine, engines

PROMPT = "canaryprompt8d1f4e"
PASSWORD = "Canary-Passw0rt-3b9c"
TOKEN = "canarytoken5a7e" * 4
SESSION = "canarysession77"
GUESS = "cdr_t_" + "ab" * 6 + "_" + "c0ffee" * 10 + "beef"


class Searched:
    """Calls the service, and keeps every answer."""

    def __init__(self, client, url):
        self._client, self._url = client, url
        self.answers = []
        self.statuses = set()

    async def __call__(self, method, path, body=None, *, shown=False, raw=None, **headers):
        """One call; `shown`: its answer hands out a secret, and is not searched."""
        headers = {k.replace("_", "-"): v for k, v in headers.items()}
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        headers.setdefault("content-type", "application/json")
        async with self._client.request(
            method, self._url + path, data=data, headers=headers
        ) as answer:
            text = await answer.text()
        self.statuses.add(answer.status)
        if not shown:
            self.answers.append((method, path, text))
        return json.loads(text) if shown else text


async def through_the_data_plane(call):
    chat = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
    plain = {"model": MODEL, "prompt": f"tell me about {PROMPT} " * 40, "max_tokens": 3}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", plain)):
        session = {"x_session_id": SESSION}
        await call("POST", path, body, **session)
        await call("POST", path, {**body, "stream": True}, **session)
        await call("POST", path, {**body, "model": "nobody-serves-this"})
        await call("POST", path, {**body, "max_tokens": "many"})
        await call("POST", path, {**body, "model": {"text": PROMPT}})
        await call("POST", path, raw=b'{"model": "tiny", "prompt": "' + PROMPT.encode())
        await call("POST", path, body, authorization=f"Bearer {TOKEN}")
        await call("POST", path, body, authorization=f"Bearer {GUESS}")
        await call("POST", path + f"?api_key={TOKEN}", body, x_conductor_priority="high")
    await call("POST", "/v1/responses", {"model": MODEL, "input": PROMPT})
    await call("POST", "/v1/embeddings", {"model": MODEL, "input": PROMPT})
    await call("POST", "/v1/schedule", {**plain, "reserve": True, "explain": True})
    await call("POST", "/v1/schedule", {**plain, "reserve": PROMPT})
    await call("POST", "/query", {"model": MODEL, "token_ids": [PROMPT]})
    await call("POST", "/query", {"model": MODEL, "block_size": PROMPT, "token_ids": [1]})


async def through_the_admin_api(call):
    admin = {"authorization": f"Bearer {TOKEN}"}
    secrets = []
    for body in ({"user": "ada", "password": PASSWORD}, {"user": 1, "password": PASSWORD},
                 {"user": "ada", "password": PASSWORD, "more": PASSWORD}):  # fmt: skip
        await call("POST", "/admin/v1/login", body)
    await call("POST", "/admin/v1/login", raw=b'{"password": "' + PASSWORD.encode())
    user = {"name": "ada", "role": "operator", "password": PASSWORD}
    await call("POST", "/admin/v1/users", {**user, "role": "king"}, **admin)
    await call("POST", "/admin/v1/users", {**user, "password": PASSWORD[:11]}, **admin)
    await call("POST", "/admin/v1/users", user, **admin)
    await call("POST", "/admin/v1/users", user, **admin)
    found = await call("POST", "/admin/v1/login", {"user": "ada", "password": PASSWORD}, shown=True)
    secrets.append(found["token"])
    token = {"name": "ci", "role": "viewer"}
    secrets.append((await call("POST", "/admin/v1/tokens", token, shown=True, **admin))["token"])
    key = {"name": "k", "tenant": "acme", "reason": "a test"}
    secrets.append((await call("POST", "/admin/v1/keys", key, shown=True, **admin))["key"])
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2}
    await call("POST", "/v1/completions", asked, authorization=f"Bearer {secrets[-1]}")
    await call("PATCH", "/admin/v1/users/ada", {"password": PASSWORD + "!"}, **admin)
    await call("POST", "/admin/v1/cache/lookup", {"model": MODEL, "prompt": PROMPT}, **admin)
    await call(
        "POST", "/admin/v1/cache/lookup", {"model": MODEL, "prompt": {"text": PROMPT}}, **admin
    )
    for bad in (GUESS, secrets[0][:-1] + "x"):
        await call("GET", "/admin/v1/state", authorization=f"Bearer {bad}")
    for path in ("state", "decisions", "users", "tokens", "keys", "audit", "cache/hot", "whoami"):
        await call("GET", f"/admin/v1/{path}", **admin)
    await call("GET", "/metrics", **admin)
    return secrets


@contextlib.contextmanager
def serving_process(folder, engine):
    nodes = [{"id": "a", "url": engine.url, "engine": "emulated"}]
    settings = {"server": {"port": 0}, "state_dir": str(folder / "state"), "log_level": "debug",
                "nodes": nodes, "auth": {"admin_token": TOKEN}}  # fmt: skip
    settings["server"]["port"] = free_port()
    (folder / "settings.json").write_text(json.dumps(settings))
    argv = [sys.executable, "-m", "core.cli", "serve", "--config", str(folder / "settings.json")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process, f"http://127.0.0.1:{settings['server']['port']}"
        finally:
            process.terminate()
            process.wait(30)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def ready(client, url):
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            async with client.get(f"{url}/health") as answer:
                if (await answer.json())["eligible"]:
                    return
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


async def test_nothing_that_is_kept_holds_a_secret_or_a_prompt(tmp_path):
    with engines(Engine("a")) as (engine,), serving_process(tmp_path, engine) as (_, url):
        async with aiohttp.ClientSession() as client:
            await ready(client, url)
            call = Searched(client, url)
            await through_the_data_plane(call)
            made = await through_the_admin_api(call)
    assert {200, 201, 400, 401, 404, 422} <= call.statuses
    wanted = [PROMPT, PASSWORD, TOKEN, SESSION, GUESS, *made]
    secrets = [*wanted, *(text.rpartition("_")[2] for text in (GUESS, *made))]
    for method, path, text in call.answers:
        for secret in secrets:
            assert secret not in text, f"{method} {path}"
    files = [p for p in (tmp_path / "state").rglob("*") if p.is_file()]
    assert any(p.suffix == ".db" for p in files)
    for kept in (*files, tmp_path / "log"):
        content = kept.read_bytes()
        for secret in secrets:
            text = secret.encode()
            for form in (text, secret.encode("utf-16-le"), text.hex().encode()):
                assert form not in content, f"{secret} in {kept.name}"
    # The search can find something: names and digests are there.
    everything = b"".join(p.read_bytes() for p in files)
    assert b"argon2id" in everything and b"acme" in everything and b"user.added" in everything
