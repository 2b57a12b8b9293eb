from dataclasses import replace
from datetime import timedelta

import pytest
from dashboard_samples import NOON, node, point, quantiles, series, state

from core import wire
from core.domain import Health, Trust
from dashboard.api.feed import Look
from dashboard.overview import models as vm


def look(age_s: float = 0.0, **more: object) -> Look:
    seen = Look(1, state(node("a")), series(), good_at=NOON - timedelta(seconds=age_s))
    return replace(seen, **more)


def said(seen: Look) -> vm.Notice | None:
    return vm.connection_notice(seen, now=NOON, clock="12:00:00 UTC", url="http://s")


def test_fresh_data_needs_no_notice() -> None:
    assert said(look(age_s=1.0)) is None


def test_old_data_is_called_stale_with_its_age() -> None:
    notice = said(look(age_s=vm.STALE_S + 0.1))
    assert notice is not None
    assert notice.level == "warn"
    assert "stale" in notice.title
    assert "3.1 s old" in notice.text


def test_a_dead_service_is_named_and_what_is_shown_is_dated() -> None:
    notice = said(look(age_s=61.0, error="nothing answers at this address"))
    assert notice is not None
    assert notice.level == "bad"
    assert "does not answer" in notice.title
    assert "http://s" in notice.text
    assert "1 min 1 s old" in notice.text


def test_a_service_never_seen_says_how_to_start_it() -> None:
    notice = said(Look(error="nothing answers at this address"))
    assert notice is not None
    assert "conductor serve" in notice.text


def test_an_unreadable_answer_is_not_called_down() -> None:
    notice = said(look(error="GET /state: field at: missing", unreadable=True))
    assert notice is not None
    assert "cannot be read" in notice.title


def test_before_the_first_answer_it_waits() -> None:
    notice = said(Look())
    assert notice is not None
    assert notice.level == "none"


def test_an_empty_fleet_and_an_idle_one_say_what_to_do() -> None:
    empty, idle = vm.fleet_notice(state()), vm.fleet_notice(state(node("a"), decisions=0))
    assert empty is not None
    assert idle is not None
    assert "No node" in empty.title
    assert "1 node ready" in idle.text
    assert vm.fleet_notice(state(node("a"))) is None


@pytest.mark.parametrize(
    ("p99", "level", "word"),
    [(1.0, "ok", "within limit"), (1.7, "warn", "near the limit"), (2.1, "bad", "limit missed")],
)
def test_latency_tiles_compare_with_the_limit(p99: float, level: str, word: str) -> None:
    tile = vm.tiles(state(node("a"), ttft_s=quantiles(p99)))[1]
    assert (tile.level, tile.word.split(",")[0]) == (level, word)


def test_the_slowest_of_a_few_requests_is_no_reason_for_an_alarm() -> None:
    def level(count: int, p90: float) -> str:
        q = wire.Quantiles(count=count, mean=0.5, p50=0.5, p90=p90, p99=3.0)
        return vm.tiles(state(node("a"), ttft_s=q))[1].level

    assert [level(42, 0.9), level(42, 2.5), level(100, 0.9)] == ["warn", "bad", "bad"]


def test_tiles_without_any_measurement_show_dashes_not_zeros() -> None:
    values = [tile.value for tile in vm.tiles(state())]
    assert values == ["0/s", "-", "-", "-", "-", "-"]


@pytest.mark.parametrize(
    ("achieved", "reachable", "level"),
    [(0.8, 0.8, "ok"), (0.6, 0.8, "warn"), (0.2, 0.8, "bad"), (0.0, 0.0, "none")],
)
def test_reuse_is_judged_by_what_was_reachable(
    achieved: float, reachable: float, level: str
) -> None:
    tile = vm.tiles(state(node("a"), hit_achieved=achieved, hit_reachable=reachable))[3]
    assert tile.level == level


def test_failures_count_as_much_as_refusals() -> None:
    tile = vm.tiles(state(node("a"), rejected_share=0.0, error_share=0.2))[4]
    assert tile.level == "bad"


def test_the_busiest_node_is_named() -> None:
    busy = node("hot", load=wire.NodeLoad(load=0.95, queue_s=2.0))
    tile = vm.tiles(state(node("a"), busy))[5]
    assert (tile.value, tile.level) == ("95 %", "bad")
    assert "hot" in tile.sub


def test_no_available_node_is_bad() -> None:
    tile = vm.tiles(state(node("a", eligible=False)))[0]
    assert (tile.level, tile.word) == ("bad", "no node available")


def test_problems_come_worst_first_once_and_at_most_five() -> None:
    noisy = [node(f"n{i}", warnings=["reads late"]) for i in range(9)]
    told = vm.problems(state(*noisy, problems=("dead: n0",)))
    assert told[0] == ("bad", "dead: n0")
    assert not any("n0: reads late" in text for _, text in told)
    assert told[-1][1].startswith("and ")
    assert len(told) == 6
    assert vm.problems(state(node("a"))) == []


def test_an_open_breaker_is_a_problem_with_its_reason() -> None:
    out = node("a", breaker=wire.BreakerView(state="open", reason="errors"))
    assert ("bad", "a: breaker open (errors)") in vm.problems(state(out))
    assert vm.breaker_summary(state(out)) == ("warn", "1 node out")
    assert vm.breaker_summary(state(node("a"))) == ("ok", "all closed")


def test_the_global_breaker_is_the_first_thing_to_say() -> None:
    tripped = wire.BreakerView(state="tripped", reason="a drill", manual=True)
    found = state(node("gpu-1"), problems=("dead: n0",)).model_copy(update={"breaker": tripped})
    assert vm.breaker_summary(found) == ("bad", "global tripped: round robin")
    first = "global breaker tripped: requests go round robin (a drill)"
    assert vm.problems(found)[0] == ("bad", first)
    assert (vm.problem_link(first, found) or ("",))[0] == "breaker"


def test_nodes_that_take_nothing_come_first() -> None:
    dead = node("z", health=Health.DEAD, eligible=False, trust=Trust.OFF)
    rows = vm.fleet_rows([node("a"), dead, node("b")])
    assert [r["Node"] for r in rows] == ["z", "a", "b"]
    assert rows[0]["State"] == "✕ dead"
    assert rows[0]["Cache signal"] == "✕ off"


def test_draining_and_breaker_go_before_healthy() -> None:
    assert vm.node_state(node("a", draining=True)) == "▲ draining"
    opened = node("a", breaker=wire.BreakerView(state="half_open"))
    assert vm.node_state(opened) == "▲ breaker half open"


def test_the_table_twin_has_each_step_newest_first() -> None:
    rows = vm.series_rows(series(point(0, requests=1), point(1, ttft_s=quantiles(0.5))))
    assert [r["Time"] for r in rows] == [point(1).at, point(0).at]
    assert rows[0]["TTFT p99 ms"] == 500.0
    assert rows[1]["TTFT p99 ms"] is None


def test_alerts_that_nobody_has_heard_of_are_worst() -> None:
    def shown(*alerts: wire.FiringAlert) -> tuple[str, str]:
        return vm.alert_summary(state(node("a")).model_copy(update={"alerts": list(alerts)}))

    page = wire.FiringAlert(name="slo_burn_fast", severity="page")
    ticket = wire.FiringAlert(name="panic", severity="ticket")
    assert shown() == ("0", "ok")
    assert shown(page, ticket) == ("2", "bad")
    assert shown(page.model_copy(update={"acknowledged": True}), ticket) == ("2", "warn")
