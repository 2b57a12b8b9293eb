"""Roll-ups: always what the rows say, whatever is stored late, twice, or in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from record_cases import T0, decision, execute, keep, outcome, rejected, rows

from core.ports import TimeBucket
from storage import rollups
from storage.database import writer_engine
from storage.figures import MICROS, from_rows
from storage.rollups import RollUp
from storage.series import cover
from storage.store import Storage, Store
from storage.summary_models import FLEET
from storage.types import to_micros

HOUR = timedelta(hours=1)


@pytest.fixture
def roll_up(record_url: str) -> Iterator[RollUp]:
    engine = writer_engine(record_url)
    yield RollUp(engine)
    engine.dispose()


def some(rng: random.Random, count: int, first: int = 0):
    """Decisions over three hours but in few minutes, most with outcomes."""
    for number in range(first, first + count):
        at = T0 + timedelta(minutes=11 * rng.randrange(16), seconds=rng.randrange(60))
        if rng.random() < 0.1:
            yield rejected(number, at=at)
            continue
        node = f"p{rng.randrange(3)}"
        yield decision(number, at=at, prefill_node=node, match_tokens=rng.randrange(600))
        if rng.random() < 0.9:
            yield outcome(
                number,
                decided_at=at,
                kind=rng.choice(["ok", "ok", "timeout", "client_abort"]),
                ttft_s=rng.choice([None, rng.expovariate(2.0)]),
                tbt_s=rng.expovariate(40.0),
                prompt_tokens=1000,
                cached_tokens=rng.choice([None, 500]),
                output_tokens=7,
                slo_missed=rng.choice(["", "", "ttft"]),
                prefill_node=node,
            )


def by_rows(store: Store, start: datetime, end: datetime, step_s: int, node: str | None):
    """The series computed from the rows alone."""
    with store._reading() as connection:
        lo, hi = to_micros(start), to_micros(end)
        found = from_rows(connection, lo, hi, step_s * MICROS, node or FLEET)
    return {
        bucket * step_s: (f.sums, sum(int(s.counts.sum()) for s in f.ttft), f.per_node)
        for (bucket, _), f in found.items()
    }


def same(bucket: TimeBucket, expected: tuple[dict[str, int], int, dict[str, int]]) -> bool:
    sums, observed, _ = expected
    return all(getattr(bucket, name) == value for name, value in sums.items()) and (
        (bucket.ttft_p50_s is not None) == (observed > 0)
    )


def levels(store: Store, start: datetime, end: datetime) -> set[int | None]:
    with store._reading() as connection:
        found = cover(connection, to_micros(start), to_micros(end), (10, 300, 3_600))
    return {stretch.level_s for stretch in found}


def test_series_are_what_the_rows_say_at_any_moment(storage, roll_up):
    rng, number = random.Random(7), 0
    for round in range(3):
        records = list(some(rng, 150, number))
        number += 150
        late = [r for r in records if rng.random() < 0.3]
        keep(storage, *(r for r in records if r not in late))
        if round:
            roll_up.run(levels_s=rng.choice([(10,), (10, 300), (10, 300, 3_600)]))
        keep(storage, *late, *records[:20])
        for step_s in (7, 60, 3_600):
            start = T0 + timedelta(seconds=rng.randrange(1_500))
            end = T0 + timedelta(seconds=9_000 + rng.randrange(2_000))
            for node in (None, "p1"):
                series = storage.store.series(start, end, step_s=step_s, node=node)
                expected = by_rows(storage.store, start, end, step_s, node)
                assert [int(b.start.timestamp()) for b in series] == sorted(expected)
                assert all(same(b, expected[int(b.start.timestamp())]) for b in series)
    assert roll_up.run(budget_s=60.0).complete
    before = storage.store.series(T0, T0 + 3 * HOUR, step_s=300)
    execute_all_stale(storage)
    assert storage.store.series(T0, T0 + 3 * HOUR, step_s=300) == before, "percentiles too"


def execute_all_stale(storage: Storage) -> None:
    """Mark every bucket as out of date, so that everything is read from the rows."""
    execute(
        storage.store._url,
        "INSERT INTO summary_marks (level_s, start_us, token)"
        " SELECT level_s, start_us, 1 FROM rollups WHERE node = '' AND level_s = 10",
    )


def test_the_coarsest_current_level_is_read(storage, roll_up):
    keep(storage, *some(random.Random(1), 300))
    assert levels(storage.store, T0, T0 + 3 * HOUR) >= {None}
    assert roll_up.run(budget_s=60.0).complete
    assert levels(storage.store, T0, T0 + 3 * HOUR) == {3_600}
    assert levels(storage.store, T0 + timedelta(seconds=5), T0 + 2 * HOUR) == {None, 10, 300, 3_600}
    keep(storage, decision(9_000, at=T0 + timedelta(minutes=31)))
    assert levels(storage.store, T0, T0 + 3 * HOUR) == {None, 10, 300, 3_600}
    (hour, *_) = storage.store.series(T0, T0 + HOUR, step_s=3_600)
    assert hour.decisions == rows_between(storage, T0, T0 + HOUR)


def rows_between(storage: Storage, start: datetime, end: datetime) -> int:
    found = rows(
        storage.store._url,
        f"SELECT count(*) FROM decisions WHERE at_us >= {to_micros(start)}"
        f" AND at_us < {to_micros(end)}",
    )
    return int(str(found[0][0]))


def test_a_mark_set_during_a_run_stays(storage, roll_up, record_url, monkeypatch):
    keep(storage, decision(1))
    real = rollups._replace
    second = [decision(2)]

    def replace(*args):
        real(*args)
        if second and "postgres" in record_url:  # SQLite lets nobody write meanwhile
            keep(storage, second.pop())

    monkeypatch.setattr(rollups, "_replace", replace)
    roll_up.run(levels_s=(10,))
    if second:
        keep(storage, second.pop())
    assert [b.decisions for b in storage.store.series(T0, T0 + HOUR)] == [2]
    roll_up.run(budget_s=60.0)
    assert [b.decisions for b in storage.store.series(T0, T0 + HOUR)] == [2]
    assert rows(record_url, "SELECT count(*) FROM summary_marks") == [(0,)]


def test_shares_come_from_roll_ups_too(storage, roll_up):
    keep(storage, *some(random.Random(2), 400))
    before = storage.store.node_shares(T0, T0 + 2 * HOUR + timedelta(seconds=3))
    roll_up.run(budget_s=60.0)
    assert storage.store.node_shares(T0, T0 + 2 * HOUR + timedelta(seconds=3)) == before
    assert len(before) == 3


def test_what_is_gone_on_purpose_is_not_computed_anew(storage, roll_up, record_url):
    keep(storage, *some(random.Random(3), 200))
    roll_up.run(budget_s=60.0)
    before = storage.store.series(T0, T0 + 3 * HOUR, step_s=3_600)
    cut = to_micros(T0 + 4 * HOUR)
    execute(
        record_url,
        "DELETE FROM decisions",
        "DELETE FROM outcomes",
        f"INSERT INTO horizons (name, before_us) VALUES ('decisions', {cut})",
    )
    keep(storage, decision(9_999, at=T0 + timedelta(minutes=10)))
    roll_up.run(budget_s=60.0)
    assert storage.store.series(T0, T0 + 3 * HOUR, step_s=3_600) == before


def test_a_run_keeps_to_its_budget_and_goes_on_later(storage, roll_up):
    keep(storage, *some(random.Random(4), 300))
    first = roll_up.run(budget_s=0.0)
    assert not first.complete and first.buckets > 0
    while not roll_up.run(budget_s=0.0).complete:
        pass
    assert levels(storage.store, T0, T0 + 3 * HOUR) == {3_600}


def test_facets_list_what_occurs(storage, roll_up, record_url):
    keep(
        storage,
        decision(0, policy="a", revision=1),
        decision(1, policy="b", revision=2),
        decision(30, policy="a", revision=3, model="n"),
    )
    roll_up.run(budget_s=60.0)
    found = rows(record_url, "SELECT kind, value, count(*) FROM facets GROUP BY kind, value")
    assert sorted(found) == [
        ("model", "m", 1), ("model", "n", 1), ("policy", "a", 2), ("policy", "b", 1),
        ("revision", "1", 1), ("revision", "2", 1), ("revision", "3", 1),
    ]  # fmt: skip
