"""Nodes, Cache, SLO and Flow run as scripts against a real service, in each condition."""

from __future__ import annotations

import pytest
from stack import Stack, free_port
from test_control_pages import act, opened, rows, until
from test_pages import charts, text

pytestmark = pytest.mark.timeout(240)
ALL = ("nodes", "cache", "slo", "flow")


@pytest.fixture(scope="module")
def hot(stack: Stack) -> str:
    """Key of a prefix that several requests shared, once the index lists it."""
    stack.send(6, base=20_000, tenant="hot-team")

    def found() -> list[str]:
        prefixes = stack.get("/cache/hot", limit=50)["prefixes"]
        return [p["key"] for p in prefixes if p["holders"] and p["hits"] >= 4]

    until(found)
    return found()[0]


@pytest.mark.parametrize("page", ALL)
def test_pages_of_an_empty_service_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, empty_stack: Stack, page: str
) -> None:
    at = opened(monkeypatch, empty_stack.url, page)
    assert "No node is registered" in text(at)
    assert charts(at) == 0


@pytest.mark.parametrize("page", ALL)
def test_pages_without_a_service_name_its_address(
    monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    at = opened(monkeypatch, url, page)
    assert "does not answer" in text(at)
    assert url in text(at)


def test_all_nodes_are_found_and_filtered(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    at = opened(monkeypatch, stack.url, "nodes")
    alt = "All nodes with state, load, latency and cache"
    assert {r["Node"] for r in rows(at, alt)} == {"prefill-1", "decode-2", "both-3"}
    at.text_input(key="find").set_value("rack-b").run()
    assert [r["Node"] for r in rows(at, alt)] == ["decode-2"]
    at.segmented_control(key="only").set_value("not taking requests").run()
    assert "No node matches" in text(at)
    assert not at.exception


def test_one_node_in_full(monkeypatch: pytest.MonkeyPatch, stack: Stack, hot: str) -> None:
    holder = stack.get(f"/cache/prefixes/{hot}")["holders"][0]["node"]
    at = opened(monkeypatch, stack.url, "nodes", node=holder)
    found = text(at)
    assert found.count("class='cd-tile ") == 6
    assert "its events are complete" in found
    keys = {r["Prefix"] for r in rows(at, "Hot prefixes with tokens, accesses and holders")}
    assert hot in keys
    facts = {r["Fact"]: r["Value"] for r in rows(at, "What was registered or discovered")}
    assert facts["Models"] == "demo"
    assert charts(at) >= 1
    assert {"node_cordon", "node_drain", "node_remove"} <= {b.key for b in at.button}


def test_a_viewer_sees_why_acts_are_disabled(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    at = opened(monkeypatch, stack.url, "nodes", role="viewer", node="prefill-1")
    drain = next(b for b in at.button if b.key == "node_drain")
    assert drain.disabled
    assert "role operator" in drain.help


def test_a_cordoned_node_shows_who_and_why(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    act(stack, "/nodes/both-3/cordon", reason="fan is loud", author="ann")
    try:
        at = opened(monkeypatch, stack.url, "nodes", node="both-3")
        until(lambda: "node_uncordon" in {b.key for b in at.run().button})
        assert "fan is loud" in text(at)
        keys = {b.key for b in at.button}
        assert "node_drain" in keys
        assert "node_cordon" not in keys
    finally:
        act(stack, "/nodes/both-3/uncordon", reason="mended")


def test_an_unknown_node_is_said_to_be_gone(monkeypatch: pytest.MonkeyPatch, stack: Stack) -> None:
    at = opened(monkeypatch, stack.url, "nodes", node="nobody")
    assert "nobody is not in the fleet" in text(at)


def test_the_tree_is_drawn_and_has_a_table(
    monkeypatch: pytest.MonkeyPatch, stack: Stack, hot: str
) -> None:
    at = opened(monkeypatch, stack.url, "cache")
    assert charts(at) == 1
    assert rows(at, "Runs of blocks")
    below = opened(monkeypatch, stack.url, "cache", trail=hot)
    assert hot in text(below)
    assert rows(below, "Nodes that hold the prefix")


def test_a_pasted_prompt_is_found(monkeypatch: pytest.MonkeyPatch, stack: Stack, hot: str) -> None:
    at = opened(monkeypatch, stack.url, "cache")
    prompt = [*range(20_100, 20_740)]
    at.text_area(key="pasted").set_value(str(prompt))
    next(b for b in at.button if b.label == "Look it up").click().run()
    assert "The longest match: 640 tokens (100 %)" in text(at)
    assert rows(at, "Matches by node")[0]["Matched tokens"] == 640
    at.text_area(key="pasted").set_value("nobody has ever asked for this")
    next(b for b in at.button if b.label == "Look it up").click().run()
    assert "Nobody holds a beginning" in text(at)
    assert not at.exception


def test_hot_prefixes_replication_and_migrations(
    monkeypatch: pytest.MonkeyPatch, stack: Stack, hot: str
) -> None:
    at = opened(monkeypatch, stack.url, "cache", view="Hot prefixes", prefix=hot)
    assert hot in {r["Prefix"] for r in rows(at, "Hot prefixes with tokens, accesses and holders")}
    holders = {h["node"] for h in stack.get(f"/cache/prefixes/{hot}")["holders"]}
    assert {r["Node"] for r in rows(at, "Nodes that hold the prefix")} == holders
    at.segmented_control(key="view").set_value("Replication").run()
    assert charts(at) == 2
    at.segmented_control(key="view").set_value("Migrations").run()
    assert "Migration is off" in text(at)
    assert not at.exception


def test_limits_by_tenant_and_calibration(
    monkeypatch: pytest.MonkeyPatch, stack: Stack, hot: str
) -> None:
    at = opened(monkeypatch, stack.url, "slo")
    alt = "Attainment by tenant and model"

    def counted() -> bool:
        tables = [d.proto.alt for d in at.run().dataframe]
        return alt in tables and any(
            r["Tenant"] == "hot-team" and r["Requests"] >= 6 for r in rows(at, alt)
        )

    until(counted)
    assert text(at).count("class='cd-tile ") == 6
    assert charts(at) == 4
    assert not at.exception


def test_the_flow_and_its_table(monkeypatch: pytest.MonkeyPatch, stack: Stack, hot: str) -> None:
    at = opened(monkeypatch, stack.url, "flow")
    alt = "Flow by tenant, model and nodes"
    until(lambda: alt in [d.proto.alt for d in at.run().dataframe])
    placed = [r for r in rows(at, alt) if r["Prefill"] != "✕ refused"]
    assert placed and all(r["Decode"] for r in placed)
    at.segmented_control(key="measure").set_value("tokens computed").run()
    assert charts(at) == 1
    assert "What comes next" in text(at)
    expected = "Forecast by model and tenant class"
    until(lambda: expected in [d.proto.alt for d in at.run().dataframe])
    assert {"requests /s", "prompt tokens /s"} <= {r["What"] for r in rows(at, expected)}
    assert not at.exception


# -- stored records while the service is down --------------------------------------------------


@pytest.mark.parametrize("page", ["slo", "flow", "cache"])
def test_history_opens_while_the_service_is_down(
    monkeypatch: pytest.MonkeyPatch, stack: Stack, hot: str, page: str
) -> None:
    stack.start_history()
    monkeypatch.setenv("CONDUCTOR_HISTORY_URL", stack.history_url)
    url = f"http://127.0.0.1:{free_port()}"
    at = opened(monkeypatch, url, page, range="1h")
    found = text(at)
    assert "does not answer" in found
    assert "Read from the read-only instance" in found
    if page == "cache":  # its samples are stored once a minute
        assert "Replication over time" in found
        return
    assert charts(at) >= 1
    assert "hot-team" in str([d.value.to_dict() for d in at.dataframe])
