"""Control and history pages run as scripts against a real service, in each condition."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest
from stack import Stack, free_port
from streamlit.testing.v1 import AppTest
from test_pages import APP, charts, text

from dashboard import session
from dashboard.session import User

pytestmark = pytest.mark.timeout(240)
ALL = ("tuning", "breaker", "lab", "changes", "storage", "alerts", "settings")


def opened(
    monkeypatch: pytest.MonkeyPatch, url: str, page: str, *, role: str = "", **params: str
) -> AppTest:
    """A page as its address opens it; `role` is the reader's."""
    monkeypatch.setenv("CONDUCTOR_URL", url)
    if role:
        monkeypatch.setattr(session, "user", lambda: User(name="vi", role=role))
    at = AppTest.from_file(APP, default_timeout=60)
    at.run()
    for name, value in params.items():
        at.query_params[name] = value
    at.switch_page(f"views/{page}.py").run()
    assert not at.exception
    return at


def rows(at: AppTest, alt: str) -> list[dict[str, object]]:
    """Rows of a table by the words that describe it."""
    found = next(d for d in at.dataframe if d.proto.alt == alt)
    return list(found.value.to_dict("records"))


def act(stack: Stack, path: str, **body: object) -> dict[str, object]:
    answer = httpx.post(f"{stack.url}/admin/v1{path}", json=body, trust_env=False)
    assert answer.status_code < 300, answer.text
    return dict(answer.json())


def until(done: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_draft_is_previewed_and_stays_in_the_address(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    until(lambda: stack.get("/decisions", limit=5)["rows"])
    at = opened(monkeypatch, stack.url, "tuning", group="admission")
    assert "the draft is kept in the address" in text(at)
    at.number_input(key="set-admission.ttft_slack").set_value(2.5).run()
    assert at.query_params["draft"] == "admission.ttft_slack:2.5"
    assert at.slider(key="slide-admission.ttft_slack").value == 2.5
    diff = rows(at, "Live against draft")[0]
    assert (diff["Live"], diff["Draft"]) == ("1 ratio", "2.5 ratio")
    assert "What it would do" in text(at)
    assert not at.button(key="review_open").disabled
    at.button(key="review_open").click().run()
    assert at.button(key="review_apply").label == "Apply"
    assert not at.exception
    at.button(key="discard").click().run()
    assert "draft" not in at.query_params


def test_a_viewer_sees_parameters_and_cannot_change_them(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    at = opened(monkeypatch, stack.url, "tuning", role="viewer", group="linnear",
                draft="linear.alpha:0.9", base="1")  # fmt: skip
    assert "Not used: group=linnear" in text(at)
    at.selectbox(key="group").set_value("linear").run()
    assert "Not used: group=linnear" in text(at)  # until it was seen
    at.button(key="unheeded_close").click().run()
    assert "Not used" not in text(at)
    assert "You can look, not act" in text(at)
    assert at.slider(key="slide-linear.alpha").disabled
    assert at.button(key="review_open").disabled
    assert "needs the role operator" in at.button(key="review_open").help


def test_a_draft_of_an_older_revision_is_kept_and_can_be_put_on_the_live_one(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    live = stack.get("/tunables")["revision"]
    at = opened(monkeypatch, stack.url, "tuning", draft="linear.alpha:0.8", base=str(live))
    made = act(stack, "/revisions", changes={"linear.beta": 0.4}, base=live, reason="other hand")
    try:
        at.run()
        assert f"Revision {made['revision']} became live since" in text(at)
        assert at.button(key="review_open").disabled
        at.button(key="rebase").click().run()
        assert "became live since" not in text(at)
        assert rows(at, "Live against draft")[0]["Parameter"] == "linear.alpha"
        assert not at.button(key="review_open").disabled
        listed = rows(at, "Revisions, newest first")
        assert listed[0]["Reason"] == "other hand"
        assert "linear.beta 0.5 → 0.4" in str(listed[0]["Changes"])
        at.query_params["revision"] = str(made["revision"])
        at.run()
        assert {r["Measure"] for r in rows(at, "Measured before and after the revision")} >= {
            "TTFT p99",
            "Cache hit",
        }
        assert not at.exception
    finally:
        act(stack, "/revisions/rollback", reason="back")


def _newest(stack: Stack, kind: str) -> str:
    events = stack.get("/history", kind=kind, limit=1)["events"]
    return str(events[0]["kind"]) if events else ""


def test_breakers_are_tripped_and_reset_and_the_history_says_so(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    why = {"reason": "a drill", "author": "op"}
    act(stack, "/nodes/both-3/breaker", action="trip", seconds=300, **why)
    act(stack, "/breaker", action="trip", **why)
    try:
        until(lambda: _newest(stack, "global_breaker.*") == "global_breaker.tripped")
        at = opened(monkeypatch, stack.url, "breaker", range="1h")
        until(lambda: "tripped by hand" in text(at.run()))
        until(lambda: rows(at.run(), "Breaker of every node")[0]["Node"] == "both-3")
        found = text(at)
        assert "requests go round robin" in found
        assert "asks for more than its holders" in found or "not calm" in found
        first = rows(at, "Breaker of every node")[0]
        assert (first["Node"], first["Breaker"]) == ("both-3", "✕ tripped by hand")
        assert (first["Reason"], first["By"]) == ("a drill", "op")
        moved = rows(at, "Transitions, newest first")[:2]
        assert {m["Machine"] for m in moved} == {"Node breaker", "Global breaker"}
        assert {m["To"] for m in moved} == {"tripped"}
        at.selectbox(key="machine").set_value("node breakers").run()
        assert {m["Of"] for m in rows(at, "Transitions, newest first")} == {"both-3"}
        at.button(key="breaker_reset").click().run()
        assert at.selectbox(key="breaker_target").value == "global breaker"
        assert at.button(key="breaker_do").label == "Close the global breaker"
        assert not at.exception
    finally:
        act(stack, "/nodes/both-3/breaker", action="reset", **why)
        act(stack, "/breaker", action="reset", **why)
    viewer = opened(monkeypatch, stack.url, "breaker", role="viewer")
    assert all(viewer.button(key=f"breaker_{a}").disabled for a in ("trip", "reset", "hold"))


def test_a_decision_is_weighed_again_and_a_selection_compared(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    stack.send(8, base=12_000, tenant="odd")
    until(lambda: len(stack.get("/decisions", tenant="odd")["rows"]) == 8)
    chosen = stack.get("/decisions", tenant="odd")["rows"][0]
    at = opened(monkeypatch, stack.url, "decisions", decision=chosen["id"], tenant="odd",
                different="true")  # fmt: skip
    compared = rows(at, "What is different")
    assert {"Dimension": "Tenant", "Value": "odd"}.items() <= next(
        r for r in compared if r["Dimension"] == "Tenant" and r["In words"] == "▲ more often here"
    ).items()
    at.selectbox(key="what_if_policy").set_value("linear").run()
    at.number_input(key="what_if-linear.alpha").set_value(0.9).run()
    at.button(key="what_if_do").click().run()
    assert not at.exception
    weighed = rows(at, "Candidates weighed again")
    assert sum("chosen" in str(r["Mark"]) for r in weighed) in (1, 2)
    assert "It would go to" in text(at)
    assert "Reading it is entered in the administrative audit" in text(at)
    assert not stack.get("/audit", action="prompt.read")["entries"]
    at.button(key="prompt_button").click().run()
    assert "[680 token ids]" in [code.value for code in at.code]
    assert stack.get("/audit", action="prompt.read")["entries"][0]["target"] == chosen["id"]
    at.text_input(key="rev").set_value("999").run()
    assert "No decision matches these filters" in text(at)


def test_an_experiment_runs_and_its_best_point_becomes_a_draft(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    at = opened(monkeypatch, stack.url, "lab")
    at.button(key="lab_run").click().run()
    assert "Reason: say why" in text(at)
    at.number_input(key="lab_requests").set_value(60)
    at.multiselect(key="lab_arms").set_value(["round_robin"])
    at.selectbox(key="lab_policy").set_value("linear").run()
    at.text_input(key="lab_axis-linear.alpha").set_value("0.2:0.8").run()
    assert "expected FROM:TO:STEP" in text(at)
    at.text_input(key="lab_axis-linear.alpha").set_value("0.2, 0.8")
    at.text_input(key="lab_reason").set_value("a test of it").run()
    assert at.button(key="lab_run").label == "Run 4 runs"
    at.button(key="lab_run").click().run()
    (name,) = (
        at.query_params["job"]
        if isinstance(at.query_params["job"], list)
        else [at.query_params["job"]]
    )
    until(lambda: stack.get(f"/lab/jobs/{name}")["state"] not in ("waiting", "running"), 90)
    at.run()
    assert not at.exception
    points = rows(at, "All configurations with their figures")
    assert points[0]["Configuration"] == "live"
    assert {p["Configuration"] for p in points[1:]} == {
        "round_robin", "linear: alpha 0.2", "linear: alpha 0.8",
    }  # fmt: skip
    at.selectbox(key=f"lab_pick_{name}").set_value("linear: alpha 0.8").run()
    at.button(key="lab_promote").click().run()
    assert not at.exception
    drafted = {r["Parameter"] for r in rows(at, "Live against draft")}
    assert drafted == {"policy", "linear.alpha"}
    viewer = opened(monkeypatch, stack.url, "lab", role="viewer", job=name)
    assert viewer.button(key="lab_promote").disabled
    assert viewer.button(key="lab_run").disabled


def test_what_changed_is_told_with_who_and_why(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    live = stack.get("/tunables")["revision"]
    made = act(stack, "/revisions", changes={"linear.beta": 0.3}, base=live, reason="less idle",
               author="ada")  # fmt: skip
    act(stack, "/revisions/rollback", reason="back again", author="bo")
    at = opened(monkeypatch, stack.url, "changes", range="1h", lane="Configuration")
    found = rows(at, "Changes, newest first")
    assert [r["By"] for r in found[:2]] == ["bo", "ada"]
    assert "linear.beta 0.5 → 0.3" in str(found[1]["Details"])
    assert charts(at) == 1
    at.text_input(key="holds").set_value("less idle").run()
    assert [r["Reason"] for r in rows(at, "Changes, newest first")] == ["less idle"]
    event = next(
        e for e in stack.get("/history", kind="tunables.changed")["events"]
        if e["data"].get("revision") == made["revision"]
    )  # fmt: skip
    at.query_params["event"] = event["id"]
    at.run()
    assert rows(at, "What changed") == [
        {"Parameter": "linear.beta", "Before": "0.5", "After": "0.3"}
    ]
    at.text_input(key="holds").set_value("nothing like it").run()
    assert "Nothing changed that matches" in text(at)


def test_storage_and_health_of_a_working_service(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    at = opened(monkeypatch, stack.url, "storage")
    found = text(at)
    assert "schema up to date" in found and "stores" in found
    assert "Decision time, p99" in found
    assert rows(at, "Processes that share the database")[0]["State"] == "✓ alive"
    assert {"decisions"} <= {r["Table"] for r in rows(at, "Rows by table")}
    assert "store.retention" in {r["Job"] for r in rows(at, "Periodic work and how it went")}


def _alert(stack: Stack, name: str) -> dict[str, object]:
    return next(a for a in stack.get("/alerts")["alerts"] if a["name"] == name)


def test_alerts_show_rules_and_what_fires(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    live = stack.get("/tunables")["revision"]
    act(stack, "/revisions", changes={"alerts.loop_lag_s": 0.001}, base=live, reason="must fire")
    try:
        until(lambda: _alert(stack, "loop_lag")["state"] in ("pending", "firing"))
        at = opened(monkeypatch, stack.url, "alerts")
        found = rows(at, "Every alert rule and how it stands")
        lag = next(r for r in found if r["Alert"] == "loop_lag")
        assert lag["State"] in ("▲ may fire soon", "✕ fires")
        assert "loop_lag above" in text(at)
        at.button(key="ack-loop_lag").click().run()
        assert at.text_input(key="ack_note").value == ""
        viewer = opened(monkeypatch, stack.url, "alerts", role="viewer")
        assert viewer.button(key="ack-loop_lag").disabled
    finally:
        act(stack, "/revisions/rollback", reason="back")


def test_settings_show_identities_to_administrators_only(
    monkeypatch: pytest.MonkeyPatch, stack: Stack
) -> None:
    password = "a long enough pass phrase 7"
    act(stack, "/users", name="bo", role="operator", password=password, reason="new hand")
    made = act(stack, "/tokens", name="ci", role="viewer", reason="for the build")
    at = opened(monkeypatch, stack.url, "settings")
    assert rows(at, "Users")[0]["User"] == "bo"
    tokens = rows(at, "Tokens and sessions")
    assert "ci" in {t["Name"] for t in tokens}
    assert str(made["token"]) not in str(tokens)
    acts = rows(at, "Administrative acts, newest first")
    assert {"new hand", "for the build"} <= {str(a["Reason"]) for a in acts}
    at.button(key="audit_verify").click().run()
    assert "are as they were written" in text(at)
    at.button(key="new_token").click().run()
    assert at.text_input(key="token_name").value == ""
    viewer = opened(monkeypatch, stack.url, "settings", role="operator")
    assert "need the role admin" in text(viewer)
    assert len(viewer.dataframe) == 0


@pytest.mark.parametrize("page", ALL)
def test_pages_say_that_the_service_is_down(monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    at = opened(monkeypatch, url, page)
    assert "does not answer" in text(at)
    assert len(at.dataframe) == 0
