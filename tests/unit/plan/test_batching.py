from __future__ import annotations

import math

import numpy as np
import pytest

from core.domain import RequestId, Slot
from core.plan import batching
from core.plan.batching import ColdPrefixBoard, Pending, cold_depth, form_batches
from core.tunables import Batching

RULES = Batching(enabled=True)
SYSTEM = list(range(1, 65))  # 64 blocks of 16 tokens: a shared prompt of 1024 tokens


def request(i: int, *, keys=None, tokens: int | None = None, at: float = 0.0, **extra) -> Pending:
    keys = [*SYSTEM, 1000 + i] if keys is None else keys
    return Pending(
        id=RequestId(f"r{i:03}"),
        model=extra.pop("model", "m"),
        prompt_tokens=16 * len(keys) + 5 if tokens is None else tokens,
        keys=keys,
        block_size=16,
        reachable_tokens=extra.pop("reachable", 0),
        arrived_s=at,
        **extra,
    )


def ids(batch) -> list[str]:
    return [r.id for r in batch.requests]


# -- batches ---------------------------------------------------------------------------------


def test_nothing_waits_below_the_load():
    formed = form_batches([request(0)], 0.0, rules=RULES, load=0.49)
    assert len(formed.batches) == 1 and formed.waiting == () and formed.due_s == math.inf


def test_nothing_waits_when_batching_is_off():
    formed = form_batches([request(0)], 0.0, rules=Batching(enabled=False), load=1.0)
    assert len(formed.batches) == 1


def test_requests_wait_for_company_but_not_longer_than_allowed():
    pending = [request(0, at=0.0), request(1, at=0.004)]
    early = form_batches(pending, 0.009, rules=RULES, load=0.9)
    assert early.batches == () and early.waiting == tuple(pending)
    assert early.due_s == pytest.approx(0.010)
    (batch,) = form_batches(pending, 0.010, rules=RULES, load=0.9).batches
    assert ids(batch) == ["r000", "r001"]


def test_a_full_batch_does_not_wait():
    pending = [request(i) for i in range(300)]
    formed = form_batches(pending, 0.0, rules=RULES, load=0.9)
    assert [len(b.requests) for b in formed.batches] == [256, 44]


def test_models_and_adapters_are_apart():
    pending = [request(0), request(1, model="other"), request(2, adapter="lora")]
    formed = form_batches(pending, 1.0, rules=RULES, load=0.9)
    assert sorted((b.model, b.adapter) for b in formed.batches) == [
        ("m", ""), ("m", "lora"), ("other", ""),
    ]  # fmt: skip


def test_one_model_may_be_due_while_another_waits():
    pending = [request(0, at=0.0), request(1, at=0.009, model="other")]
    formed = form_batches(pending, 0.010, rules=RULES, load=0.9)
    assert [b.model for b in formed.batches] == ["m"]
    assert [r.model for r in formed.waiting] == ["other"]


def test_groups_share_the_cold_part():
    other = [*range(500, 564)]
    pending = [
        *[request(i) for i in range(3)],
        *[request(i, keys=[*other, i]) for i in range(3, 5)],
        request(5, keys=[*range(900, 990)]),
        request(6, keys=[1, 2]),
    ]
    formed = form_batches(pending, 1.0, rules=RULES, load=0.9)
    assert {b.group: ids(b) for b in formed.batches} == {
        32: ["r000", "r001", "r002"],
        531: ["r003", "r004"],
        None: ["r006", "r005"],
    }


def test_a_prefix_that_is_held_somewhere_does_not_group():
    # All share the 1024 tokens, but those are cached: what follows differs.
    pending = [request(i, keys=[*SYSTEM, *range(100 * i, 100 * i + 40)], reachable=1024)
               for i in range(10, 14)]  # fmt: skip
    (batch,) = form_batches(pending, 1.0, rules=RULES, load=0.9).batches
    assert batch.group is None
    cold = [request(i, reachable=256) for i in range(4)]
    (batch,) = form_batches(cold, 1.0, rules=RULES, load=0.9).batches
    assert (batch.group, batch.depth_blocks) == (48, 48)


@pytest.mark.parametrize(
    ("blocks", "reachable", "depth"), [(64, 0, 32), (31, 0, 0), (64, 500, 63), (64, 512, 64),
                                       (64, 528, 0)],
)  # fmt: skip
def test_cold_depth(blocks: int, reachable: int, depth: int):
    got = cold_depth(request(0, keys=list(range(blocks)), reachable=reachable), 512)
    assert got == depth


def test_the_most_important_then_the_shortest_leads():
    pending = [
        request(0, tokens=5000),
        request(1, tokens=2000),
        request(2, tokens=9000, priority=1),
    ]
    (batch,) = form_batches(pending, 1.0, rules=RULES, load=0.9).batches
    assert ids(batch) == ["r002", "r001", "r000"]


# -- followers ---------------------------------------------------------------------------------


def test_a_leader_is_found_by_everyone_with_the_prefix_until_it_is_due():
    board = ColdPrefixBoard(RULES)
    board.led(SYSTEM, 32, block_size=16, slot=Slot(3), due_s=5.0)
    found = board.find([*SYSTEM[:32], 77], 1.0)
    assert found is not None and (found.copies, found.tokens) == ({3: 5.0}, 512)
    assert board.find(SYSTEM[:31], 1.0) is None
    assert board.find([9, *SYSTEM], 1.0) is None
    assert board.find(SYSTEM, 5.0) is None and len(board) == 0


def test_copies_count_until_the_last_is_due():
    board = ColdPrefixBoard(RULES)
    board.led(SYSTEM, 32, block_size=16, slot=Slot(0), due_s=5.0)
    board.led(SYSTEM, 32, block_size=16, slot=Slot(1), due_s=7.0)
    found = board.find(SYSTEM, 6.0)
    assert found is not None and set(found.copies) == {0, 1}
    assert board.find(SYSTEM, 7.0) is None


def test_the_longest_prefix_wins():
    board = ColdPrefixBoard(RULES)
    board.led(SYSTEM, 32, block_size=16, slot=Slot(3), due_s=5.0)
    board.led(SYSTEM, 64, block_size=16, slot=Slot(4), due_s=5.0)
    found = board.find(SYSTEM, 1.0)
    assert found is not None and found.depth_blocks == 64


def costs(*queue: float, warm: float = 0.1, cold: float = 1.0):
    n = len(queue)
    return {
        "queue_s": np.array(queue),
        "warm_s": np.full(n, warm),
        "cold_s": np.full(n, cold),
        "allowed": np.ones(n, np.bool_),
    }


def led(*slots: int) -> tuple[ColdPrefixBoard, batching.ColdPrefix]:
    board = ColdPrefixBoard(RULES)
    for slot in slots:
        board.led(SYSTEM, 32, block_size=16, slot=Slot(slot), due_s=5.0)
    found = board.find(SYSTEM, 0.0)
    assert found is not None
    return board, found


def test_followers_stick_until_starting_afresh_is_faster():
    board, cold = led(0)
    assert board.follow(cold, **costs(0.9, 0.0)) == 0
    assert board.follow(cold, **costs(1.0, 0.0)) is None


def test_no_third_copy():
    board, cold = led(0, 1)
    assert board.follow(cold, **costs(50.0, 40.0, 0.0)) == 1


def test_nodes_that_may_not_serve_are_passed_over():
    board, cold = led(0, 1)
    case = costs(0.0, 3.0, 0.0)
    case["allowed"][0] = False
    assert board.follow(cold, **case) == 1
    case["allowed"][1] = False
    assert board.follow(cold, **case) is None


def test_the_only_node_is_followed():
    board, cold = led(0)
    case = costs(50.0, 0.0)
    case["allowed"][1] = False
    assert board.follow(cold, **case) == 0


def test_a_failed_node_is_not_waited_for():
    board, _ = led(0, 1)
    board.failed(Slot(0))
    found = board.find(SYSTEM, 0.0)
    assert found is not None and set(found.copies) == {1}
    board.failed(Slot(1))
    assert board.find(SYSTEM, 0.0) is None and len(board) == 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batching, "ENTRIES_MAX", 10)
    board = ColdPrefixBoard(RULES)
    for i in range(100):
        board.led([i], 1, block_size=16, slot=Slot(0), due_s=float(i))
    assert sorted(board.entries()) == list(range(90, 100))
    board.sweep(1e9)
    assert len(board) == 0 and not board._depths


@pytest.mark.parametrize("nodes", [2, 8, 64])
def test_64_requests_with_one_cold_prefix_are_computed_on_at_most_two_nodes(nodes: int):
    """The dispatch loop of a caller, on queues that grow with what is placed."""
    pending = [request(i, tokens=6000) for i in range(64)]
    (batch,) = form_batches(pending, 1.0, rules=RULES, load=0.9).batches
    assert batch.group is not None
    board, queue, used = ColdPrefixBoard(RULES), np.zeros(nodes), set()
    cold_s, warm_s = np.full(nodes, 1.0), np.full(nodes, 0.2)
    for r in batch.requests:
        found = board.find(r.keys, 1.0)
        case = {"queue_s": queue, "warm_s": warm_s, "cold_s": cold_s}
        slot = None if found is None else board.follow(
            found, **case, allowed=np.ones(nodes, np.bool_))  # fmt: skip
        if slot is None:
            slot = Slot(int((queue + cold_s).argmin()))
            queue[slot] += cold_s[slot]
            board.led(r.keys, batch.depth_blocks, block_size=16, slot=slot, due_s=1 + queue[slot])
        else:
            queue[slot] += warm_s[slot]
        used.add(slot)
    assert len(used) == 2
    assert abs(queue[list(used)][0] - queue[list(used)][1]) <= 1.0
