"""Decisions beside prefixes under way: credit, gathering, and what they never touch."""

from fleet_cases import chain, conductor, decided, outcome, request, spec

from core.domain import NodeId, OutcomeKind, Reason, Trust
from core.index.coming import LINGER_S

MS = (0.0, 1e-3, 0.0)
FOUR = ("a", "b", "c", "d")


def fleet(*names, changes=None, **more):
    return conductor(
        *(spec(name, **({"kv_transfer": ""} | more)) for name in names),
        costs=dict.fromkeys(names, MS),
        changes=changes,
    )


def ask(i, *, shared=128, own=4, **more):
    """A request of `shared` common blocks and a few of its own."""
    keys = {16: [*chain(shared), *range(10**9 + 100 * i, 10**9 + 100 * i + own)]}
    return request(shared + own, keys=keys, **more)


def test_a_request_follows_to_where_its_prefix_is_computed_and_is_costed_so():
    c = fleet("a", "b")
    first = decided(c, ask(0))
    c.begin(first, 0.0)
    others = decided(c, ask(1, shared=128), 0.0)
    # One more copy is allowed and begins as soon as it would wait; the third has to follow.
    c.begin(others, 0.0)
    third = decided(c, ask(2), 0.0)
    assert third.match_tokens == third.reachable_tokens == 0
    assert third.coming_tokens == 128 * 16
    assert third.prefix_tokens == 128 * 16 and third.new_tokens == 4 * 16


def test_a_flood_with_one_cold_prefix_is_computed_on_two_nodes_at_most():
    c = fleet(*FOUR)
    placed = []
    for i in range(64):
        d = decided(c, ask(i), 0.001 * i)
        c.begin(d, 0.001 * i)
        placed.append(d)
    assert len({d.prefill for d in placed}) == 2
    assert all(set(d.excluded[Reason.COLD_PREFIX]).isdisjoint({d.prefill}) for d in placed[2:])
    assert sum(d.coming_tokens == 0 for d in placed) == 2


def test_switched_off_every_idle_node_computes_it():
    c = fleet(*FOUR, changes={"batching.coming": False})
    placed = []
    for i in range(16):
        d = decided(c, ask(i), 0.001 * i)
        c.begin(d, 0.001 * i)
        placed.append(d)
    assert len({d.prefill for d in placed}) == 4 and not len(c.coming)


def test_prompts_that_share_little_are_spread_as_before():
    c = fleet(*FOUR)
    for i in range(4):
        c.begin(decided(c, ask(i, shared=8, own=100), 0.0), 0.0)
    assert sorted(c.fleet.prefilling[:4]) == [1, 1, 1, 1]


def test_what_is_coming_never_counts_as_a_broken_promise():
    c = fleet("a", changes={"trust.window": 4})
    for i in range(12):
        first = c.begin(decided(c, ask(2 * i), float(i)), float(i))
        d = decided(c, ask(2 * i + 1), float(i))
        assert d.coming_tokens > 0 and d.match_tokens == 0
        follower = c.begin(d, float(i))
        # The engine reports that nothing of it was there after all.
        for r in (first, follower):
            r.finish(outcome(cached_tokens=0, prompt_tokens=d.request.prompt_tokens), float(i))
        c.tick(i + LINGER_S)
    assert c.trust.trust(c.fleet.slot(NodeId("a"))) is Trust.EXACT


def test_a_failure_takes_the_credit_at_once_and_success_a_little_later():
    c = fleet("a", "b")
    lead = c.begin(decided(c, ask(0), 0.0), 0.0)
    lead.finish(outcome(OutcomeKind.CLIENT_ABORT), 0.5)
    assert not len(c.coming)
    lead = c.begin(decided(c, ask(0), 1.0), 1.0)
    lead.first_token(2.0)
    c.tick(2.0 + LINGER_S / 2)
    assert len(c.coming) == 1
    c.tick(2.0 + LINGER_S)
    assert not len(c.coming)


def test_a_restart_voids_what_its_node_was_computing():
    c = fleet("a", "b")
    lead = decided(c, ask(0), 0.0)
    c.begin(lead, 0.0)
    c.restarted(lead.prefill, 0.1)
    d = decided(c, ask(1), 0.2)
    assert d.coming_tokens == 0 and Reason.COLD_PREFIX not in d.excluded


def test_slow_beats_refused():
    """Where following would be refused, the other nodes are asked after all."""
    c = fleet("a", "b", "c", changes={"batching.copies_max": 1, "batching.shared_tokens_min": 64})
    lead = decided(c, ask(0), 0.0)
    c.begin(lead, 0.0)
    late = decided(c, ask(1, ttft_slo_s=2.12), 0.0)
    assert late.prefill != lead.prefill
    patient = decided(c, ask(1, ttft_slo_s=30.0), 0.0)
    assert patient.prefill == lead.prefill


def test_nodes_that_fetch_get_no_credit_for_what_cannot_be_fetched_yet():
    c = fleet("a", "b", can_fetch=True)
    c.begin(decided(c, ask(0), 0.0), 0.0)
    d = decided(c, ask(1), 0.0)
    assert d.coming_tokens == 0 and d.fetch_from is None


def test_the_record_tells_what_was_held_from_what_was_coming():
    c = fleet("a")
    c.begin(decided(c, ask(0), 0.0), 0.0)
    d = decided(c, ask(1), 0.0)
    columns = d.candidates.columns
    assert columns["match_tokens"].tolist() == columns["coming_tokens"].tolist() == [128 * 16]


def test_a_copy_under_way_is_waited_for_only_where_no_node_is_idle():
    """Somebody holds it already: an idle node makes one more holder, and delays nobody."""
    c = fleet(*FOUR)
    c.index.store(c.fleet.slot(NodeId("a")), ask(0).keys[16][:128])
    on_a = decided(c, ask(0), 0.0)
    assert on_a.prefill == "a" and on_a.match_tokens == 128 * 16
    for _ in range(34):  # the holder's queue is longer than computing it elsewhere
        c.begin(on_a, 0.0)
    copy = decided(c, ask(50), 0.0)
    c.begin(copy, 0.0)
    idle = decided(c, ask(51), 0.0)
    assert len({"a", copy.prefill, idle.prefill}) == 3 and idle.coming_tokens == 0
    c.begin(idle, 0.0)
    c.begin(decided(c, ask(52), 0.0), 0.0)
    # Now everybody is busy, and the copies under way count.
    last = decided(c, ask(53), 0.0)
    assert last.coming_tokens == 128 * 16 and last.prefill != "a"
