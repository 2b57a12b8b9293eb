"""The flow of requests from tenants to nodes."""

from __future__ import annotations

from dashboard_samples import NOON

from core import wire
from dashboard.flow import models as fm
from dashboard.flow.forecast import forecast_rows, forecast_words
from dashboard.parts.theme import DARK, LIGHT


def shares(*groups: dict[str, object]) -> wire.Shares:
    made = [wire.ShareView.model_validate({"model": "m", "decisions": 1, **g}) for g in groups]
    return wire.Shares(since=NOON, until=NOON, decisions=len(made), groups=made)


def way(tenant: str, prefill: str, decode: str, **more: object) -> dict[str, object]:
    return {"tenant": tenant, "prefill_node": prefill, "decode_node": decode, **more}


def test_links_add_up_per_pair_of_neighbours_and_refusals_end_early() -> None:
    found = fm.graph(
        shares(
            way("a", "p", "d", decisions=5),
            way("b", "p", "d", decisions=2),
            way("a", "p", "p", decisions=1),
            way("", "", "", decisions=3),
        ),
        "requests",
    )
    assert found.boxes == (
        (0, "(no tenant)"), (0, "a"), (0, "b"), (1, "p"), (1, "refused"), (2, "d"), (2, "p"),
    )  # fmt: skip
    assert set(found.links) == {(0, 4, 3), (1, 3, 6), (2, 3, 2), (3, 5, 7), (3, 6, 1)}
    assert found.total == 11


def test_what_is_measured_can_be_tokens() -> None:
    group = way("a", "p", "d", decisions=5, prompt_tokens=100, match_tokens=80)
    assert fm.graph(shares(group), "prompt tokens").links[0][2] == 100
    assert fm.graph(shares(group), "tokens computed").links[0][2] == 20


def test_a_large_fleet_stays_below_the_links_a_browser_can_draw() -> None:
    groups = [
        way(f"t{t}", f"p{p}", f"d{d}", decisions=t + p + d)
        for t in range(30)
        for p in range(40)
        for d in range(40)
    ]
    found = fm.graph(shares(*groups), "requests")
    assert len(found.links) <= 8 * 16 + 16 * 16
    assert sum(v for a, _, v in found.links if found.boxes[a][0] == 0) == found.total
    assert (0, "other tenants") in found.boxes
    assert (2, "other nodes") in found.boxes


def test_the_diagram_has_a_colour_a_label_and_a_link_for_everything() -> None:
    found = fm.graph(shares(way("a", "p", "d"), way("a", "", "")), "requests")
    for p in (LIGHT, DARK):
        figure = fm.sankey(found, "requests", p)
        (trace,) = figure["data"]
        assert trace["node"]["label"] == ["a", "p", "refused", "d"]
        assert trace["node"]["color"][2] == p.bad
        assert len(trace["link"]["value"]) == len(trace["link"]["color"]) == 3
        assert figure["layout"]["meta"].startswith("2 requests in 3 columns")


def test_the_table_lists_what_the_diagram_merges() -> None:
    first, refused = fm.rows(
        shares(way("a", "p", "d", prompt_tokens=10, match_tokens=5), way("", "", ""))
    )
    assert (first["Reuse"], first["Decode"]) == (0.5, "d")
    assert (refused["Tenant"], refused["Prefill"], refused["Decode"]) == (
        "(no tenant)", "✕ refused", "",
    )  # fmt: skip


def forecast(**more: object) -> wire.ForecastView:
    series = {
        "model": "", "tenant_class": "", "quantity": "prefill_tokens", "now_per_s": 100.0,
        "expected_per_s": 140.0, "error_per_s": 12.0, "persistence_error_per_s": 30.0,
        "compared": 9, "beats_persistence": True,
    }  # fmt: skip
    given = {
        "at": NOON, "enabled": True, "step_s": 5.0, "horizon_s": 30.0, "growth": 1.4,
        "in_use": True, "series": [series], **more,
    }  # fmt: skip
    return wire.ForecastView.model_validate(given)


def test_the_heading_says_whether_all_requests_are_shown() -> None:
    found = shares(way("a", "p", "d"), way("b", "p", "d"))
    assert fm.coverage(found, "12:00") == "all 2 requests of the window"
    part = found.model_copy(update={"complete": False})
    assert fm.coverage(part, "12:00") == "the newest 2 requests, back to 12:00"


def test_the_forecast_stands_beside_its_error() -> None:
    (row,) = forecast_rows(forecast())
    assert (row["Model"], row["What"], row["Better"]) == ("(all)", "prompt tokens /s", "forecast")
    assert (row["Now"], row["Expected"]) == (100.0, 140.0)
    assert (row["Error"], row["Error of persistence"]) == (12.0, 30.0)
    assert "1.40 times" in forecast_words(forecast())


def test_the_forecast_says_why_it_is_not_used() -> None:
    assert "Not used" in forecast_words(forecast(in_use=False))
    assert "switched off" in forecast_words(forecast(enabled=False))
    assert "Nothing came" in forecast_words(forecast(series=[]))


def test_pairs_too_small_to_be_listed_flow_through_the_box_of_other_nodes() -> None:
    listed = [way("a", f"p{n}", f"d{n}", decisions=10) for n in range(20)]
    found = shares(*listed, way("a", "", "", decisions=5, others=True))
    graph = fm.graph(found, "requests")
    flow = {(graph.boxes[a][1], graph.boxes[b][1]): n for a, b, n in graph.links}
    assert flow["a", fm.OTHER_NODES] == 5 * 10 + 5
    assert len([name for column, name in graph.boxes if column == 1]) == fm.NODES_SHOWN
    assert graph.total == 205
    assert fm.rows(found)[-1]["Prefill"] == fm.OTHER_NODES
