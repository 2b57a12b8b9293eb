"""How long an emulated step takes: seconds as a function of the work in it."""

from __future__ import annotations

from dataclasses import dataclass

from core.plan.cost_model import prefill_coefficients, profile, profile_names, tbt_coefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Coefficients of one model on one machine, in seconds.

    Prefill of L tokens after p cached ones: c0 + c1 (L-p) + c2 (L^2 - p^2); chunks of one prompt
    add up to the same. One decode step of b sequences that hold k tokens: d0 + d1 b + d2 k.
    Receiving n tokens of KV: x0 + x1 n.
    """

    c0: float
    c1: float
    c2: float
    d0: float
    d1: float
    d2: float
    x0: float = 0.002
    x1: float = 0.0

    def prefill_s(self, start: int, tokens: int) -> float:
        """A chunk of `tokens` after `start` computed ones, without the constant c0."""
        end = start + tokens
        return self.c1 * tokens + self.c2 * (end * end - start * start)

    def decode_s(self, batch: int, kv_tokens: int) -> float:
        """One token for each of `batch` sequences; 0 for an empty batch."""
        return self.d0 + self.d1 * batch + self.d2 * kv_tokens if batch else 0.0

    def transfer_s(self, tokens: int) -> float:
        """Receiving the KV of `tokens` tokens."""
        return self.x0 + self.x1 * tokens


INSTANT = StepCosts(c0=1e-4, c1=1e-8, c2=0.0, d0=2e-4, d1=0.0, d2=0.0, x0=0.0)
"""Next to nothing: for tests of everything but time."""


def known_costs() -> tuple[str, ...]:
    """Names that `costs_of` takes."""
    return (*profile_names(), "instant")


def costs_of(name: str, *, speed: float = 1.0) -> StepCosts:
    """Costs of a shipped profile on a machine of relative `speed`; KV arrives at NIC rate.

    Raises NotFound for an unknown name.
    """
    if name == "instant":
        return INSTANT
    known = profile(name)
    c0, c1, c2 = prefill_coefficients(known, speed=speed)
    d0, d1, d2 = tbt_coefficients(known, speed=speed)
    x1 = known.kv_bytes_per_token / known.nic_bytes_per_s
    return StepCosts(c0=c0, c1=c1, c2=c2, d0=d0, d1=d1, d2=d2, x1=x1)
