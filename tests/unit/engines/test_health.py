"""Health of one node from its probes' results."""

import pytest

from core.domain import Health
from core.engines.health import TABLE, HealthRules, HealthTracker, Probe, Sign
from core.engines.watch import WatchRules


def after(*results: Probe) -> Health:
    tracker = HealthTracker(HealthRules())
    for result in results:
        tracker.observe(result)
    return tracker.health


G, B, C, X = Probe.GOOD, Probe.BAD, Probe.CUT, Probe.GONE


@pytest.mark.parametrize(
    ("results", "health"),
    [
        ([], Health.UNKNOWN),
        ([B] * 10, Health.UNKNOWN),
        ([X] * 10, Health.UNKNOWN),
        ([G], Health.HEALTHY),
        ([X, X, G], Health.HEALTHY),
        ([G, B], Health.SUSPECT),
        ([G, B, B], Health.SUSPECT),
        ([G, B, B, B], Health.DEAD),
        ([G, B, B, G, B, B], Health.SUSPECT),
        ([G, C], Health.SUSPECT),
        ([G, C, B, C], Health.DEAD),
        ([G, X], Health.DEAD),
        ([G, B, X], Health.DEAD),
        ([G, X, G], Health.DEAD),
        ([G, X, G, G], Health.HEALTHY),
        ([G, X, G, B, G], Health.DEAD),
        ([G, B, B, B, G, G], Health.HEALTHY),
    ],
)
def test_health_after(results, health):
    assert after(*results) is health


def test_every_transition_is_defined():
    assert set(TABLE) == set(Health)
    assert all(len(row) == len(Sign) for row in TABLE.values())


@pytest.mark.parametrize("results", [[], [B], [G], [G, B], [G, X], [G, X, G], [G, B, B, B, G]])
def test_would_rise_tells_what_a_good_probe_does(results):
    tracker = HealthTracker(HealthRules())
    for result in results:
        tracker.observe(result)
    was = tracker.health
    foretold = tracker.would_rise()
    now = tracker.observe(G)
    assert foretold == (was in (Health.UNKNOWN, Health.DEAD) and now is Health.HEALTHY)


def test_a_single_probe_can_be_enough():
    tracker = HealthTracker(HealthRules(down_after=1, up_after=1))
    for result, health in [(G, Health.HEALTHY), (B, Health.DEAD), (G, Health.HEALTHY)]:
        assert tracker.observe(result) is health


@pytest.mark.parametrize(
    "wrong",
    [{"interval_s": 0}, {"down_after": 0}, {"up_after": 0}, {"jitter": 1.0}, {"timeout_s": -1}],
)
def test_rules_name_the_wrong_field(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        HealthRules(**wrong)


def test_large_fleets_are_scraped_less_often():
    rules = WatchRules(scrape_interval_s=0.5, scrapes_per_s_max=40.0)
    assert [rules.scrape_every_s(n) for n in (0, 1, 20, 64, 256)] == [0.5, 0.5, 0.5, 1.6, 6.4]
