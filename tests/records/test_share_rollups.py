"""Requests by tenant, model and nodes: always what the records say, rolled up or not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from record_cases import T0, decision, execute, keep, outcome, rejected, rows

from core.ports import DecisionRecord, OutcomeRecord, RequestShares
from storage import migrate, shares
from storage.database import writer_engine
from storage.retention import Retention
from storage.rollups import RollUp
from storage.share_groups import COUNTS
from storage.store import Storage, open_storage
from storage.types import to_micros

HOUR = timedelta(hours=1)
Record = DecisionRecord | OutcomeRecord


@pytest.fixture
def storage(record_url: str) -> Iterator[Storage]:
    with open_storage(record_url) as opened:
        yield opened


@pytest.fixture
def roll_up(record_url: str) -> Iterator[RollUp]:
    engine = writer_engine(record_url)
    yield RollUp(engine)
    engine.dispose()


def some(rng: random.Random, count: int, first: int = 0) -> Iterator[Record]:
    """Decisions over three hours but in few minutes, most with outcomes."""
    for number in range(first, first + count):
        at = T0 + timedelta(minutes=11 * rng.randrange(16), microseconds=rng.randrange(60_000_000))
        whose = {"tenant": rng.choice(["", "a", "b"]), "model": rng.choice(["m", "n"])}
        if rng.random() < 0.1:
            yield rejected(number, at=at, **whose)
            continue
        nodes = {"prefill_node": f"p{rng.randrange(3)}", "decode_node": rng.choice(["d0", None])}
        yield decision(number, at=at, match_tokens=rng.randrange(600), **whose, **nodes)
        if rng.random() < 0.9:
            kind = rng.choice(["ok", "ok", "timeout", "client_abort"])
            missed = rng.choice(["", "", "ttft", "tbt", "ttft+tbt"])
            yield outcome(number, decided_at=at, kind=kind, slo_missed=missed)


def by_hand(
    records: Iterable[Record], start: datetime, end: datetime
) -> dict[tuple[str, ...], Counter[str]]:
    """The naive twin: sums over the records themselves."""
    ended = {r.decision_id: r for r in records if isinstance(r, OutcomeRecord)}
    made = {r.id: r for r in records if isinstance(r, DecisionRecord) and start <= r.at < end}
    found: dict[tuple[str, ...], Counter[str]] = {}
    for d in made.values():
        key = (d.tenant, d.model, d.prefill_node or "", d.decode_node or "")
        sums, o = found.setdefault(key, Counter()), ended.get(d.id)
        sums.update(decisions=1, rejected=d.status is not None)
        sums.update(prompt_tokens=d.prompt_tokens, match_tokens=d.match_tokens)
        if o is not None:
            failed, aborted = o.kind not in ("ok", "client_abort"), o.kind == "client_abort"
            sums.update(finished=1, failed=failed, aborted=aborted)
            sums.update(ttft_missed="ttft" in o.slo_missed, tbt_missed="tbt" in o.slo_missed)
            sums.update(slo_missed=o.slo_missed != "")
    return found


def told(found: RequestShares) -> dict[tuple[str, ...], Counter[str]]:
    """The answer in the shape of `by_hand`."""
    return {
        (g.tenant, g.model, g.prefill_node, g.decode_node): Counter(
            {name: getattr(g, name) for name in COUNTS}
        )
        for g in found.groups
    }


def owners_of(groups: dict[tuple[str, ...], Counter[str]]) -> dict[tuple[str, ...], Counter[str]]:
    found: dict[tuple[str, ...], Counter[str]] = {}
    for (tenant, model, *_), sums in groups.items():
        found.setdefault((tenant, model, "", ""), Counter()).update(sums)
    return found


def check(storage: Storage, records: list[Record], start: datetime, end: datetime) -> None:
    """All that can be asked of a stretch, against the records."""
    expected = by_hand(records, start, end)
    found = storage.store.shares(start, end)
    assert told(found) == expected
    assert found.complete
    assert found.decisions == sum(sums["decisions"] for sums in expected.values())
    inside = [r.at for r in records if isinstance(r, DecisionRecord) and start <= r.at < end]
    assert found.covered_from == min(inside, default=None)
    assert told(storage.store.shares(start, end, by_node=False)) == owners_of(expected)
    ranks = [(-g.decisions, g.tenant, g.model, g.prefill_node) for g in found.groups]
    assert ranks == sorted(ranks)


def test_shares_are_what_the_records_say_at_any_moment(storage, roll_up):
    rng, records = random.Random(11), []
    for round in range(3):
        fresh = list(some(rng, 150, 150 * round))
        records += fresh
        late = [r for r in fresh if rng.random() < 0.3]
        keep(storage, *(r for r in fresh if r not in late))
        if round:
            roll_up.run(levels_s=rng.choice([(10,), (10, 300), (10, 300, 3_600)]))
        keep(storage, *late, *fresh[:20])
        for _ in range(3):
            start = T0 + timedelta(seconds=rng.uniform(0, 1_500))
            check(storage, records, start, T0 + timedelta(seconds=rng.uniform(9_000, 11_000)))
    assert roll_up.run(budget_s=60.0).complete
    check(storage, records, T0, T0 + 3 * HOUR)
    check(storage, records, T0 + timedelta(microseconds=1), T0 + timedelta(seconds=11))
    check(storage, records, T0 + 4 * HOUR, T0 + 5 * HOUR)


def test_a_limit_asks_for_the_newest_whatever_is_rolled_up(storage, roll_up):
    keep(storage, *(decision(n, tenant=str(n % 2)) for n in range(30)))
    roll_up.run(budget_s=60.0)
    found = storage.store.shares(T0, T0 + HOUR, limit=4)
    assert (found.decisions, found.covered_from) == (4, T0 + timedelta(seconds=26))
    assert not found.complete
    assert storage.store.shares(T0, T0 + HOUR, limit=30).complete


def test_more_rows_than_are_read_are_counted_once_rolled_up(storage, roll_up, monkeypatch):
    monkeypatch.setattr(shares, "ROWS_MAX", 5)
    keep(storage, *(decision(n) for n in range(25)))
    behind = storage.store.shares(T0, T0 + HOUR)
    assert (behind.decisions, behind.complete) == (5, False)
    assert behind.covered_from == T0 + timedelta(seconds=20)
    roll_up.run(budget_s=60.0)
    keep(storage, *(decision(n) for n in range(25, 28)))
    # The third ten seconds are out of date again, and more than five rows.
    behind = storage.store.shares(T0, T0 + HOUR)
    assert (behind.decisions, behind.complete) == (5, False)
    roll_up.run(budget_s=60.0, levels_s=(10,))
    whole = storage.store.shares(T0, T0 + HOUR)
    assert (whole.decisions, whole.complete, whole.covered_from) == (28, True, T0)


def test_small_groups_are_put_together_and_sums_stay(storage, roll_up, monkeypatch):
    monkeypatch.setattr("storage.rollups.GROUPS_MAX", 2)
    records = list(some(random.Random(5), 300))
    keep(storage, *records)
    expected = by_hand(records, T0, T0 + 3 * HOUR)
    roll_up.run(budget_s=60.0)
    found = storage.store.shares(T0, T0 + 3 * HOUR)
    assert found.complete and found.decisions == 300
    assert any(g.others for g in found.groups)
    apart = {key: sums for key, sums in told(found).items() if key[2]}
    assert all(sums <= expected[key] for key, sums in apart.items())
    assert owners_of(told_apart(found)) == owners_of(expected)
    assert told(storage.store.shares(T0, T0 + 3 * HOUR, by_node=False)) == owners_of(expected)


def told_apart(found: RequestShares) -> dict[tuple[str, ...], Counter[str]]:
    """As `told`, with others beside rejections."""
    return {
        (g.tenant, g.model, g.prefill_node, g.decode_node, str(g.others)): Counter(
            {name: getattr(g, name) for name in COUNTS}
        )
        for g in found.groups
    }


def test_what_is_older_than_the_roll_ups_comes_from_the_rows(storage, roll_up, record_url):
    records = list(some(random.Random(6), 300))
    keep(storage, *records)
    roll_up.run(budget_s=60.0)
    cut = to_micros(T0 + HOUR)
    execute(
        record_url,
        f"DELETE FROM share_rollups WHERE start_us < {cut}",
        f"INSERT INTO horizons (name, before_us) VALUES ('shares', {cut})",
    )
    check(storage, records, T0, T0 + 3 * HOUR)
    check(storage, records, T0, T0 + HOUR / 2)
    check(storage, records, T0 + 2 * HOUR, T0 + 3 * HOUR)


def test_they_go_with_the_decisions(storage, record_url):
    now = datetime.now(UTC)
    ages = [timedelta(days=day, hours=1) for day in range(1, 19)]
    keep(storage, *(decision(n, at=now - age) for n, age in enumerate(ages)))
    engine = writer_engine(record_url)
    RollUp(engine).run(budget_s=60.0)
    Retention(engine).run(force=True)
    engine.dispose()
    oldest = rows(record_url, "SELECT min(oldest_us), count(*) FROM share_rollups")
    assert oldest == [(to_micros(now - ages[12]), 13 * 3)]
    found = storage.store.shares(now - timedelta(days=18), now)
    assert found.decisions in (13, 14)  # whole days of partitions may keep one more


def test_a_database_that_is_older_than_they_are(storage, roll_up, record_url):
    records = list(some(random.Random(8), 300))
    keep(storage, *records)
    roll_up.run(budget_s=60.0)
    migrate.downgrade(record_url, "0012")
    migrate.upgrade(record_url)
    check(storage, records, T0, T0 + 3 * HOUR)
    assert roll_up.run(budget_s=60.0).complete
    check(storage, records, T0, T0 + 3 * HOUR)
    # The newest decision is of the third hour: that one and the one before have them now.
    levels = rows(
        record_url, "SELECT min(start_us), count(*) FROM share_rollups WHERE level_s = 3600"
    )
    assert levels == [(to_micros(T0 + HOUR), 2)]
