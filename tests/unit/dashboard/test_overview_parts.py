"""Changes on charts, racks in the node picture, links of problems, the list of pages."""

from __future__ import annotations

from datetime import UTC, timedelta

from dashboard_samples import NOON, node, point, series, state

from core import wire
from dashboard import navigation
from dashboard.overview import models as vm
from dashboard.parts import figures
from dashboard.parts.marks import MARKS_MAX, Mark, marks
from dashboard.parts.theme import LIGHT


def event(kind: str, seconds: int = 0, node_id: str = "", **data: object) -> wire.EventView:
    at = NOON + timedelta(seconds=seconds)
    return wire.EventView(id=str(seconds), at=at, kind=kind, node=node_id, data=data)


def test_changes_are_marked_and_what_comes_and_goes_is_not() -> None:
    found = marks(
        [
            event("node_breaker.open", 9, "a", reason="errors"),
            event("trust.live", 8, "a"),
            event("health.suspect", 7, "a"),
            event("node.running", 6, "a", before="running", cause="restarted"),
            event("health.dead", 6, "a", before="healthy", cause="probe"),
            event("node.cordoned", 5, "b", author="ann", reason="fan"),
            event("tunables.changed", 1, author="bob", reason="x" * 200),
        ]
    )
    assert [m.at.second for m in found] == [1, 5, 6, 9]
    assert found[1].words == "node: cordoned, b, by ann, fan"
    assert found[2].words == "health: dead, a"
    assert found[3].words == "node breaker: open, a, errors"
    assert len(found[0].words) == 90
    assert len(marks([event("node.x", n) for n in range(99)])) == MARKS_MAX


def test_a_start_is_one_change_and_so_is_one_act_on_many_nodes() -> None:
    found = marks(
        [
            *[event("node_breaker.open", 9, n, reason="errors") for n in "dcba"],
            event("node_breaker.open", 6, "e", reason="errors"),
            *[event("node.cordoned", 5, n, author="ann", reason="fan") for n in "ba"],
            event("node.cordoned", 5, "c", author="bob", reason="fan"),
            event("service.started", 2, nodes=8),
            event("node.restored", 1, "f", origin="api"),
            event("node.left_out", 1, "g", origin="file"),
            *[event("node.registered", 0, n, origin="file") for n in "cba"],
            event("node.registered", 0, "h", origin="dns"),
        ]
    )
    assert [m.words for m in found] == [
        "node: registered, h",
        "service: started",
        "node: cordoned, c, by bob, fan",
        "node: cordoned, a, b, by ann, fan",
        "node breaker: open, e, errors",
        "node breaker: open, 4 nodes, errors",
    ]


def test_marks_are_lines_and_signs_and_their_trace_is_always_there() -> None:
    points = series(point(0), point(1))
    plain = figures.slo_ratio(points, LIGHT, zone=UTC)
    marked = figures.slo_ratio(points, LIGHT, zone=UTC, marks=[Mark(NOON, "node: cordoned")])
    assert len(plain["data"]) == len(marked["data"])
    assert plain["data"][-1]["x"] == plain["layout"]["shapes"] == []
    assert marked["data"][-1]["hovertext"] == ["node: cordoned"]
    assert marked["layout"]["shapes"][0]["x0"] == "2026-03-01T12:00:00"
    assert "1 changes are marked" in marked["layout"]["meta"]


def test_nodes_of_a_rack_stand_together_with_lines_between_racks() -> None:
    load = {"a": 0.9, "b": 0.1, "c": 0.5, "d": 0.2}
    racks = {"a": "r1", "b": "r2", "c": "r1"}
    figure = figures.load_heat(
        series(point(0, load=load)), list(load), LIGHT, zone=UTC, span=False, racks=racks
    )
    (trace,) = figure["data"]
    assert trace["y"] == ["r2 · b", "r1 · c", "r1 · a", "no rack · d"]
    assert trace["z"] == [[10], [50], [90], [20]]
    assert [s["y0"] for s in figure["layout"]["shapes"]] == [0.5, 2.5]
    flat = figures.load_heat(series(point(0, load=load)), list(load), LIGHT, zone=UTC, span=False)
    assert flat["data"][0]["y"] == ["b", "d", "c", "a"]
    assert flat["layout"]["shapes"] == []


def test_of_a_very_large_fleet_the_busiest_are_drawn() -> None:
    load = {f"n{i}": i / 400 for i in range(400)}
    figure = figures.load_heat(series(point(0, load=load)), list(load), LIGHT, zone=UTC, span=False)
    rows = figure["data"][0]["y"]
    assert len(rows) == figures.HEAT_ROWS_MAX
    assert "n399" in rows
    assert "n0" not in rows


def test_problems_lead_to_where_they_are_looked_into() -> None:
    fleet = state(node("gpu-1"), node("gpu-10"))
    assert vm.problem_link("dead: gpu-10", fleet) == ("nodes", {"node": "gpu-10"}, "Open gpu-10")
    assert vm.problem_link("the global breaker is open", fleet) == ("breaker", {}, "Open Breaker")
    found = vm.problem_link("decisions cannot be stored", fleet)
    assert found is not None and found[0] == "storage"
    assert vm.problem_link("something else", fleet) is None


def test_pages_are_listed_once_and_those_that_are_missing_are_left_out() -> None:
    names = [e.name for entries in navigation.SECTIONS.values() for e in entries]
    assert len(names) == len(set(names)) >= 13
    shown = [e.name for entries in navigation.present().values() for e in entries]
    assert {"overview", "nodes", "cache", "slo", "flow", "decisions"} <= set(shown)
    assert navigation.address("overview") == "/"
    assert navigation.address("nodes") == "/nodes"
    assert navigation.view("nodes") == "views/nodes.py"
    assert navigation.view("nothing") is None
