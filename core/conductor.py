"""The Conductor loop: decide(request, now), begin(decision, now), and what comes back.

Synchronous and without I/O: a decision is a plain function of the request, the fleet's arrays,
the index, the tunables, the generator and `now`. The gateway, the simulator and embedding
programs drive the same object.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from core.domain import Decision, DecisionId, Prediction, Reason, Rejection, Request
from core.fleet.breaker import BreakerBoard
from core.fleet.hotspot import HotspotDetector
from core.fleet.ledger import Ledger, Reservation
from core.fleet.state import FleetState
from core.fleet.trust import TrustBoard
from core.index.prefix_index import PrefixIndex
from core.plan.case import (
    NOTHING_TO_DECODE,
    Case,
    candidate_table,
    needed,
    prefill_only,
    usable_keys,
    weighed,
)
from core.plan.decode_room import with_decode_room
from core.plan.few import FEW, FewCandidates
from core.plan.gathering import GATHERED, credited, gather
from core.plan.placement import DecodeChoice, Reach, choose_decode
from core.plan.prefill import LiveCandidates
from core.plan.prospects import Prospects, prospects
from core.plan.refusal import Refuser
from core.plan.transfer import Topology
from core.policy import Scores, get_policy, pick
from core.policy.base import Totals
from core.policy.constraints import (
    Excluded,
    Standing,
    StandingCache,
    narrowed,
    prefill_checks,
)
from core.roster import Roster
from core.tunables import Tunables

Ints = npt.NDArray[np.int64]


STALE = "telemetry stale: load by the ledger alone"
"""Note of a decision for a node whose gauges are too old to be believed."""


class Conductor(Roster):
    """Schedules requests over registered nodes and explains every choice.

    tunables: the live parameters, replaced as a whole by `apply`. rng: draws among equals.
    new_id: makes decision ids that sort by time. explain: keep every candidate's figures in
    decisions. learn: fit cost models and count accesses of prefixes. The simulator switches
    both off where a study does not need them. Times are monotonic seconds.
    """

    def __init__(
        self,
        *,
        tunables: Tunables | None = None,
        index: PrefixIndex | None = None,
        topology: Topology | None = None,
        rng: random.Random | None = None,
        new_id: Callable[[], str] | None = None,
        revision: int = 1,
        explain: bool = True,
        learn: bool = True,
    ) -> None:
        t = self.tunables = tunables or Tunables()
        self.revision = revision
        self.policy = get_policy(t.policy)
        self.growth = 1.0
        """Prefill load expected soon over that of now (`core.plan.forecast`); 1 where unknown."""
        self.explain = explain
        self.rng = rng or random.Random()
        self._standing, self._reach = StandingCache(), Reach()
        self._fallback = get_policy("round_robin")
        self._new_id = cast("Callable[[], DecisionId]", new_id or counted_ids(self.rng))
        self._refuse = Refuser(self, self._new_id)
        fleet = FleetState()
        super().__init__(
            fleet=fleet,
            ledger=Ledger(fleet),
            index=index or PrefixIndex(),
            topology=topology or Topology(),
            breakers=BreakerBoard(t.breaker, slots=fleet.capacity),
            trust=TrustBoard(t.trust, slots=fleet.capacity),
            detector=HotspotDetector(t.hotspot, 0.0),
            learn=learn,
        )

    def apply(self, tunables: Tunables, revision: int) -> None:
        """Make a validated configuration live, for the next decision on."""
        policy = get_policy(tunables.policy)
        self.tunables, self.revision, self.policy = tunables, revision, policy
        self.breakers.configure(tunables.breaker)
        self.trust.configure(tunables.trust)
        self.detector.configure(tunables.hotspot)

    # -- deciding --------------------------------------------------------------------------

    def decide(self, request: Request, now: float) -> Decision | Rejection:
        """Place a request or refuse it; changes nothing but the generator's state."""
        case = self._open_case(request, now)
        if not case.left.count:
            return self._refuse.nobody(case)
        decided = self._place(case)
        if case.wider is not None and isinstance(decided, Rejection):
            case.left, case.wider = case.wider, None
            return self._place(case)
        return decided

    def schedule(self, request: Request, now: float) -> tuple[Decision, Reservation] | Rejection:
        """`decide`, and `begin` where it was placed."""
        decided = self.decide(request, now)
        if isinstance(decided, Rejection):
            return decided
        return decided, self.begin(decided, now)

    def begin(self, decision: Decision, now: float) -> Reservation:
        """Count the decision's load from now; the reservation must be finished once."""
        limit = decision.request.tbt_slo_s or self.tunables.slo.tbt_s
        made = self.ledger.begin(decision, now, tbt_slo_s=limit)
        t = self.tunables
        self.placed(made, now, hotspot=t.hotspot.enabled, coming=t.batching.coming)
        return made

    def match(self, keys: Mapping[int, Sequence[int]]) -> Ints:
        """M by slot: matched tokens, 0 where the node's cache signal is not believed."""
        row: Ints = self.index.match(keys)
        if self.trust.doubted:
            row[~self.trust.credited[: len(row)]] = 0
        return row

    def prospects(self, request: Request, now: float) -> Prospects:
        """Where a request could go now, load aside, and how soon its prompt would be done there."""
        return prospects(self.fleet, self._open_case(request, now), self.tunables)

    def turned_away(
        self, request: Request, now: float, *, code: str, message: str, retry_after_s: float
    ) -> Rejection:
        """The record of a request that was refused before it came to a decision."""
        return Rejection(
            id=self._refuse.new_id(),
            request=request,
            now_s=now,
            policy=self.policy.name,
            revision=self.revision,
            status=429,
            code=code,
            message=message,
            retry_after_s=retry_after_s,
        )

    # -- steps of a decision ---------------------------------------------------------------

    def _place(self, case: Case) -> Decision | Rejection:
        """On the best node, or the best from which the request could go on."""
        decided = self._place_once(case)
        if case.undecodable and self._keep_decodable(case):
            return self._place_once(case)
        return decided

    def _place_once(self, case: Case) -> Decision | Rejection:
        case.undecodable = False
        self._score(case)
        judged = self.tunables.admission.mode != "off"
        if judged and (late := self._refuse.late(case)) is not None:
            return late
        decode = self._decode(case)
        if isinstance(decode, DecodeChoice):
            refused = self._refuse.slow(case, decode) if judged else None
            if refused is None:
                return self._placed(case, decode)
        else:
            refused = self._refuse.nowhere(case, decode)
        case.undecodable = True
        return refused

    def _keep_decodable(self, case: Case) -> bool:
        """Leave only prefill nodes from which the request could go on; whether any are left."""
        left = with_decode_room(
            self.fleet,
            self.ledger,
            self.tunables,
            case.request,
            left=case.left,
            decoders=self._decoders(case),
            refused=case.slot,
            when_s=case.now + case.predicted.ttft_s,
            tbt_limit_s=self._refuse.tbt_limit_s(case),
        )
        case.left = left if left.count else case.left
        return left.count > 0

    def _decoders(self, case: Case) -> Standing:
        allowed = self.breakers.allowed(case.now)
        return self._standing.get(self.fleet, case.request, allowed, decode=True)

    def _open_case(self, request: Request, now: float) -> Case:
        fleet = self.fleet
        allowed = self.breakers.allowed(now)
        standing = self._standing.get(fleet, request, allowed, decode=False)
        case = Case(request, now, usable_keys(request), standing, standing, self.policy)
        self._match(case)
        if not standing.count:
            return case
        if not self._within_all_limits(request):
            batches = fleet.prefilling + fleet.decoding
            case.left = narrowed(fleet, standing, prefill_checks(fleet, request, batches))
            if not case.left.count:
                return case
        if self.tunables.hotspot.enabled or self.detector.breaker.tripped:
            self._avoid_hotspots(case)
        if self.tunables.batching.coming and len(self.coming):
            self._count_coming(case)
        return case

    def _match(self, case: Case) -> None:
        """What each node holds of the prompt."""
        if self.fleet.capacity <= FEW and not self.trust.doubted:
            case.took_few(self.index.match_few(case.keys))
        else:
            case.took(self.match(case.keys))

    def _within_all_limits(self, request: Request) -> bool:
        """Whether no node's length or queue limit can bite, so that none has to be compared."""
        fleet, length = self.fleet, request.prompt_tokens
        return (
            length < fleet.context_min
            and length <= fleet.kv_capacity_min
            and len(self.ledger.open) + len(self.ledger.holds) < fleet.queue_max_min
        )

    def _avoid_hotspots(self, case: Case) -> None:
        """Fall back to round robin, or take a hot group's holders out for their cool-down.

        Where the request would then be refused they are asked after all: slow beats refused.
        """
        if self.detector.breaker.fallback(case.now):
            case.policy = self._fallback
            return
        hot = self.detector.excluded(self.group(case.request.keys), case.now)
        if hot:
            good = np.ones(self.fleet.capacity, np.bool_)
            good[list(hot)] = False
            cooler = narrowed(self.fleet, case.left, [(Reason.HOTSPOT, good)])
            if 0 < cooler.count < case.left.count:
                case.left, case.wider = cooler, case.left

    def _count_coming(self, case: Case) -> None:
        """Take prefixes under way into account; see core.plan.gathering."""
        fleet, t = self.fleet, self.tunables
        copies: set[int] = set()
        found = self.coming.find(case.keys, fleet.cells.generation, copies=copies)
        found = {slot: n for slot, n in found.items() if self.trust.credited[slot]}
        if not found:
            return
        if not (t.fetch.enabled and fleet.any_can_fetch):
            row = credited(fleet, case, found, copies)
            case.more = None if row is case.match else row
        long = t.batching.shared_tokens_min
        case.gathering = {s for s, n in found.items() if n >= long and s not in copies}
        if case.wider is None and case.policy is not self._fallback:
            gather(fleet, case, found, t)

    def _score(self, case: Case) -> None:
        fleet, t, policy = self.fleet, self.tunables, case.policy
        left = case.left
        rows = case.rows = left.rows
        few = left.count <= FEW
        # A list only where candidates are few, as its slots are.
        held: Any = case.credit if case.matched is None or case.more is not None else case.matched
        c = case.c = (FewCandidates if few else LiveCandidates)(
            fleet,
            self.topology,
            t,
            case.request,
            case.now,
            held,
            rows,
            self.ledger.mean_prefill_s,
            needed(policy, t) if policy.needs else policy.needs,
        )
        scores: Scores | None = None
        if few and policy.few is not None and not self.explain:
            total: Totals = policy.few(cast("FewCandidates", c))
        else:
            scores = policy.score(c, t)
            total = scores.total
        if fleet.weighted or case.now < fleet.slow_until_s:
            total = weighed(fleet, total, policy, rows, case.now)
        row, tied = pick(total, policy.sense, self.rng)
        f = case.chosen = c.at(row)
        case.row, case.slot = row, f.slot
        case.predicted = Prediction(
            queue_s=f.queue_s, transfer_s=f.transfer_s, prefill_s=f.prefill_s
        )
        if self.explain and scores is not None:
            case.table = candidate_table(fleet, case, scores, np.asarray(total), tied)

    def _decode(self, case: Case) -> DecodeChoice | Excluded:
        request, slot = case.request, case.slot
        if not request.output_tokens_expected and not self.fleet.fixed.decodes[slot]:
            return prefill_only(slot)
        return choose_decode(
            self.fleet,
            self.ledger,
            self.topology,
            self.tunables,
            request,
            case.now,
            standing=self._reach.get(self.fleet, self.topology, self._decoders(case), slot),
            prefill=slot,
            predicted=case.predicted,
            held=case.held if case.listed is None else case.listed,
            tbt_slo_s=request.tbt_slo_s or self.tunables.slo.tbt_s,
            rng=self.rng,
            explain=self.explain,
        )

    def _placed(self, case: Case, decode: DecodeChoice) -> Decision:
        fleet, f, slot, p = self.fleet, case.chosen, case.slot, case.predicted
        source, matched, prefix = f.source, f.match_tokens, f.prefix_tokens
        reachable, coming = case.c.reachable_tokens, 0
        if case.more is not None:
            reachable, seen = int(case.match.max()), matched
            matched = int(case.match[slot])
            coming = seen - matched
        generation, nothing = fleet.cells.generation, decode.table is NOTHING_TO_DECODE
        node, life = fleet.fixed.ids[slot], generation[slot]
        stays = decode.slot == slot
        # By position up to the candidates: so many keywords would be packed into a dictionary.
        return Decision(
            self._new_id(),
            case.request,
            case.now,
            case.policy.name,
            self.revision,
            node,
            slot,
            life,
            node if stays else fleet.node_at(decode.slot),
            decode.slot,
            life if stays else generation[decode.slot],
            matched,
            reachable,
            prefix,
            None if source is None else fleet.node_at(source),
            0 if source is None else prefix - matched,
            p if nothing else _with_decode(p, decode),
            case.table,
            case.left.excluded,
            None if nothing else decode.table,
            decode.excluded,
            coming_tokens=coming,
            handover_tokens=decode.moved_tokens,
            signal=self.signal(case.policy, slot, case.request),
            notes=self._notes(case) if case.gathering or fleet.telemetry_seen else (),
        )

    def _notes(self, case: Case) -> tuple[str, ...]:
        stale = (STALE,) if self._stale(case.slot, case.now) else ()
        return (*stale, GATHERED) if case.slot in case.gathering else stale

    def _stale(self, slot: int, now: float) -> bool:
        """Whether the chosen node's own gauges are too old: the ledger alone told its load."""
        fleet = self.fleet
        if not fleet.telemetry_seen:
            return False
        age = now - float(fleet.telemetry_at_s[slot])
        return age > self.tunables.load.stale_after_s


def _with_decode(p: Prediction, decode: DecodeChoice) -> Prediction:
    """The prefill's prediction, with the hand-over and the decode that follow."""
    return Prediction(
        queue_s=p.queue_s,
        transfer_s=p.transfer_s + decode.transfer_s,
        prefill_s=p.prefill_s,
        tbt_s=decode.tbt_s,
        handover_s=decode.transfer_s,
    )


def counted_ids(rng: random.Random) -> Callable[[], str]:
    """Ids that count up behind a random prefix: unique and ordered within one process."""
    prefix = f"{rng.getrandbits(32):08x}-"
    numbers = count(10_000_000_001)  # as many digits for all: quicker than padding
    return lambda: prefix + str(next(numbers))
