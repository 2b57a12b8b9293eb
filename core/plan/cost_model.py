"""What computing costs: seconds of prefill and of a decode step, from model and hardware data.

Prefill of a prompt of L tokens whose first p are cached (F eq. 1)::

    FLOPs(n) = layers * (a n^2 d + b n d^2)
    t(L, p)  = overhead + (FLOPs(L) - FLOPs(p)) / (gpus * gpu_flops * mfu)
             = c0 + c1 * (L - p) + c2 * (L^2 - p^2)

A decode step of a batch of b requests that hold k KV tokens together (spec 4)::

    TBT(b, k) = d0 + d1 * b + d2 * k

Coefficients are plain floats, so that a node's can be replaced by fitted ones (core.plan.fit).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from core.errors import Invalid, NotFound
from core.plan.fit import Coefficients, PrefillFit, TbtFit

__all__ = [
    "Coefficients",
    "PrefillFit",
    "Profile",
    "TbtFit",
    "prefill_coefficients",
    "prefill_flops",
    "prefill_seconds",
    "profile",
    "profile_from_json",
    "profile_names",
    "tbt_coefficients",
    "tbt_seconds",
]

Number = TypeVar("Number", float, npt.NDArray[np.float64])

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NonNegative = Annotated[float, msgspec.Meta(ge=0)]
_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model on given hardware, as data. Where each figure comes from stands in `source`.

    `attention_flops` and `linear_flops` are a and b of F eq. 1; for a mixture of experts only
    the active weights count. `prefill_measured` and `tbt_measured` are coefficients fitted
    elsewhere for this very model and hardware; they replace the analytic ones.
    """

    name: str
    model: str
    hardware: str
    layers: Annotated[int, msgspec.Meta(gt=0)]
    d_model: Annotated[int, msgspec.Meta(gt=0)]
    attention_flops: _Positive
    """a: FLOPs per token pair, layer and unit of width."""
    linear_flops: _Positive
    """b: FLOPs per token, layer and squared unit of width."""
    gqa_ratio: _Positive
    """Model width over the width of its keys."""
    bytes_per_value: _Positive
    """Of the KV cache: 2 for 16 bits, 1 for FP8 and INT8."""
    gpus: Annotated[int, msgspec.Meta(gt=0)]
    gpu_flops: _Positive
    """Peak FLOP/s of one GPU."""
    mfu: _Share
    """Share of the peak that a prefill reaches."""
    prefill_overhead_s: _NonNegative
    gpu_memory_bytes_per_s: _Positive
    memory_efficiency: _Share
    decode_weight_bytes: _Positive
    """Weights read in one decode step, over all GPUs."""
    decode_mfu: _Share
    decode_overhead_s: _NonNegative
    host_bytes_per_s: _Positive
    """Between host memory and GPUs."""
    nic_bytes_per_s: _Positive
    source: Mapping[str, str]
    prefill_measured: Coefficients | None = None
    tbt_measured: Coefficients | None = None

    @property
    def flops_per_s(self) -> float:
        """Peak of all GPUs together: G of F table 1."""
        return self.gpus * self.gpu_flops

    @property
    def kv_bytes_per_token(self) -> float:
        """Keys and values of one token over all layers, in bytes."""
        return 2 * self.layers * self.d_model / self.gqa_ratio * self.bytes_per_value


def profile_from_json(data: bytes | str) -> Profile:
    """A profile from its JSON text; Invalid names the field and what was expected."""
    try:
        return msgspec.json.decode(data, type=Profile)
    except msgspec.DecodeError as e:
        raise Invalid(f"profile: {e}", field="profile") from None


@functools.cache
def profile_names() -> tuple[str, ...]:
    """Names of the profiles that ship, sorted."""
    names = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(n.removesuffix(".json") for n in names if n.endswith(".json")))


@functools.cache
def profile(name: str) -> Profile:
    """The shipped profile of that name; NotFound lists the known ones."""
    if name not in profile_names():
        known = ", ".join(profile_names())
        raise NotFound(f"unknown profile {name!r}; known: {known}", field="profile")
    return profile_from_json((_folder() / f"{name}.json").read_bytes())


def _folder() -> resources.abc.Traversable:
    return resources.files("core.plan") / "profiles"


def prefill_flops(p: Profile, tokens: float) -> float:
    """FLOPs to prefill `tokens` tokens with nothing cached (F eq. 1)."""
    linear = p.linear_flops * tokens * p.d_model**2
    return p.layers * (p.attention_flops * tokens**2 * p.d_model + linear)


def prefill_coefficients(
    p: Profile, *, mfu: float | None = None, speed: float = 1.0
) -> Coefficients:
    """(c0 s, c1 s/token, c2 s/token^2) of t(L, p) on a node of relative `speed`.

    `mfu` overrides the profile's own figure and with it any measured coefficients.
    """
    _check_speed(speed)
    if p.prefill_measured is not None and mfu is None:
        return _scaled(p.prefill_measured, 1 / speed)
    used = p.mfu if mfu is None else mfu
    if not 0 < used <= 1:
        raise Invalid(f"mfu: {used} is outside 0..1, 0 excluded", field="mfu")
    rate = p.flops_per_s * used * speed
    c1 = p.layers * p.linear_flops * p.d_model**2 / rate
    c2 = p.layers * p.attention_flops * p.d_model / rate
    return p.prefill_overhead_s / speed, c1, c2


def prefill_seconds(c0: Number, c1: Number, c2: Number, length: Number, prefix: Number) -> Number:
    """t(L, p) in seconds for 0 <= prefix <= length; floats, or arrays that broadcast."""
    return c0 + (length - prefix) * (c1 + c2 * (length + prefix))


def tbt_coefficients(p: Profile, *, speed: float = 1.0) -> Coefficients:
    """(d0 s, d1 s/request, d2 s/token) of TBT(b, k): a roofline of memory and compute.

    Each step reads the weights and the batch's KV once and computes one token a request.
    """
    _check_speed(speed)
    if p.tbt_measured is not None:
        return _scaled(p.tbt_measured, 1 / speed)
    memory = p.gpus * p.gpu_memory_bytes_per_s * p.memory_efficiency
    flops_per_token = p.layers * p.linear_flops * p.d_model**2
    analytic = (
        p.decode_overhead_s + p.decode_weight_bytes / memory,
        flops_per_token / (p.flops_per_s * p.decode_mfu),
        p.kv_bytes_per_token / memory,
    )
    return _scaled(analytic, 1 / speed)


def tbt_seconds(d0: Number, d1: Number, d2: Number, batch: Number, kv_tokens: Number) -> Number:
    """TBT(b, k) in seconds; floats, or arrays that broadcast."""
    return d0 + d1 * batch + d2 * kv_tokens


def _check_speed(speed: float) -> None:
    if not speed > 0:
        raise Invalid(f"speed: {speed} must be above 0", field="speed")


def _scaled(c: Coefficients, factor: float) -> Coefficients:
    return c[0] * factor, c[1] * factor, c[2] * factor
