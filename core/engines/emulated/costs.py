"""How long an emulated step takes: seconds as a function of the work in it."""

from __future__ import annotations

from dataclasses import dataclass


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


PROFILES = {
    # 7e9 weights, fp16, at 45 % of 312 TFLOP/s; decode reads 14 GB at 60 % of 2 TB/s.
    "generic-7b-1gpu": StepCosts(
        c0=0.006, c1=1.0e-4, c2=1.9e-9, d0=0.012, d1=5.0e-5, d2=1.1e-7, x1=1.3e-6
    ),
    # FAST'25 table 1: l 80, d 8192, a 4, b 22, 8 x 312 TFLOP/s at 50 %; KV 320 KB a token.
    "llama3-70b-8xa800": StepCosts(
        c0=0.02, c1=9.46e-5, c2=2.1e-9, d0=0.025, d1=1.0e-4, d2=3.0e-8, x1=3.3e-6
    ),
    # Next to nothing: for tests of everything but time.
    "instant": StepCosts(c0=1e-4, c1=1e-8, c2=0.0, d0=2e-4, d1=0.0, d2=0.0, x0=0.0),
}
"""Known machines by name."""
