"""A second configuration beside the live one, on the object that decides.

A decision reads the configuration from the conductor. `lent` gives it another one for the time of
one decision, on the one event loop that decides; what belongs to the whole fleet (breakers, trust,
detector) is left alone, which is why only parameters of single decisions can be tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

from core.conductor import Conductor
from core.control.canary import Canary
from core.control.revisions import Revision, with_changes
from core.control.shadow import Budget, Tally
from core.domain import Decision, Rejection, Request
from core.errors import Invalid
from core.policy import get_policy, policy_names
from core.tunables import Guard as GuardRules
from core.tunables import Tunables, diff

TRIED = frozenset(
    {"policy", "dynamo", "fetch", "load", "decode", "admission"} | set(policy_names())
)
"""Groups that one decision reads for itself."""


def tried(live: Tunables, changes: Mapping[str, Any]) -> Tunables:
    """The configuration to try; Invalid names a value that only the whole fleet can have."""
    new = with_changes(live, changes)
    found = diff(live, new)
    if not found:
        raise Invalid("changes: every value is what it is already", field="changes")
    for path in found:
        if path.split(".")[0] not in TRIED:
            text = f"{path}: holds for the whole fleet, it cannot be tried beside the live value"
            raise Invalid(text, field=path)
    return new


@contextmanager
def lent(
    conductor: Conductor, tunables: Tunables, revision: int, *, silent: Random | None = None
) -> Iterator[None]:
    """Decide under another configuration inside; nothing else may run meanwhile.

    silent: draws in place of the conductor's generator, so that a decision which nobody follows
    leaves no trace in the ones that are followed; candidates are not kept either.
    """
    kept = conductor.tunables, conductor.revision, conductor.policy, conductor.rng
    explain = conductor.explain
    conductor.tunables, conductor.revision = tunables, revision
    conductor.policy = get_policy(tunables.policy)
    if silent is not None:
        conductor.rng, conductor.explain = silent, False
    try:
        yield
    finally:
        conductor.tunables, conductor.revision, conductor.policy, conductor.rng = kept
        conductor.explain = explain


@dataclass(slots=True)
class CanaryRun:
    """A candidate that decides a share of the traffic."""

    revision: Revision
    tally: Canary
    started_at: datetime
    author: str
    reason: str
    ended: str = ""
    """Why it ended; empty while it runs."""

    def condemned(self, rules: GuardRules) -> str:
        """Why the guard would stop it; empty while nothing speaks against it."""
        live, mine = self.tally.live.total(), self.tally.candidate.total()
        judged = mine.finished + mine.refused
        if judged < rules.sample_min:
            return ""
        bad, before = _bad_share(mine), _bad_share(live)
        burn = bad / (1.0 - rules.objective)
        if burn >= rules.fast_burn and bad >= rules.worse_ratio * before:
            return f"{bad:.1%} of {judged} requests missed their limits, {before:.1%} elsewhere"
        failed = mine.failed / mine.finished if mine.finished else 0.0
        others = live.failed / live.finished if live.finished else 0.0
        if failed >= rules.error_share_max and failed >= rules.worse_ratio * others:
            return f"{failed:.1%} of {mine.finished} requests failed, {others:.1%} elsewhere"
        return ""


def _bad_share(sums: Any) -> float:
    judged = sums.finished + sums.refused
    return 1.0 - sums.good / judged if judged else 0.0


@dataclass(slots=True)
class ShadowRun:
    """A candidate that scores and routes nothing."""

    tunables: Tunables
    changes: Mapping[str, tuple[Any, Any]]
    base: int
    started_at: datetime
    author: str
    reason: str
    rng: Random
    tally: Tally = field(default_factory=Tally)
    budget: Budget = field(default_factory=Budget)
    failures: Counter[str] = field(default_factory=Counter)
    ended: str = ""

    def score(
        self,
        conductor: Conductor,
        request: Request,
        decided: Decision | Rejection,
        *,
        took_s: float,
        lag_s: float,
        timer: Callable[[], float],
    ) -> None:
        """Decide the request a second time, if the budget allows it."""
        if not self.budget.allows(took_s, conductor.tunables.shadow, lag_s=lag_s):
            return
        began = timer()
        try:
            with lent(conductor, self.tunables, conductor.revision, silent=self.rng):
                second = conductor.decide(request, decided.now_s)
        except Exception as error:  # a shadow must never cost a request its answer
            self.failures[type(error).__name__] += 1
        else:
            self.tally.add(decided, second)
        self.budget.spent(timer() - began)
