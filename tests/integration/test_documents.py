"""Saved views and results of the Lab: on both databases, and through the admin API."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from control_world import controlled
from gateway_world import Engine, engines
from record_cases import draft

from core import wire
from core.errors import NotFound
from core.ports import DocumentRecord, DocumentStore
from storage.store import open_storage

AT = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)


def record(id: str, minute: int = 0, **data: object) -> DocumentRecord:
    at = AT + timedelta(minutes=minute)
    return DocumentRecord(kind="view", id=id, owner="ada", at=at, data=data)


def test_documents_come_back_as_they_were_put(record_url):
    with open_storage(record_url) as opened:
        store: DocumentStore = opened.store
        first, second = record("a", name="é\x00"), record("b", 1)
        store.put_document(first, audit=draft("view.saved"))
        store.put_document(second)
        assert [d.id for d in store.documents("view")] == ["b", "a"]
        assert store.document("view", "a").data == {"name": "é\x00"} and not store.documents("lab")
        store.put_document(record("a", 2, name="new"))
        assert [d.id for d in store.documents("view")] == ["a", "b"]
        store.put_document(record("c", 3), keep=2)
        assert [d.id for d in store.documents("view")] == ["c", "a"]
        assert store.remove_document("view", "a", audit=draft("view.deleted"))
        assert not store.remove_document("view", "a", audit=draft("view.deleted"))
        assert [e.action for e in opened.store.audit()] == ["view.deleted", "view.saved"]
        with pytest.raises(NotFound):
            store.document("view", "a")


async def ask(w, method, path, body=None, token=""):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = f"{w.url}/admin/v1{path}"
    async with w.client.request(method, url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_views_are_kept_shared_replaced_and_bounded(tmp_path):
    with engines(Engine("a")) as made:
        async with controlled(made, tmp_path) as w:
            tokens = {}
            for name, role in (("ada", "operator"), ("bo", "operator"), ("vi", "viewer")):
                _, got = await ask(w, "POST", "/tokens", {"name": name, "role": role})
                tokens[name] = got["token"]

            async def names(who):
                _, got = await ask(w, "GET", "/views", token=tokens[who])
                return [(v["name"], v["mine"]) for v in got["views"]]

            body = {"name": "late", "page": "slo", "params": {"range": "1h"}}
            status, late = await ask(w, "POST", "/views", body, tokens["ada"])
            assert status == 201 and late["owner"] == "ada" and late["mine"]
            assert (await ask(w, "POST", "/views", body, tokens["ada"]))[0] == 409
            assert (await ask(w, "POST", "/views", body, tokens["vi"]))[0] == 403
            assert await names("ada") == [("late", True)] and await names("bo") == []
            assert (await ask(w, "DELETE", f"/views/{late['id']}", token=tokens["bo"]))[0] == 404
            body |= {"shared": True, "replace": True}
            assert (await ask(w, "POST", "/views", body, tokens["ada"]))[0] == 201
            assert await names("bo") == await names("vi") == [("late", False)]
            status, told = await ask(w, "DELETE", f"/views/{late['id']}", token=tokens["bo"])
            assert status == 403 and "kept by ada" in told["error"]["message"]
            for bad, field in (
                ({"page": "../x"}, "page"), ({"name": "  "}, "name"), ({"other": 1}, "other"),
                ({"params": {"a b": "1"}}, "params"), ({"params": {"a": "x" * 2001}}, "params"),
                ({"params": {f"p{i}": "" for i in range(41)}}, "params"),
            ):  # fmt: skip
                status, told = await ask(w, "POST", "/views", body | bad, tokens["ada"])
                assert status == 422 and field in str(told), (bad, told)
            for i in range(wire.VIEWS_MAX - 1):
                await ask(w, "POST", "/views", body | {"name": f"v{i}"}, tokens["ada"])
            status, told = await ask(w, "POST", "/views", body | {"name": "more"}, tokens["ada"])
            assert status == 409 and "delete one" in told["error"]["message"]
            # An administrator (who nobody in particular is here) may delete what is shared.
            status, _ = await ask(w, "DELETE", f"/views/{late['id']}?reason=old")
            assert status == 200 and ("late", False) not in await names("bo")
            entry = w.service.store.audit(action="view.deleted")[0]
            assert (entry.target, entry.reason) == ("late", "old") and '"ada"' in entry.before


async def test_what_the_lab_found_outlives_the_process(tmp_path):
    lab = {"arms": [{"policy": "linear"}], "requests": 20, "reason": "which one"}
    with engines(Engine("a")) as made:
        async with controlled(made, tmp_path) as w:
            _, job = await ask(w, "POST", "/lab/jobs", lab)
            path = f"/lab/jobs/{job['id']}"
            async with asyncio.timeout(60):
                while not w.service.counters["lab.kept"]:
                    await asyncio.sleep(0.05)
            before = (await ask(w, "GET", path))[1]
            assert before["state"] == "done" and len(before["points"]) == 2
        async with controlled([], tmp_path) as w:
            listed = (await ask(w, "GET", "/lab/jobs"))[1]["jobs"]
            assert [(j["id"], j["points"]) for j in listed] == [(job["id"], [])]
            assert (await ask(w, "GET", path))[1] == before
            assert (await ask(w, "DELETE", path))[0] == 200
            assert (await ask(w, "GET", "/lab/jobs"))[1]["jobs"] == []
            assert (await ask(w, "GET", path))[0] == 404
