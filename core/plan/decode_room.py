"""Which prefill nodes lead to a decode node with room: a second look when the best one does not.

Prefill nodes are ranked before anyone looks at decoding. Where the chosen one turns out to have
nowhere to decode, the others are judged at once: a node has room where it may decode itself and
keeps everyone's limits, or where a node of its transfer group does. Links are left to the
decode selection that follows.
"""

from __future__ import annotations

import numpy as np

from core.domain import Reason, Request
from core.fleet.ledger import Ledger
from core.fleet.state import FleetState
from core.plan.cost_model import tbt_seconds
from core.policy.constraints import Bools, Check, Standing, decode_checks, narrowed
from core.tunables import Tunables


def with_decode_room(
    fleet: FleetState,
    ledger: Ledger,
    t: Tunables,
    request: Request,
    *,
    left: Standing,
    decoders: Standing,
    refused: int,
    when_s: float,
    tbt_limit_s: float,
) -> Standing:
    """`left` without prefill nodes that have nowhere to decode, `refused` (a slot) among them.

    decoders: nodes that may decode the request at all; when_s: when its prefill would end;
    tbt_limit_s: its own limit, as admission judges it.
    """
    reserve = t.decode.kv_reserve
    home = decode_checks(fleet, request, reserve, fleet.decode_kv)
    away = decode_checks(fleet, request, reserve, fleet.kv_tokens)
    if t.admission.mode != "off":
        kept = (Reason.TBT_SLO, _keeps_limits(fleet, ledger, t, request, when_s, tbt_limit_s))
        home, away = [*home, kept], [*away, kept]
    at_home = elsewhere = decoders.mask
    checks: list[Check] = [(Reason.NO_PATH, at_home | _by_group(fleet, elsewhere))]
    for (reason, here), (_, there) in zip(home, away, strict=True):
        at_home, elsewhere = at_home & here, elsewhere & there
        checks.append((reason, at_home | _by_group(fleet, elsewhere)))
    others = np.arange(fleet.capacity) != refused
    return narrowed(fleet, left, [*checks, (Reason.NO_PATH, others)])


def _by_group(fleet: FleetState, able: Bools) -> Bools:
    """Rows whose transfer group has an able node."""
    groups = fleet.transfer_group
    has = np.zeros(int(groups.max(initial=0)) + 1, np.bool_)
    has[groups[able]] = True
    has[0] = False
    found: Bools = has[groups]
    return found


def _keeps_limits(
    fleet: FleetState,
    ledger: Ledger,
    t: Tunables,
    request: Request,
    when_s: float,
    tbt_limit_s: float,
) -> Bools:
    batch, kv = fleet.decoding, fleet.decode_kv
    if t.admission.early_rejection:
        expected = [ledger.batch_at(slot, when_s) for slot in range(fleet.capacity)]
        batch, kv = np.array(expected, np.float64).T
    added = request.prompt_tokens + request.output_tokens_expected * t.decode.kv_reserve
    tbt_s = tbt_seconds(fleet.d0, fleet.d1, fleet.d2, batch + 1.0, kv + added)
    limit_s = np.minimum(fleet.strictest_tbt_s * t.admission.tbt_slack, tbt_limit_s)
    kept: Bools = tbt_s <= limit_s
    return kept
