"""Continuous batching in explicit time: order, timing, reuse, preemption, events."""

import random

import pytest

from core.engines.emulated.api import sample
from core.engines.emulated.cache import BlockPool
from core.engines.emulated.costs import StepCosts, costs_of
from core.engines.emulated.events import AllBlocksCleared, BlockRemoved, BlockStored
from core.engines.emulated.scheduler import Scheduler
from core.engines.emulated.sequence import (
    RemoteKv,
    Sequence,
    State,
    cache_root,
    chain,
    pack,
    partial_fingerprint,
)

SIZE = 4
COSTS = StepCosts(c0=1.0, c1=0.1, c2=0.001, d0=0.5, d1=0.01, d2=0.001, x0=0.0)


def engine(*, usable=100, batch_max=8, step_tokens_max=1000, costs=COSTS, **more) -> Scheduler:
    pool = BlockPool(usable + 1, block_size=SIZE)
    return Scheduler(
        pool, costs, batch_max=batch_max, step_tokens_max=step_tokens_max, sample=sample, **more
    )


def seq(tokens, output=1, *, adapter=None, salt=None, **more) -> Sequence:
    root = cache_root("m", adapter, salt)
    return Sequence(
        id="r",
        tokens=list(tokens),
        prompt_tokens=len(tokens),
        output_tokens_max=output,
        hashes=chain(pack(list(tokens)), SIZE, root),
        text_seed=len(tokens),
        root=root,
        adapter=adapter,
        salt=salt,
        **more,
    )


def run(scheduler: Scheduler, now: float = 0.0) -> tuple[float, list[list]]:
    """Step until nothing runs; the end time, and the events of each step that had any."""
    batches = []
    while step := scheduler.schedule(now):
        scheduler.complete(step)
        now = step.ends_s
        if events := scheduler.pool.take_events():
            batches.append(events)
    return now, batches


def stored(batches) -> list[BlockStored]:
    return [e for batch in batches for e in batch if isinstance(e, BlockStored)]


def test_prefill_time_follows_the_profile_and_chunks_add_up():
    prompt = range(100)
    expected = 1.0 + 0.1 * 100 + 0.001 * 100**2
    for chunk in (1000, 30, 7):
        scheduler = engine(step_tokens_max=chunk)
        scheduler.add(seq(prompt), now=0.0)
        assert run(scheduler)[0] == pytest.approx(expected)


def test_a_cached_prefix_is_not_paid_again():
    scheduler = engine()
    scheduler.add(seq(range(100)), now=0.0)
    now, _ = run(scheduler)
    again = seq([*range(80), *range(500, 520)])
    scheduler.add(again, now=now)
    end, _ = run(scheduler, now)
    assert again.cached_tokens == 80
    assert end - now == pytest.approx(1.0 + 0.1 * 20 + 0.001 * (100**2 - 80**2))


def test_decode_time_follows_batch_and_kv():
    scheduler = engine()
    scheduler.add(seq(range(10), 2), now=0.0)
    scheduler.add(seq(range(50, 70), 2), now=0.0)
    first = scheduler.schedule(0.0)
    scheduler.complete(first)
    second = scheduler.schedule(first.ends_s)
    assert second.ends_s - second.started_s == pytest.approx(0.5 + 0.01 * 2 + 0.001 * 30)
    assert first.prefills
    assert not second.prefills


def test_time_scale_and_slowdown_stretch_steps():
    scheduler = engine(time_scale=10.0)
    scheduler.slowdown = 3.0
    scheduler.add(seq(range(10)), now=5.0)
    step = scheduler.schedule(5.0)
    assert step.ends_s - 5.0 == pytest.approx((1.0 + 1.0 + 0.1) * 3 / 10)


def test_at_least_the_last_prompt_token_is_computed():
    scheduler = engine()
    scheduler.add(seq(range(12)), now=0.0)
    run(scheduler)
    same = seq(range(12))
    scheduler.add(same, now=0.0)
    run(scheduler)
    assert same.cached_tokens == 8
    longer = seq([*range(12), 99])
    scheduler.add(longer, now=0.0)
    run(scheduler)
    assert longer.cached_tokens == 12


def test_output_has_the_asked_length_and_depends_on_the_prompt_alone():
    texts = []
    for before in ([], [seq(range(20), 9)]):
        scheduler = engine()
        for other in before:
            scheduler.add(other, now=0.0)
        one = seq(range(10), 7)
        scheduler.add(one, now=0.0)
        run(scheduler)
        assert one.output_tokens == 7
        assert one.state is State.FINISHED
        texts.append(one.tokens[10:])
    assert texts[0] == texts[1]


def test_events_of_one_prompt_chunk_by_chunk():
    scheduler = engine(step_tokens_max=8)
    scheduler.add(seq(range(18)), now=0.0)
    _, batches = run(scheduler)
    events = stored(batches)
    assert [len(batch) for batch in batches] == [1, 1], "the unfilled block is never published"
    assert [e.token_ids for e in events] == [list(range(8)), list(range(8, 16))]
    assert events[0].parent_block_hash is None
    assert events[1].parent_block_hash == events[0].block_hashes[-1]
    assert events[0].extra_keys == [None, None]
    assert events[0].medium == "GPU"


def test_decoded_blocks_are_published_as_they_fill():
    scheduler = engine()
    one = seq(range(6), 11)
    scheduler.add(one, now=0.0)
    _, batches = run(scheduler)
    # 6 + 11 tokens, the last one never computed: 16 tokens, 4 blocks, 1 of them by prefill.
    assert [len(e.block_hashes) for e in stored(batches)] == [1, 1, 1, 1]
    assert [t for e in stored(batches) for t in e.token_ids] == one.tokens[:16]
    follow_up = seq([*one.tokens, 5])
    scheduler.add(follow_up, now=0.0)
    run(scheduler)
    assert follow_up.cached_tokens == 16


def test_equal_prompts_of_one_step_share_but_decode_into_copies():
    scheduler = engine()
    pair = [seq(range(8), 6), seq(range(8), 6)]
    for one in pair:
        scheduler.add(one, now=0.0)
    _, batches = run(scheduler)
    assert [one.cached_tokens for one in pair] == [0, 4]
    hashes = [h for e in stored(batches) for h in e.block_hashes]
    # The second block's copies, and the decoded third block's.
    assert sorted(hashes.count(h) for h in set(hashes)) == [1, 2, 2]


def test_removals_stand_before_the_store_that_took_their_place():
    scheduler = engine(usable=4)
    scheduler.add(seq(range(15)), now=0.0)
    _, first = run(scheduler)
    old = first[0][0].block_hashes
    scheduler.add(seq(range(100, 112)), now=0.0)
    _, second = run(scheduler)
    kinds = [type(e) for e in second[0]]
    assert kinds == [BlockRemoved, BlockRemoved, BlockStored]
    assert [e.block_hashes[0] for e in second[0][:2]] == [old[2], old[1]]


def test_a_reset_is_told_with_the_next_step_only():
    scheduler = engine()
    scheduler.add(seq(range(8)), now=0.0)
    run(scheduler)
    assert scheduler.pool.reset()
    assert scheduler.schedule(1.0) is None
    scheduler.add(seq(range(8)), now=2.0)
    _, batches = run(scheduler, 2.0)
    assert [type(e) for e in batches[0]] == [AllBlocksCleared, BlockStored]


def test_full_report_announces_reused_blocks_again():
    scheduler = engine()
    scheduler.add(seq(range(9)), now=0.0)
    run(scheduler)
    scheduler.add(seq(range(9), report_hits=True), now=0.0)
    _, batches = run(scheduler)
    assert [e.token_ids for e in stored(batches)] == [list(range(8))]
    assert stored(batches)[0].parent_block_hash is None


def test_adapter_salt_and_session_show_in_events_and_part_the_cache():
    scheduler = engine()
    for key in ({}, {"adapter": "a"}, {"salt": "t1"}, {"adapter": "a", "salt": "t1"}):
        one = seq(range(9), adapter_id=1 if "adapter" in key else None, session="s", **key)
        scheduler.add(one, now=0.0)
        _, batches = run(scheduler)
        assert one.cached_tokens == 0
        (event,) = stored(batches)
        assert event.session_id == "s"
        assert (event.lora_id, event.lora_name) == (one.adapter_id, one.adapter)
        every = ["a"] if one.adapter else None
        first = [*(every or []), *(["t1"] if one.salt else [])]
        assert event.extra_keys == [first or None, every]


def test_batch_cap_and_arrival_order():
    scheduler = engine(batch_max=2)
    many = [seq([i] * 5, 3) for i in range(4)]
    for one in many:
        scheduler.add(one, now=0.0)
    scheduler.complete(scheduler.schedule(0.0))
    assert [one.state for one in many] == [State.RUNNING] * 2 + [State.WAITING] * 2
    run(scheduler, 1.0)
    assert many[2].scheduled_s > many[0].scheduled_s


def test_arrivals_after_a_step_begins_do_not_join_it():
    scheduler = engine()
    scheduler.add(seq(range(5)), now=3.0)
    assert scheduler.schedule(2.9) is None
    assert scheduler.schedule(3.0) is not None


def test_running_sequences_go_before_new_prompts():
    scheduler = engine(step_tokens_max=10)
    old = seq(range(5), 5)
    scheduler.add(old, now=0.0)
    scheduler.complete(scheduler.schedule(0.0))
    scheduler.add(seq(range(100, 130)), now=0.0)
    step = scheduler.schedule(1.0)
    assert [(s is old, n) for s, n in step.chunks] == [(True, 1), (False, 9)]


def test_preemption_takes_the_youngest_and_both_still_finish():
    scheduler = engine(usable=6)
    old, young = seq(range(10), 10), seq(range(50, 58), 10)
    scheduler.add(old, now=0.0)
    scheduler.add(young, now=0.0)
    run(scheduler)
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert (old.output_tokens, young.output_tokens) == (10, 10)
    assert scheduler.counters.preemptions == 1
    assert scheduler.pool.used_blocks == 0
    alone = engine()
    again = seq(range(50, 58), 10)
    alone.add(again, now=0.0)
    run(alone)
    assert again.tokens == young.tokens, "preemption does not change the text"


def test_dropping_gives_blocks_back_in_every_state():
    scheduler = engine(batch_max=1)
    running, waiting = seq(range(9), 5), seq(range(20, 29), 5)
    for one in (running, waiting):
        scheduler.add(one, now=0.0)
    step = scheduler.schedule(0.0)
    scheduler.drop(running, reason="abort")
    scheduler.drop(waiting)
    scheduler.drop(waiting)
    assert scheduler.complete(step) == [], "a dropped sequence gets no token"
    assert not scheduler.busy
    assert scheduler.pool.used_blocks == 0
    assert scheduler.counters.finished["abort"] == 1


def prefilled(scheduler: Scheduler, prompt) -> tuple[Sequence, RemoteKv]:
    one = seq(prompt, 1, hold_id="h")
    scheduler.add(one, now=0.0)
    run(scheduler)
    blocks = tuple(one.blocks[: -(-len(prompt) // SIZE)])
    remote = RemoteKv(host="x", port=1, engine_id="e", request_id="h", blocks=blocks)
    return one, remote


def decode(scheduler: Scheduler, source: Scheduler, prompt, remote: RemoteKv) -> Sequence:
    one = seq(prompt, 6, remote=remote)
    scheduler.add(one, now=0.0)
    assert scheduler.schedule(0.0) is None
    assert scheduler.take_loads() == [one]
    assert one.state is State.LOADING
    scheduler.kv_arrived(one, source.holds.fetch("h", scheduler.missing_blocks(one)))
    return one


def test_handed_over_prefill_gives_the_same_text_and_announces_blocks():
    prompt = range(18)
    source, target, single = engine(), engine(), engine()
    _, remote = prefilled(source, prompt)
    assert source.pool.used_blocks == 5
    one = decode(target, source, prompt, remote)
    assert source.pool.used_blocks == 0
    now, batches = run(target)
    reference = seq(prompt, 6)
    single.add(reference, now=0.0)
    run(single)
    assert one.tokens == reference.tokens
    assert one.cached_tokens == 0
    assert target.counters.external_hits == 18
    assert target.counters.computed == 0
    assert stored(batches)[0].token_ids == list(range(16))
    decode_step = 0.5 + 0.01
    assert now < 6 * (decode_step + 0.001 * 24), "no prefill time on the decode side"


def test_only_the_missing_rest_is_fetched():
    source, target = engine(), engine()
    _, remote = prefilled(source, range(18))
    target.add(seq(range(9)), now=0.0)
    run(target)
    one = seq(range(18), 2, remote=remote)
    target.add(one, now=0.0)
    target.schedule(0.0)
    assert target.missing_blocks(one) == list(remote.blocks[2:])
    assert one.cached_tokens == 8


def test_a_second_fetch_reads_what_is_there_and_wrong_content_shows_in_the_text():
    prompt = range(18)
    source, target = engine(usable=5), engine()
    _, remote = prefilled(source, prompt)
    good = decode(target, source, prompt, remote)
    run(target)
    source.add(seq(range(300, 320)), now=0.0)
    run(source)
    assert source.holds.late == 0
    other = engine()
    bad = decode(other, source, prompt, remote)
    run(other)
    assert source.holds.late == 1
    assert bad.output_tokens == good.output_tokens
    assert bad.tokens[18:] != good.tokens[18:]


def test_an_unfetched_hold_ends_with_its_lease():
    scheduler = engine(lease_s=30.0, time_scale=10.0)
    prefilled(scheduler, range(10))
    due = scheduler.holds.next_expiry_s
    assert due == pytest.approx((1.0 + 1.0 + 0.1) / 10 + 3.0)
    assert scheduler.holds.expire(due - 0.01) == 0
    assert not scheduler.pool.reset(), "pinned blocks are in use"
    assert scheduler.holds.expire(due) == 1
    assert scheduler.pool.used_blocks == 0
    assert scheduler.holds.expired == 1


def test_recompute_after_a_failed_load():
    source, target = engine(), engine()
    _, remote = prefilled(source, range(10))
    one = seq(range(10), 3, remote=remote)
    target.add(one, now=0.0)
    target.schedule(0.0)
    target.recompute(one)
    run(target)
    assert one.output_tokens == 3
    assert target.counters.computed == 10


def test_a_dropped_load_frees_its_blocks_and_ignores_late_arrival():
    source, target = engine(), engine()
    _, remote = prefilled(source, range(10))
    one = seq(range(10), 3, remote=remote)
    target.add(one, now=0.0)
    target.schedule(0.0)
    target.drop(one)
    target.kv_arrived(one, [1, 2, 3])
    assert not target.busy
    assert target.pool.used_blocks == 0


def test_partial_fingerprint_covers_only_the_unfilled_block():
    assert partial_fingerprint(seq(range(8)), SIZE) == 0
    assert partial_fingerprint(seq(range(9)), SIZE) != partial_fingerprint(
        seq([*range(8), 9]), SIZE
    )


def test_random_traffic_always_finishes_and_returns_every_block():
    rng = random.Random(7)
    scheduler = engine(usable=30, batch_max=5, step_tokens_max=16)
    everyone, now = [], 0.0
    for _ in range(300):
        if rng.random() < 0.4:
            shared = list(range(rng.randrange(0, 20)))
            own = [rng.randrange(1000) for _ in range(rng.randrange(1, 20))]
            everyone.append(seq(shared + own, rng.randrange(1, 25)))
            scheduler.add(everyone[-1], now=now)
        if everyone and rng.random() < 0.05:
            scheduler.drop(rng.choice(everyone))
        if step := scheduler.schedule(now):
            scheduler.complete(step)
            now = step.ends_s
        scheduler.pool.check_integrity()
    run(scheduler, now)
    assert all(one.state is State.FINISHED for one in everyone)
    assert not scheduler.busy
    assert scheduler.pool.used_blocks == 0
    assert scheduler.counters.preemptions > 0, "the pool was meant to be tight"


def test_profiles_come_from_the_cost_model():
    fast, slow = costs_of("generic-7b-1gpu", speed=2.0), costs_of("generic-7b-1gpu")
    assert fast.prefill_s(0, 1000) * 2 == pytest.approx(slow.prefill_s(0, 1000))
    assert slow.transfer_s(1000) > slow.transfer_s(0) > 0
