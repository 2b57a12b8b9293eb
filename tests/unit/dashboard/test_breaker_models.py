"""Breakers and the detector's evidence as rows and words."""

from __future__ import annotations

from dashboard_samples import NOON, node, state

from core import wire
from dashboard.breaker import models as bm
from dashboard.breaker.models import Act
from dashboard.parts.theme import DARK


def hotspots(*groups: wire.HotGroupView, enabled: bool = True) -> wire.HotspotView:
    return wire.HotspotView(
        enabled=enabled, window_s=60, requests_min=20, cooldown_s=10, trips_to_open=5, open_s=30,
        group_blocks=4, groups=list(groups), breaker=wire.BreakerView(),
    )  # fmt: skip


def group(name: str, **more: object) -> wire.HotGroupView:
    given: dict[str, object] = {
        "group": name, "state": "calm", "requests": 40, "share": 0.4, "holders": 1, "nodes": 4,
        "holder_share": 0.25, "run": 1, "run_limit": 2, "firings": 0, **more,
    }  # fmt: skip
    return wire.HotGroupView.model_validate(given)


def test_acts_say_what_is_missing_and_what_is_to_be_typed() -> None:
    assert Act("", "trip", None).confirm == "ROUND ROBIN"
    assert Act("a", "trip", 5).confirm == "a"
    assert Act("a", "trip", 5).words == "Trip node a for 5 min"
    assert Act("", "reset", None).confirm == ""
    assert Act("", "reset", 5).missing
    assert Act("", "hold", None).missing
    assert not Act("", "hold", 60).missing


def test_the_global_breaker_says_what_it_does_to_traffic() -> None:
    closed = bm.breaker_tile(wire.BreakerView())
    assert (closed.level, closed.word) == ("ok", "the policy places every request")
    tripped = bm.breaker_tile(
        wire.BreakerView(state="tripped", reason="drill", actor="ada", until_s=90)
    )
    assert tripped.level == "bad"
    assert tripped.sub == "drill, by ada, ends in 90 s"


def test_nodes_that_are_out_come_first() -> None:
    out = node("b", breaker=wire.BreakerView(state="open", until_s=10, streak=2))
    rows = bm.node_rows([node("a"), out])
    assert [r["Node"] for r in rows] == ["b", "a"]
    assert (rows[0]["Breaker"], rows[0]["By"]) == ("✕ open", "itself")
    closed = [node("a"), node("b", health="dead"), node("c", draining=True)]
    means = [r["Means"] for r in bm.node_rows(closed)]
    assert means == ["takes requests", "none: the node is dead", "none: the node drains"]
    tiles = bm.node_tiles(state(node("a"), out))
    assert (tiles[0].value, tiles[0].sub) == ("1", "b")


def test_the_detector_names_the_hottest_group() -> None:
    hot = group("00000000deadbeef", state="filtered", excluded=["a"], ends_in_s=4)
    level, words = bm.detector_words(hotspots(hot, group("0" * 16)))
    assert level == "warn"
    assert "40 % of the requests on 1 of 4 nodes" in words
    assert bm.detector_words(hotspots(enabled=False))[0] == "none"
    assert bm.detector_words(hotspots(group("0" * 16)))[0] == "ok"
    row = bm.group_rows(hotspots(hot))[0]
    assert (row["Firings"], row["In a row on holders"]) == ("0 of 5", "1 of 2")
    figure = bm.group_figure(hotspots(hot), DARK)
    assert "40.0 % of requests, holders 25.0 %" in figure["layout"]["meta"]


def test_transitions_carry_their_evidence() -> None:
    event = wire.EventView(
        id="1", at=NOON, kind="hotspot.alert",
        data={"before": "calm", "cause": "share_above_holders", "reason": "", "actor": "",
              "group": "00000000deadbeef", "requests": 40, "holders": 1},
    )  # fmt: skip
    row = bm.transition_rows([event])[0]
    assert (row["Machine"], row["Of"], row["From"], row["To"]) == (
        "Hotspot detector", "00000000", "calm", "alert",
    )  # fmt: skip
    assert row["Evidence"] == "requests 40, holders 1"


def test_thresholds_are_those_in_force() -> None:
    item = wire.TunableView(path="breaker.open_s", value=45.0, default=30.0, unit="s")
    assert bm.rule_rows([item])[0]["Value"] == "45 s"
