"""The spool: its format under damage, its limits, and what a crash leaves."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_cases import T0, decision, outcome

from core.domain import Telemetry
from storage import spool as spool_module
from storage import spool_format
from storage.insert import Row
from storage.rows import COLUMNS, decision_values, outcome_values, telemetry_values
from storage.spool import Spool


def row(number: int) -> Row:
    return Row("decisions", decision_values(decision(number)))


def ids(rows: list[Row | None]) -> list[int]:
    return [int(r.values[0][4:]) for r in rows if r is not None]


def drain(spool: Spool, limit: int = 7) -> list[int]:
    found: list[int] = []
    while (taken := spool.take(limit)) is not None:
        found += ids(list(taken.rows))
        spool.done(taken)
    return found


def segment(numbers: range) -> bytes:
    return spool_format.segment_head() + b"".join(spool_format.encoded(row(n)) for n in numbers)


def test_rows_come_back_as_they_were():
    kept = [
        row(1),
        Row("outcomes", outcome_values(outcome(1, kind="timeout", ttft_s=0.25))),
        Row("node_telemetry", telemetry_values("n", T0, Telemetry(running=1, kv_usage=0.5))),
        Row("events", ("e", 1, "k", "", '{"x":[1,null]}')),
        Row("nodes", ("n", "{}", "active", 1, 2)),
    ]
    data = spool_format.segment_head() + b"".join(map(spool_format.encoded, kept))
    assert list(spool_format.rows(data)) == kept
    assert spool_format.count(data) == 5


@given(st.integers(0, 12_000), st.binary(min_size=1, max_size=40), st.booleans())
def test_damage_costs_only_the_records_it_touches(at, junk, inserted):
    data = segment(range(20))
    at %= len(data)
    bad = data[:at] + junk + data[at if inserted else at + len(junk) :]
    found = ids(list(spool_format.rows(bad)))
    touched = 1 if inserted else 1 + len(junk) // 100 + 1
    assert found == sorted(set(found)), "nothing twice, in order"
    assert len(found) >= 20 - touched


@given(st.integers(0, 5_000))
def test_a_torn_tail_costs_the_last_record(cut):
    data = segment(range(10))
    found = list(spool_format.rows(data[: len(data) - cut % len(data)]))
    assert ids(found) == list(range(len(ids(found))))


@given(st.binary(max_size=400))
def test_noise_holds_no_rows(noise):
    assert [r for r in spool_format.rows(noise) if r is not None] == []


def test_a_segment_of_another_release_is_read_by_name(monkeypatch):
    older = {**COLUMNS, "gone": ("a", "b")}
    older["decisions"] = tuple(c for c in COLUMNS["decisions"] if c not in ("tied", "fetch_from"))
    head = spool_format._framed(spool_format._encode({"format": 1, "tables": list(older.items())}))
    values = dict(zip(COLUMNS["decisions"], row(3).values, strict=True))
    number = list(older).index("decisions")
    body = [number, *(values[c] for c in older["decisions"])]
    gone = spool_format._framed(spool_format._encode([list(older).index("gone"), 1, 2]))
    data = head + spool_format._framed(spool_format._encode(body)) + gone
    (found, unknown) = spool_format.rows(data)
    assert unknown is None
    assert found == Row("decisions", row(3)._replace(values=found.values).values)
    back = dict(zip(COLUMNS["decisions"], found.values, strict=True))
    assert (back["id"], back["tied"], back["fetch_from"]) == ("0197000003", 0, None)


@pytest.mark.parametrize("on_disk", [True, False])
def test_first_in_first_out_and_forgotten_when_done(tmp_path, on_disk):
    spool = Spool(tmp_path / "spool" if on_disk else None, segment_bytes=4_000)
    spool.append(map(row, range(50)))
    assert spool.write()
    spool.append(map(row, range(50, 60)))
    assert spool.counters().rows == 60
    assert drain(spool) == list(range(60))
    assert spool.counters().rows == 0 and spool.take(5) is None
    assert spool.close() == 0
    assert not on_disk or list((tmp_path / "spool").iterdir()) == []


def test_what_a_run_leaves_the_next_one_stores(tmp_path):
    first = Spool(tmp_path, segment_bytes=4_000)
    first.append(map(row, range(30)))
    first.write()
    taken = first.take(5)
    assert taken is not None and len(taken.rows) == 5
    first.done(taken)
    assert first.close() == 0
    second = Spool(tmp_path)
    second.write()
    assert second.counters().rows == 30, "a segment in work is read from its beginning"
    assert drain(second) == list(range(30))
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_a_live_run_keeps_its_segments_to_itself(tmp_path):
    first, second = Spool(tmp_path), Spool(tmp_path)
    first.append(map(row, range(5)))
    first.write()
    second.write()
    assert second.take(10) is None
    first.close()
    third = Spool(tmp_path)
    third.write()
    assert drain(third) == list(range(5))
    second.close()
    third.close()


def test_over_the_limit_the_oldest_go_and_are_counted(tmp_path):
    spool = Spool(tmp_path, bytes_max=20_000, segment_bytes=4_000)
    for number in range(200):
        spool.append([row(number)])
        spool.write()
    counters = spool.counters()
    assert counters.size_bytes <= 20_000 + 4_000
    assert sum(path.stat().st_size for path in tmp_path.glob("*.spool")) <= 24_000
    assert counters.dropped > 0
    assert drain(spool) == list(range(counters.dropped, 200)), "exactly the newest remain"
    spool.close()


def test_telemetry_is_refused_when_half_full(tmp_path):
    spool = Spool(tmp_path, bytes_max=5_000, segment_bytes=4_000)
    reading = Row("node_telemetry", telemetry_values("n", T0, Telemetry()))
    spool.append([reading])
    assert spool.counters().dropped == 0
    spool.append(map(row, range(20)))
    spool.write()
    spool.append([reading])
    assert spool.counters().dropped == 1
    spool.close()


def test_a_full_disk_leaves_rows_in_memory_and_whole_records_in_files(tmp_path, monkeypatch):
    spool = Spool(tmp_path, memory_max=3_000)
    spool.append(map(row, range(5)))
    spool.write()
    real, left = os.pwrite, [300]

    def full(file: int, data: memoryview, at: int) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(left[0], len(data))
        left[0] -= taken
        return real(file, data[:taken], at)

    monkeypatch.setattr(spool_module.os, "pwrite", full)
    spool.append(map(row, range(5, 10)))
    assert not spool.write()
    counters = spool.counters()
    assert (counters.rows, counters.memory_rows, counters.failures) == (10, 5, 1)
    assert "No space" in counters.last_error
    (path,) = tmp_path.glob("*.spool")
    assert ids(list(spool_format.rows(path.read_bytes()))) == list(range(5)), "no torn record"
    spool.append(map(row, range(10, 60)))
    assert not spool.write()
    dropped = spool.counters().dropped
    assert dropped > 0, "memory has its limit too"
    monkeypatch.setattr(spool_module.os, "pwrite", real)
    assert spool.write()
    assert drain(spool) == [*range(5), *range(5 + dropped, 60)]
    spool.close()


def test_a_folder_that_cannot_be_made_is_a_failure_not_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    spool = Spool(tmp_path / "file" / "spool")
    spool.append([row(1)])
    assert not spool.write()
    assert spool.counters().failures == 1
    assert drain(spool) == [1], "memory still serves"
    spool.append([row(2)])
    assert spool.close() == 1


def test_files_that_somebody_deleted_are_counted_and_not_waited_for(tmp_path):
    spool = Spool(tmp_path / "spool", segment_bytes=200)
    spool.append(row(n) for n in range(6))
    assert spool.write()
    held = spool.counters().rows
    for path in (tmp_path / "spool").glob("*.spool"):
        path.unlink()
    assert drain(spool) == []
    counters = spool.counters()
    assert (counters.rows, counters.dropped) == (0, held)
    shutil.rmtree(tmp_path / "spool")
    spool.append([row(7)])
    assert spool.write() and drain(spool) == [7]
    spool.close()


def test_no_descriptor_left_is_a_failure_and_the_next_sync_makes_up_for_it(tmp_path, monkeypatch):
    spool = Spool(tmp_path / "spool")
    spool.append([row(1)])
    spool.write()

    def none_left(*_args, **_more):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as m:
        m.setattr(spool_module.os, "dup", none_left)
        spool.sync()
        m.undo()
        m.setattr(spool_module.os, "open", none_left)
        spool.sync()
    assert spool.counters().failures == 2
    synced = []
    monkeypatch.setattr(spool_module.os, "fsync", synced.append)
    spool.sync()
    assert len(synced) == 1, "the list of files, which the one before could not"
    monkeypatch.undo()
    spool.close()


def test_values_without_a_form_are_mended_or_dropped(tmp_path):
    spool = Spool(tmp_path)
    spool.append([
        Row("events", ("a", 1, "\ud800", "", "{}")),
        Row("events", ("b", 2**80, "k", "", "{}")),
        Row("events", ("c", 3, "k", "", "{}")),
    ])  # fmt: skip
    assert spool.counters().dropped == 1
    taken = spool.take(10)
    assert taken is not None
    assert [r.values[:3] for r in taken.rows] == [("a", 1, "?"), ("c", 3, "k")]
    spool.close()


def test_random_use_loses_and_invents_nothing(tmp_path: Path):
    rng, number, stored = random.Random(4), 0, []
    spool = Spool(tmp_path, segment_bytes=3_000)
    for _ in range(300):
        step = rng.random()
        if step < 0.4:
            count = rng.randrange(1, 8)
            spool.append(map(row, range(number, number + count)))
            number += count
        elif step < 0.6:
            spool.write()
        elif step < 0.7:
            spool.sync()
        elif step < 0.75:
            assert spool.close() == 0
            spool = Spool(tmp_path, segment_bytes=3_000)
            spool.write()
        elif (taken := spool.take(rng.randrange(1, 12))) is not None:
            stored += ids(list(taken.rows))
            if rng.random() < 0.9:
                spool.done(taken)
            else:
                spool.close()
                spool = Spool(tmp_path, segment_bytes=3_000)
                spool.write()
    spool.write()
    stored += drain(spool)
    spool.close()
    assert sorted(set(stored)) == list(range(number))
