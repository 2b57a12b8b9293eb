"""The ledger under any order of events, against a naive count of what is open."""

from __future__ import annotations

from fleet_cases import COST, decision, fleet, outcome, spec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from core.domain import NodeId, OutcomeKind, Role
from core.fleet.ledger import Ledger, queue_seconds

COUNTED = (
    "queued_tokens", "queued_s", "prefilling", "decoding", "kv_tokens", "decode_kv",
    "prompt_tokens", "head_s",
)  # fmt: skip
NODES = {"a": Role.BOTH, "b": Role.BOTH, "p": Role.PREFILL, "d": Role.DECODE}
pairs = st.sampled_from([("a", "a"), ("b", "b"), ("p", "d"), ("a", "d"), ("p", "b"), ("b", "a")])
seconds = st.floats(0.0, 50.0, allow_nan=False)
tokens = st.integers(0, 200_000)


class LedgerMachine(RuleBasedStateMachine):
    """Reservations and nodes come and go; the model is a list of what is still owed."""

    decisions = Bundle("decisions")
    reservations = Bundle("reservations")
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.state = fleet(*(spec(name, role=role) for name, role in NODES.items()))
        self.ledger = Ledger(self.state)
        self.open: dict[int, dict] = {}
        self.closed: list = []
        self.now = 0.0
        self.ledger.on_close = lambda r, o, now: self.closed.append((id(r), o.kind))

    # -- rules -----------------------------------------------------------------------------------

    @rule(seconds=st.floats(0.0, 5.0, allow_nan=False))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(
        target=decisions, pair=pairs, prompt=tokens, output=st.integers(0, 5000),
        share=st.floats(0.0, 1.0), prefill_s=seconds, transfer_s=seconds, handover_s=seconds,
        tbt_s=st.floats(0.0, 1.0), priority=st.integers(-2, 2),
    )  # fmt: skip
    def decide(self, pair, prompt, share, **more):
        prefill, decode = pair
        if not (self.state.has(NodeId(prefill)) and self.state.has(NodeId(decode))):
            prefill = decode = next(iter(self.state.nodes())).id
        cached = int(prompt * share)
        return decision(self.state, prefill, decode, prompt=prompt, cached=cached, **more)

    @rule(target=reservations, d=decisions, limit=st.sampled_from([0.05, 0.1, 0.2]))
    def begin(self, d, limit):
        r = self.ledger.begin(d, self.now, tbt_slo_s=limit)
        self.open[id(r)] = {"r": r, "limit": limit, "prefilled": False}
        return r

    @rule(r=reservations, first=st.booleans())
    def prefilled(self, r, first):
        (r.first_token if first else r.prefill_done)(self.now)
        if id(r) in self.open:
            self.open[id(r)]["prefilled"] = True

    @rule(r=reservations, kind=st.sampled_from(list(OutcomeKind)))
    def finish(self, r, kind):
        r.finish(outcome(kind), self.now)
        self.open.pop(id(r), None)

    @rule(r=reservations)
    def forgotten(self, r):
        with r:
            pass
        self.open.pop(id(r), None)

    @rule(node=st.sampled_from(sorted(NODES)))
    def restart(self, node):
        if self.state.has(NodeId(node)):
            slot = self.state.slot(NodeId(node))
            self.ledger.void(slot, int(self.state.generation[slot]))
            self.state.restart(NodeId(node))

    @rule(node=st.sampled_from(sorted(NODES)))
    def leave_or_return(self, node):
        if not self.state.has(NodeId(node)):
            self.state.add(spec(node, role=NODES[node]), COST)
        elif len(self.state) > 1:
            slot = self.state.slot(NodeId(node))
            self.ledger.void(slot, int(self.state.generation[slot]))
            self.state.remove(NodeId(node))

    @rule(target=held, node=st.sampled_from(sorted(NODES)), seconds=seconds, part=st.floats(0, 1e4))
    def hold(self, node, seconds, part):
        if not self.state.has(NodeId(node)):
            node = next(iter(self.state.nodes())).id
        return self.ledger.hold(self.state.slot(NodeId(node)), seconds, tokens=part, now=self.now)

    @rule(hold=held)
    def release(self, hold):
        self.ledger.release(hold, self.now)

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def integrity(self):
        self.ledger.check_integrity()

    @invariant()
    def counters_equal_the_model(self):
        fleet, want = self.state, {}
        for item in self.open.values():
            d = item["r"].decision
            for slot, prefills in ((d.prefill_slot, True), (d.decode_slot, False)):
                generation = d.prefill_generation if prefills else d.decode_generation
                if fleet.generation[slot] != generation:
                    continue
                counts = want.setdefault(slot, [0, 0])
                counts[0] += prefills and not item["prefilled"]
                counts[1] += not prefills and (d.disaggregated or item["prefilled"])
        for hold in self.ledger.holds.values():
            if fleet.generation[hold.slot] == hold.generation:
                want.setdefault(hold.slot, [0, 0])[0] += 1
        for slot in range(fleet.capacity):
            told = [int(fleet.prefilling[slot]), int(fleet.decoding[slot])]
            assert told == want.get(slot, [0, 0])

    @invariant()
    def each_closes_once(self):
        assert len(self.closed) == len(set(self.closed))
        assert self.ledger.begun == len(self.open) + len(self.closed)
        assert len(self.ledger.open) == len(self.open)

    @invariant()
    def predictions_stay_numbers(self):
        for slot in range(self.state.capacity):
            requests, kv = self.ledger.batch_at(slot, self.now)
            assert requests >= 0
            assert kv >= 0
            assert 0 <= self.ledger.drain_s(slot, self.now) < float("inf")
            assert 0 <= self.state.queued_s[slot] < float("inf")

    def teardown(self):
        """At idle everything is exactly 0, whatever happened before."""
        for item in list(self.open.values()):
            item["r"].finish(outcome(OutcomeKind.CLIENT_ABORT), self.now)
        for hold in list(self.ledger.holds.values()):
            self.ledger.release(hold, self.now)
        for name in COUNTED:
            assert not getattr(self.state, name).any(), name
        assert self.ledger.priorities == {}
        assert not self.ledger.open
        self.ledger.check_integrity()


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_queue_seconds_are_a_pure_sum():
    state = fleet(spec("a"), spec("b"))
    d = decision(state, "a", "b", prefill_s=1.0, transfer_s=2.0, handover_s=4.0)
    assert queue_seconds(d) == 3.0
