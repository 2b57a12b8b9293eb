"""A whole conductor under any order of events: nodes come, drain, die, restart and leave while
requests are decided, begun, carried on, finished, or forgotten."""

from __future__ import annotations

import math

import numpy as np
from fleet_cases import MODEL, chain, conductor, join, outcome, spec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
)

from core.domain import (
    Decision,
    Health,
    LinkKind,
    NodeId,
    OutcomeKind,
    Reason,
    Rejection,
    Request,
    RequestId,
    Role,
    Telemetry,
)
from core.fleet.trust import Signal
from core.policy import policy_names

COUNTED = (
    "queued_tokens", "queued_s", "prefilling", "decoding", "kv_tokens", "decode_kv",
    "prompt_tokens", "head_s",
)  # fmt: skip
NAMES = [f"n{i}" for i in range(10)]
PROMPTS = {i: {16: chain(40, first=i), 32: chain(20, first=i, block=32)} for i in range(4)}
LINKS = [(LinkKind.TCP,), (LinkKind.IB_NDR,), (LinkKind.IB_NDR, LinkKind.TCP)]
names = st.sampled_from(NAMES)
STATUSES = {400, 404, 429, 503}


class ConductorMachine(RuleBasedStateMachine):
    """Counts everything by hand beside the conductor."""

    decisions = Bundle("decisions")
    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.c = conductor(
            spec("p", role=Role.PREFILL, can_fetch=True),
            spec("d", role=Role.DECODE),
            spec("b", can_fetch=True),
            changes={"hotspot.enabled": True, "hotspot.requests_min": 3, "breaker.open_s": 1.0},
        )
        for prompt, node in enumerate(("p", "b", "p", "b")):
            keys = PROMPTS[prompt][16][: 10 * (prompt + 1)]
            self.c.index.store(self.c.fleet.slot(NodeId(node)), keys)
        self.open: set[int] = set()
        self.begun = 0

    # -- nodes -----------------------------------------------------------------------------------

    @rule(
        name=names,
        role=st.sampled_from(Role),
        events=st.booleans(),
        block=st.sampled_from([16, 32]),
        group=st.sampled_from(["", "nixl", "bootstrap"]),
        links=st.sampled_from(LINKS),
        tight=st.booleans(),
        weight=st.sampled_from([0.5, 1.0]),
        model=st.sampled_from([MODEL, MODEL, "other"]),
    )  # fmt: skip
    def register(self, name, role, events, block, group, links, tight, weight, model):
        if self.c.fleet.has(NodeId(name)):
            return
        more = {} if events else {"events": None}
        if tight:
            more |= {"batch_max": 2, "queue_max": 2, "kv_capacity_tokens": 1500}
        one = spec(
            name, role=role, block_size=block, kv_transfer=group, links=links, can_fetch=True,
            weight=weight, models=(model,), **more,
        )  # fmt: skip
        join(self.c, one, self.now)

    def known(self, name):
        return self.c.fleet.has(NodeId(name))

    def some(self, name):
        """The node of that name where there is one, else any."""
        ids = [one.id for one in self.c.fleet.nodes()]
        return NodeId(name) if name in ids else ids[len(name) % len(ids)]

    @precondition(lambda self: len(self.c.fleet) > 1)
    @rule(name=names)
    def remove(self, name):
        self.c.remove(self.some(name), self.now)

    @rule(name=names, on=st.sampled_from([False, False, True]))
    def drain(self, name, on):
        self.c.drain(self.some(name), on, self.now)

    @rule(name=names, health=st.sampled_from([Health.HEALTHY, Health.HEALTHY, *Health]))
    def health(self, name, health):
        self.c.set_health(self.some(name), health, self.now)

    @rule(name=names)
    def restarted(self, name):
        self.c.restarted(self.some(name), self.now)

    @rule(name=names, signal=st.sampled_from([Signal.COMPLETE, Signal.COMPLETE, Signal.LOST]))
    def stream(self, name, signal):
        node = self.some(name)
        if self.c.fleet.spec(node).events is not None:
            self.c.cache_signal(node, signal, self.now)

    @rule(name=names, prompt=st.sampled_from(sorted(PROMPTS)), blocks=st.integers(1, 20))
    def cached(self, name, prompt, blocks):
        node = self.some(name)
        one = self.c.fleet.spec(node)
        if one.events is not None:
            self.c.index.store(self.c.fleet.slot(node), PROMPTS[prompt][one.block_size][:blocks])

    @rule(
        name=names,
        running=st.integers(0, 300),
        usage=st.floats(0, 1),
        block=st.sampled_from([None, 16, 32]),
    )
    def telemetry(self, name, running, usage, block):
        told = Telemetry(running=running, waiting=0, kv_usage=usage, block_size=block)
        self.c.telemetry(self.some(name), told, self.now)

    @rule(policy=st.sampled_from(policy_names()))
    def configure(self, policy):
        self.c.apply(self.c.tunables.changed({"policy": policy}), self.c.revision + 1)

    @rule(seconds=st.floats(0.0, 4.0, allow_nan=False))
    def time_passes(self, seconds):
        self.now += seconds
        self.c.tick(self.now)

    # -- requests --------------------------------------------------------------------------------

    @rule(
        target=decisions,
        prompt=st.sampled_from(sorted(PROMPTS)),
        tokens=st.sampled_from([0, 1, 300, 640, 641, 20_000]),
        output=st.sampled_from([0, 1, 300]),
        priority=st.integers(-1, 2),
        limit=st.sampled_from([None, None, 0.02, 5.0]),
        tried=st.frozensets(st.sampled_from(["p", "b", "n0"]).map(NodeId), max_size=1),
        model=st.sampled_from([MODEL, MODEL, MODEL, MODEL, "other", "none"]),
    )
    def decide(self, **asked):
        return self.ask(**asked)

    @rule(
        target=reservations,
        prompt=st.sampled_from(sorted(PROMPTS)),
        tokens=st.sampled_from([300, 640, 641]),
        output=st.sampled_from([0, 1, 300]),
    )
    def arrive(self, prompt, tokens, output):
        """An ordinary request, carried out at once."""
        return self.begin(self.ask(prompt, tokens, output))

    @rule(target=reservations, prompt=st.sampled_from(sorted(PROMPTS)), count=st.integers(1, 4))
    def arrive_together(self, prompt, count):
        return multiple(*(self.begin(self.ask(prompt, 641, 300)) for _ in range(count)))

    def ask(self, prompt, tokens, output, priority=0, limit=None, tried=frozenset(), model=MODEL):
        request = Request(
            id=RequestId("r"),
            model=model,
            prompt_tokens=tokens,
            keys=PROMPTS[prompt],
            output_tokens_expected=output,
            priority=priority,
            ttft_slo_s=limit,
            tried=tried,
            session="s",
        )
        state = self.c.rng.getstate()
        found = self.c.decide(request, self.now)
        self.c.rng.setstate(state)
        again = self.c.decide(request, self.now)
        assert type(again) is type(found)
        if isinstance(found, Rejection):
            self.check_rejection(found)
            return None
        assert (again.prefill, again.decode) == (found.prefill, found.decode)
        self.check_decision(found)
        return found

    def check_rejection(self, found):
        assert found.status in STATUSES
        assert 0 <= found.retry_after_s < math.inf
        if found.status in (400, 404):
            assert found.retry_after_s == 0
        if found.code.startswith("predicted"):
            assert found.status == 429
            assert found.predicted is not None

    def check_decision(self, d):
        fleet, r = self.c.fleet, d.request
        for node, prefills in ((d.prefill, True), (d.decode, False)):
            one, slot = fleet.spec(node), fleet.slot(node)
            assert r.model in one.models
            assert fleet.healthy[slot]
            assert not fleet.draining[slot]
            assert node not in r.tried
            assert one.role.prefills if prefills else (one.role.decodes or not d.disaggregated)
        if d.disaggregated:
            a, b = fleet.spec(d.prefill), fleet.spec(d.decode)
            assert a.kv_transfer == b.kv_transfer != ""
            assert set(a.links) & set(b.links)
        else:
            assert d.handover_tokens == 0
        assert 0 <= d.match_tokens <= d.prefix_tokens <= max(r.prompt_tokens - 1, 0)
        assert d.prefix_tokens <= d.reachable_tokens or d.fetch_from is None
        assert d.match_tokens + d.fetch_tokens == d.prefix_tokens
        p = d.predicted
        assert 0 <= p.handover_s <= p.transfer_s
        assert all(0 <= x < math.inf for x in (p.queue_s, p.transfer_s, p.prefill_s, p.tbt_s))
        assert d.prefill not in {n for nodes in d.excluded.values() for n in nodes}
        assert set(d.excluded) <= set(Reason)
        assert np.isfinite(d.candidates.total).all()

    @rule(target=reservations, d=decisions)
    def begin_later(self, d):
        return self.begin(d)

    def begin(self, d):
        if not isinstance(d, Decision):
            return None
        r = self.c.begin(d, self.now)
        self.open.add(id(r))
        self.begun += 1
        return r

    @rule(r=reservations, cached=st.sampled_from([None, 0, 320]))
    def prefill_done(self, r, cached):
        if r is not None:
            r.prefill_done(self.now, cached_tokens=cached)

    @rule(r=reservations)
    def first_token(self, r):
        if r is not None:
            r.first_token(self.now)

    @rule(r=reservations, kind=st.sampled_from(OutcomeKind), cached=st.sampled_from([None, 0, 320]))
    def finish(self, r, kind, cached):
        if r is not None:
            r.finish(outcome(kind, cached_tokens=cached, tpot_s=0.02), self.now)
            self.open.discard(id(r))

    @rule(r=reservations)
    def forgotten(self, r):
        if r is not None:
            with r:
                pass
            self.open.discard(id(r))

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def integrity(self):
        self.c.ledger.check_integrity()
        self.c.index.check_integrity()

    @invariant()
    def each_request_is_open_or_closed_once(self):
        assert len(self.c.ledger.open) == len(self.open)
        assert sum(self.c.ledger.closed.values()) == self.begun - len(self.open)

    @invariant()
    def columns_are_numbers(self):
        fleet = self.c.fleet
        for name in (*COUNTED, "egress_until_s", "handover_until_s"):
            column = getattr(fleet, name)
            assert np.isfinite(column).all(), name
            assert (column >= 0).all(), name

    @invariant()
    def every_structure_knows_the_same_nodes(self):
        slots = {slot for slot, _ in self.c.fleet.slots()}
        assert set(self.c.index.stats().blocks) == slots
        assert set(self.c.breakers._nodes) == slots
        assert set(self.c.trust._nodes) == slots
        assert {self.c.fleet.slot(NodeId(n)) for n in self.c.calibration._fits} == slots

    def teardown(self):
        """Finish what is open: at idle everything is exactly 0."""
        for r in list(self.c.ledger.open.values()):
            r.finish(outcome(OutcomeKind.CLIENT_ABORT), self.now)
        for name in COUNTED:
            assert not getattr(self.c.fleet, name).any(), name
        self.c.ledger.check_integrity()
        self.c.take_events()


TestConductor = ConductorMachine.TestCase
TestConductor.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
