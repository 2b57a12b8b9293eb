"""The service's sentences on what is wrong: one for each cause."""

from types import SimpleNamespace

from fleet_cases import conductor, spec

from core.clock import ManualClock
from core.domain import Health, NodeId
from core.fleet.trust import Signal
from core.gateway.problems import problems
from core.gateway.upkeep import Upkeep
from core.jobs import Jobs

A, B = NodeId("a"), NodeId("b")
REFUSED = "it does not answer: connection refused"


def service(**notes):
    """As much of a service as the fleet's sentences are about."""
    c = conductor(spec("a", url="http://a"), spec("b", url="http://b"))
    return SimpleNamespace(
        conductor=c, node_notes={NodeId(k): v for k, v in notes.items()},
        prompts=SimpleNamespace(distrusted={}), record_counters=lambda: None,
        store_upkeep=None, upkeep=SimpleNamespace(worst_lag_s=0.0, repeated_lag_s=0.0),
    )  # fmt: skip


def test_a_dead_node_is_one_problem_whatever_it_takes_along():
    s = service(a=[REFUSED, "event stream: no connection"], b=["another version"])
    s.conductor.set_health(A, Health.DEAD, 1.0)
    s.conductor.cache_signal(A, Signal.LOST, 1.0)
    assert problems(s) == [f"dead: a ({REFUSED})", "b: another version"]


def test_a_doubted_cache_signal_is_told_of_nodes_that_live():
    s = service()
    assert problems(s) == []
    s.conductor.cache_signal(B, Signal.LOST, 1.0)
    assert problems(s) == ["cache signal not believed: b"]
    s.conductor.set_health(A, Health.DEAD, 2.0)
    s.conductor.set_health(B, Health.DEAD, 2.0)
    assert problems(s) == ["every node is dead: requests are refused with 503"]


def test_the_event_loop_is_a_problem_where_it_is_late_more_than_once():
    s = service()
    s.upkeep = upkeep = Upkeep(SimpleNamespace(jobs=Jobs(ManualClock())))
    upkeep._lags.extend([0.01, 0.3, 0.02])
    assert (upkeep.worst_lag_s, upkeep.repeated_lag_s) == (0.3, 0.02)
    assert problems(s) == []
    upkeep._lags.append(0.08)
    assert problems(s) == ["the event loop is late again and again, by up to 300 ms"]
