"""Prompts where keeping them is switched on: redacted, for admins alone, and gone in time. That
nothing of them is kept where it is off is `test_canaries.py`'s."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import aiohttp
import pytest
from gateway_world import MODEL, Engine, engines, serving, until
from sqlalchemy import text
from typer.testing import CliRunner

from core import wire
from core.cli import app
from core.kept_prompts import SLACK_CHARS, prompt_text, redacted
from core.settings import NodeSettings, Settings
from core.wiring import running_service
from storage.database import writer_engine
from storage.retention import Retention, Rules

ADMIN = "a-token-for-the-tests-of-kept-prompts"
CANARY = "canaryword3f9a"
SECRETS = {
    "cdr_k_" + "ab" * 6 + "_" + "0c" * 32: "our own key",
    "sk-proj-Zx81kQm29vTT7abcDEF0": "an API key",
    "AKIAIOSFODNN7EXAMPLE": "a cloud key",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a": "a forge's token",
    "xoxb-2847561-88812-abcXYZ": "a chat's token",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmN": "a web token",
    "hunter2hunter2": "after password:",
    "s3cr3t-for-basic": "after Bearer",
    "pass.in.url": "in an address",
    "ada.lovelace+work@example.co.uk": "an e-mail address",
    "4111 1111 1111 1111": "a card",
    "DE89 3704 0044 0532 0130 00": "an account",
    "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC": "a private key",
    "Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZmdoaWprbG0": "a random run",
}
PLAIN = (
    f"{CANARY}: please explain internationalisation of counterrevolutionaries in 2024, order 12345,"
    " version 1.2.3, and path /usr/local/share/documentation/index"
)


def with_secrets() -> str:
    """A prompt with every kind of secret in the place where people put it."""
    found = list(SECRETS)
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{found[12]}\nQUJD\n-----END RSA PRIVATE KEY-----"
    return (
        f"{PLAIN}\nkeys {' '.join(found[:6])}\nmy password: {found[6]}, Authorization: Bearer"
        f" {found[7]}\nsee https://ada:{found[8]}@host/x or write to {found[9]}; pay with"
        f" {found[10]} from {found[11]}\n{key}\nand {found[13]} goodbye {CANARY}"
    )


def test_what_looks_like_a_secret_is_replaced_and_prose_is_not():
    kept = redacted(with_secrets(), 10_000)
    for secret, what in SECRETS.items():
        assert secret not in kept, what
    assert PLAIN in kept and kept.endswith(f"goodbye {CANARY}")
    for word in ("key", "token", "secret", "e-mail", "card", "account", "private key"):
        assert f"[{word}]" in kept
    assert "https://[secret]@host/x" in kept and "Bearer [secret]" in kept


@pytest.mark.parametrize("secret", list(SECRETS)[:6])
def test_the_cut_does_not_halve_a_secret(secret):
    for before in range(0, len(secret), 5):
        body = {"prompt": "word " * 40 + secret + " " + "x" * 2 * SLACK_CHARS}
        kept = redacted(prompt_text(body, 200 + before), 200 + before)
        assert secret[:12] not in kept and kept.endswith("[…]")


def test_messages_parts_and_token_ids():
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": parts}, 7]
    assert prompt_text({"messages": messages}, 99) == "system: be kind\n\nuser: look [image_url]"
    assert prompt_text({"prompt": [1, 2, 3]}, 99) == "[3 token ids]"
    assert prompt_text({"prompt": ["a", "b"]}, 99) == "a\n\nb"
    assert prompt_text({}, 99) == prompt_text({"prompt": None}, 99) == ""


@asynccontextmanager
async def keeping(folder, engine, **records):
    """A whole service that keeps prompts, at an address."""
    node = NodeSettings(id="a", url=engine.url, engine="emulated")
    settings = Settings(state_dir=folder, nodes=(node,), auth={"admin_token": ADMIN},
                        records={"keep_prompts": True, **records})  # fmt: skip
    async with running_service(settings) as service, serving(service) as (url, _):
        await until(lambda: service.conductor.fleet.health("a") == "healthy")
        yield service, url


async def ask(client, method, url, body=None, token=""):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with client.request(method, url, json=body, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_a_kept_prompt_is_for_admins_and_for_a_time(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with engines(Engine("a")) as (engine,):
        async with keeping(tmp_path, engine) as (service, url), aiohttp.ClientSession() as client:
            chat = [{"role": "user", "content": with_secrets()}]
            body = {"model": MODEL, "messages": chat, "max_tokens": 2}
            assert (await ask(client, "POST", f"{url}/v1/chat/completions", body))[0] == 200
            service.recorder.drain()
            assert await asyncio.to_thread(service.sink.flush)
            admin = f"{url}/admin/v1"
            _, rows = await ask(client, "GET", f"{admin}/decisions", token=ADMIN)
            decision = json.loads(rows)["rows"][0]["id"]
            where = f"{admin}/decisions/{decision}/prompt"
            status, text = await ask(client, "GET", where, token=ADMIN)
            kept = wire.PromptView.model_validate_json(text)
            assert status == 200 and kept.text.startswith(f"user: {PLAIN}")
            assert service.store.audit()[0].action == "prompt.read"
            assert kept.expires_at == kept.at + timedelta(days=3)
            assert (await ask(client, "GET", where))[0] == 401  # a viewer of this machine
            _, seen = await ask(client, "GET", f"{admin}/decisions/{decision}")
            assert wire.DecisionDetail.model_validate_json(seen).prompt is None
            _, detail = await ask(client, "GET", f"{admin}/decisions/{decision}", token=ADMIN)
            assert wire.DecisionDetail.model_validate_json(detail).prompt.on
            service.limits = replace(service.limits, prompt_days=0.0)
            _, off = await ask(client, "GET", f"{admin}/decisions/{decision}", token=ADMIN)
            assert not wire.DecisionDetail.model_validate_json(off).prompt.on
            _, events = await ask(client, "GET", f"{admin}/history", token=ADMIN)
            _, csv = await ask(client, "GET", f"{admin}/decisions/export?format=csv", token=ADMIN)
            _, metrics = await ask(client, "GET", f"{url}/metrics", token=ADMIN)
            audit = json.dumps([str(entry) for entry in service.store.audit()])
            for other in (rows, detail, events, csv, metrics, audit, caplog.text):
                assert CANARY not in other
    explained = CliRunner().invoke(app, ["explain", decision, "--prompt", *config(tmp_path)])
    assert explained.exit_code == 0 and PLAIN in explained.output
    listed = CliRunner().invoke(app, ["audit", "list", "--json", *config(tmp_path)])
    read = json.loads(listed.output)[0]
    assert (read["action"], read["target"], read["kind"]) == ("prompt.read", decision, "local")
    listed = CliRunner().invoke(app, ["audit", "list", *config(tmp_path)])
    assert f"prompt.read {decision}  by" in listed.output
    assert CANARY not in CliRunner().invoke(app, ["explain", decision, *config(tmp_path)]).output
    everything = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert CANARY.encode() in everything
    for secret, what in SECRETS.items():
        assert secret.encode() not in everything, what
    none = CliRunner().invoke(app, ["audit", "list", "--actor", "nobody", *config(tmp_path)])
    assert none.stdout == "no entry fits\n"


def config(folder):
    path = folder.parent / "explain.toml"
    path.write_text(f'state_dir = "{folder}"\n')
    return ["--config", str(path)]


async def test_prompts_go_by_their_age_however_many_they_are(record_url, tmp_path):
    settings = Settings(state_dir=tmp_path, database_url=record_url, records={"keep_prompts": True})
    async with running_service(settings) as service:
        for number in range(5):
            service.recorder.prompt(f"d{number}", {"prompt": "x"}, service.clock.wall())
        service.recorder.drain()
        assert await asyncio.to_thread(service.sink.flush)
        assert service.store.prompt("d4").text == "x"
    engine = writer_engine(record_url)
    with engine.begin() as connection:
        old = "UPDATE prompts SET at_us = at_us - 345600000000 WHERE decision_id <> 'd4'"
        connection.execute(text(old))
    done = {c.name: c.deleted for c in Retention(engine, Rules(prompts_days=3.0)).run()}
    assert done["prompts"] == 4
    with engine.begin() as connection:
        assert connection.execute(text("SELECT decision_id FROM prompts")).all() == [("d4",)]
    engine.dispose()
