"""What the Nodes page shows, from a node's state."""

from __future__ import annotations

from datetime import UTC

import pytest
from dashboard_samples import NOON, node, point, series

from core import wire
from core.domain import Health, Trust
from core.engines.stream_tools import StreamStatus
from core.gateway.signals import signal_view
from core.index.event_stream import Status
from core.index.ingest import IngestStats
from dashboard.nodes import figures as node_figures
from dashboard.nodes import models as node_models
from dashboard.parts.theme import DARK, LIGHT


def drain(**more: object) -> wire.DrainView:
    given = {"state": "draining", "since": NOON, "running": 2, "running_at_start": 8, **more}
    return wire.DrainView.model_validate(given)


def test_nodes_are_found_by_what_people_know_of_them() -> None:
    nodes = [
        node("a", place={"rack": "r7"}, models=["llama"]),
        node("b", eligible=False, note={"text": "Fan is loud", "at": NOON}),
        node("c", warnings=["token mismatch"]),
    ]

    def ids(text: str, only: str = "all") -> list[str]:
        return [n.id for n in node_models.chosen(nodes, text, only)]

    assert ids("") == ["a", "b", "c"]
    assert ids(" R7 ") == ids("llama") == ["a"]
    assert ids("fan") == ["b"]
    assert ids("", node_models.ONLY[1]) == ["b"]
    assert ids("", node_models.ONLY[2]) == ["b", "c"]
    assert ids("nothing") == []
    assert node_models.find(nodes, "c") is nodes[2]
    assert node_models.find(nodes, "x") is None


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, "ok"),
        ({"eligible": False, "health": Health.DEAD}, "bad"),
        ({"eligible": False, "draining": True}, "warn"),
    ],
)
def test_tiles_say_whether_it_takes_requests(changes: dict[str, object], level: str) -> None:
    tiles = node_models.node_tiles(node("a", **changes))
    assert tiles[0].level == level
    assert len(tiles) == 6
    assert all(t.word and t.help for t in tiles)
    dead = node_models.node_tiles(node("a", health="dead"))
    assert [t.level for t in dead[1:3]] == ["none", "none"]


def test_the_signal_says_what_the_stream_brought_and_lost() -> None:
    now = 100.0
    heard = StreamStatus(endpoint="tcp://10.0.0.1:5557", connected=True, last_message_s=97.5)
    heard.state, heard.messages, heard.problem = Status.LIVE, 8, "a gap could not be filled"
    heard.cursor.gaps = 2
    heard.ingest = IngestStats(
        blocks=90, copies=3, orphan_blocks=4, orphans_dropped=1,
        unknown_removed=0, refused=0, ignored=5,
    )  # fmt: skip
    view = signal_view(heard, now)
    told = node_models.signal_words(view)
    assert told == (
        "tcp://10.0.0.1:5557: connected, live, last message 2.5 s ago; a gap could not be filled"
    )
    rows = {str(r["What"]): r["Count"] for r in node_models.signal_rows(view)}
    assert rows["Blocks known"] == 90 and rows["Blocks whose parent is missing"] == 4
    assert rows["Messages received"] == 8 and rows["Gaps in the numbering"] == 2
    assert rows["Events of other ranks or cache groups"] == 5
    assert view.counters.keys() == node_models.STREAM_WORDS.keys(), "every counter has words"


def test_a_node_without_a_stream_says_so() -> None:
    assert node_models.signal_words(wire.SignalView()) == "The node has no event stream."
    assert node_models.signal_rows(wire.SignalView()) == []
    silent = wire.SignalView(endpoint="tcp://a:1", state="unknown")
    assert node_models.signal_words(silent) == "tcp://a:1: not connected, unknown, no message yet"


def test_every_trust_has_words_and_a_level() -> None:
    for trust in Trust:
        assert node_models.TRUST_WORDS[trust.value]
        assert node_models.TRUST_LEVEL[trust.value]
        assert node_models.node_tiles(node("a", trust=trust))[-1].value == trust.value


def test_a_drain_shows_how_far_it_is() -> None:
    share, words = node_models.drain_words(drain(actor="ann", reason="new driver"))
    assert share == 0.75
    assert words == "Draining by ann: new driver. 2 requests on it of 8."
    assert node_models.drain_words(drain(running=0, done=True))[0] == 1.0
    share, words = node_models.drain_words(drain(state="cordoned", running=1))
    assert words.startswith("Cordoned. 1 request on it")


def test_hot_prefixes_without_a_holder_save_nothing() -> None:
    def hot(holders: list[str]) -> wire.HotPrefixView:
        return wire.HotPrefixView(
            key="ab", blocks=2, tokens=32, rate_per_s=2.0, hits=9, holders=holders
        )

    found = wire.HotPrefixes(prefixes=[hot(["a", "b", "c", "d"]), hot([])])
    held, lost = node_models.hot_rows(found)
    assert (held["Tokens saved /s"], held["Holders"], held["On"]) == (64.0, 4, "a, b, c and 1 more")
    assert lost["Tokens saved /s"] == 0.0


def test_gauges_keep_gaps_and_are_told_in_words() -> None:
    readings = wire.Readings(
        node="a",
        since=NOON,
        until=NOON,
        points=[
            wire.ReadingView(at=NOON, running=3, waiting=1, kv_usage=0.4256),
            wire.ReadingView(at=NOON),
        ],
    )
    for p in (LIGHT, DARK):
        kv = node_figures.shares_chart(readings, p, zone=UTC)
        assert kv["data"][0]["y"] == [42.6, None]
        assert kv["layout"]["meta"] == "KV use last 42.6 %, reuse last not reported"
        batch = node_figures.batch_chart(readings, p, zone=UTC)
        assert batch["layout"]["meta"] == "Running last 3, waiting last 1"
    assert node_figures.reading_rows(readings)[-1]["KV use"] == 0.4256
    live = series(point(0, load={"a": 0.5}, per_node={"a": 4}), point(1, per_node={"b": 1}))
    load = node_figures.load_chart(live, "a", LIGHT, zone=UTC)
    assert load["data"][0]["y"] == [4, 0]
    assert load["data"][1]["y"] == [50.0, None]


def test_cost_models_tell_where_they_come_from_and_how_far_they_are_off() -> None:
    fitted = wire.FitView(
        source="fitted", observations=64, coefficients=[0.02, 2e-4, 0.0], error=0.031,
        profile_error=0.44,
    )  # fmt: skip
    young = wire.FitView(source="profile", observations=3, coefficients=[0.0, 0.0, 0.0])
    view = wire.CostView(prefill=fitted, tbt=young)
    prefill, tbt = node_models.cost_rows(view)
    assert (prefill["Off by"], prefill["Profile off by"]) == ("3 %", "44 %")
    assert prefill["Coefficients"] == "fitted to its requests"
    assert tbt["Off by"] == "not known yet"
    assert node_models.cost_formulas(view) == [
        "Prefill, seconds: 0.02 + 0.0002 a token", "Time between tokens, seconds: 0",
    ]  # fmt: skip
