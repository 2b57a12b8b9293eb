"""No act without its entry: every route that changes something, carried out once, and while the
database is away."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from control_world import controlled
from gateway_world import Engine, engines
from sqlalchemy import create_engine, text
from test_role_matrix import READING, routes

WHY = {"reason": "because of the test"}
LATER = (datetime.now(UTC) + timedelta(days=1)).isoformat()
MORE = {"linear.alpha": 0.7}


def acts(w):
    """(method, route, path, body) of every act, in an order in which each can be done. A path or
    body may be a function of the answers so far, by route."""
    base = w.service.conductor.revision
    lab = {"arms": [{"policy": "linear"}], "requests": 20, **WHY}
    user = {"name": "ada", "role": "viewer", "password": "correct horse battery"}
    breaker = {"action": "trip", "seconds": 5, **WHY}
    return [
        ("POST", "/nodes", None, {"id": "n", "url": "http://127.0.0.1:9"}),
        ("PATCH", "/nodes/{node}", "/nodes/n", {"weight": 2.5, **WHY}),
        ("POST", "/nodes/{node}/cordon", "/nodes/n/cordon", WHY),
        ("POST", "/nodes/{node}/uncordon", "/nodes/n/uncordon", WHY),
        ("POST", "/nodes/{node}/drain", "/nodes/n/drain", WHY),
        ("POST", "/nodes/{node}/undrain", "/nodes/n/undrain", WHY),
        ("POST", "/nodes/{node}/breaker", "/nodes/n/breaker", breaker),
        ("POST", "/breaker", None, breaker),
        ("DELETE", "/nodes/{node}", "/nodes/n?reason=sold", None),
        ("PUT", "/tunables", None, {"base": base, "changes": MORE, **WHY}),
        ("POST", "/revisions/rollback", None, {"to": base, **WHY}),
        ("POST", "/revisions", None, {"base": base + 2, "changes": MORE, **WHY}),
        ("POST", "/scheduled", None, {"changes": {"linear.alpha": 0.4}, "at": LATER, **WHY}),
        ("POST", "/scheduled/{id}/cancel",
         lambda seen: f"/scheduled/{seen['/scheduled']['id']}/cancel", WHY),
        ("POST", "/shadow/start", None, {"changes": {"linear.alpha": 0.3}, **WHY}),
        ("POST", "/shadow/stop", None, WHY),
        ("POST", "/canary/start", None, {"changes": {"linear.alpha": 0.3}, "share": 0.1, **WHY}),
        ("POST", "/canary/stop", None, WHY),
        ("POST", "/lab/jobs", None, lab),
        ("DELETE", "/lab/jobs/{id}", lambda seen: f"/lab/jobs/{seen['/lab/jobs']['id']}", None),
        ("POST", "/migrations", None, {"prefix": "0" * 16, "target": "a", **WHY}),
        ("POST", "/migrations/{id}/cancel", "/migrations/none/cancel", WHY),
        ("POST", "/alerts/{name}/acknowledge", "/alerts/none/acknowledge", {"note": "known"}),
        ("POST", "/views", None, {"name": "mine", "page": "slo", **WHY}),
        ("DELETE", "/views/{id}", lambda seen: f"/views/{seen['/views']['id']}", None),
        ("POST", "/users", None, user),
        ("PATCH", "/users/{name}", "/users/ada", {"role": "operator"}),
        ("POST", "/tokens", None, {"name": "ci"}),
        ("DELETE", "/tokens/{id}", lambda seen: f"/tokens/{seen['/tokens']['id']}", None),
        ("POST", "/keys", None, {"name": "k", "tenant": "acme"}),
        ("DELETE", "/keys/{id}", lambda seen: f"/keys/{seen['/keys']['id']}", None),
    ]  # fmt: skip


REFUSED = ("/migrations", "/migrations/{id}/cancel", "/alerts/{name}/acknowledge")
"""There is nothing to act on in this world; attempts are entered as well."""


async def send(w, method, path, body):
    url = f"{w.url}/admin/v1{path}"
    async with w.client.request(method, url, json=body) as answer:
        raw = await answer.read()
        return answer.status, json.loads(raw) if raw else {}


async def test_every_act_leaves_one_entry_that_says_who_and_why(tmp_path):
    with engines(Engine("a")) as made:
        async with controlled(made, tmp_path) as w:
            store, seen = w.service.store, {}
            for method, route, path, body in acts(w):
                before = len(store.audit(limit=500))
                where = path(seen) if callable(path) else path or route
                status, answer = await send(w, method, where, body)
                assert status < 300 or route in REFUSED, (route, answer)
                seen[route] = answer
                new = store.audit(limit=500)[: len(store.audit(limit=500)) - before]
                new = [e for e in new if e.action != "lab.done"]  # at its end, by itself
                assert 1 <= len(new) <= (2 if route in REFUSED else 1), (route, new)
                entry = new[-1]
                assert (entry.actor, entry.kind, entry.peer) == (
                    "anonymous", "anonymous", "127.0.0.1",
                ), route  # fmt: skip
                told = (body or {}).get("reason", "sold" if "sold" in where else "")
                assert told in entry.reason, route
            covered = {(m, f"/admin/v1{r}") for m, r, _, _ in acts(w)}
            acting = {
                (m, p) for m, p, _ in routes(w.service)
                if m != "GET" and p.rpartition("/")[2] not in (*READING, "preview")
            }  # fmt: skip
            assert covered == acting
            assert store.verify_audit()[1] is None
            changed = store.audit(action="node.change")[0]
            assert json.loads(changed.before)["weight"] == 1.0
            assert json.loads(changed.after) == {"weight": 2.5}
            tuned = store.audit(action="tunables.changed")[-1]
            assert list(json.loads(tuned.after)) == ["linear.alpha"]


async def test_without_an_audit_nothing_happens(tmp_path):
    with engines(Engine("a")) as made:
        async with controlled(made, tmp_path) as w:
            engine = create_engine(f"sqlite:///{tmp_path}/records.db")
            store = w.service.store
            entries, said = len(store.audit()), (store.standings(), store.nodes())
            with engine.begin() as connection:
                connection.execute(text("ALTER TABLE admin_audit RENAME TO elsewhere"))
            revision = w.service.conductor.revision
            for method, route, path, body in acts(w):
                if callable(path) or route in ("/shadow/stop", "/canary/stop"):
                    continue  # needs what was not done
                if path and path.startswith("/nodes/n"):
                    path = path.replace("/nodes/n", "/nodes/a")
                if route in ("/users/{name}", "/nodes/{node}/undrain", "/revisions"):
                    continue
                status, answer = await send(w, method, path or route, body)
                assert status in (503, 422, 404), (route, status, answer)
                assert status == 503 or route in ("/revisions/rollback", *REFUSED), route
            with engine.begin() as connection:
                connection.execute(text("ALTER TABLE elsewhere RENAME TO admin_audit"))
            engine.dispose()
            node = (await send(w, "GET", "/nodes/a", None))[1]
            assert node["weight"] == 1.0 and not node["draining"]
            assert node["breaker"]["state"] == "closed"
            assert w.service.conductor.revision == revision
            state = (await send(w, "GET", "/state", None))[1]
            assert len(state["nodes"]) == 1 and state["breaker"]["state"] == "closed"
            assert (await send(w, "GET", "/users", None))[1] == {"users": []}
            assert len((await send(w, "GET", "/audit", None))[1]["entries"]) == entries
            assert (store.standings(), store.nodes()) == said
