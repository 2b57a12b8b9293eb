"""Latency limits of their own for models and tenants: what one line of text says about classes.

    model=llama-3-70b tenant=gold* ttft_s=2 tbt_s=0.05; tenant=batch ttft_s=600

Entries are parted by semicolons. `model` and `tenant` say whom an entry is for (either may be left
out, and may end in ``*``); `ttft_s` and `tbt_s` are its limits. Of several entries that fit, each
limit comes from the one that says most: a tenant before a model, whole names before beginnings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from core.errors import Invalid

FIELD = "slo.classes"
ENTRIES_MAX = 64
DEFAULT = "default"
"""Class of tenants that no entry names."""
LIMITS_S = {"ttft_s": (0.001, 3600.0), "tbt_s": (0.001, 60.0)}
"""Bounds in seconds, those of `slo.ttft_s` and `slo.tbt_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SloClass:
    """One entry; limits in seconds, None where it sets none."""

    model: str = ""
    tenant: str = ""
    ttft_s: float | None = None
    tbt_s: float | None = None

    def fits(self, model: str, tenant: str) -> bool:
        """Whether it is for requests of this model and tenant."""
        return _fits(self.model, model) and _fits(self.tenant, tenant)

    @property
    def rank(self) -> tuple[int, int]:
        """Larger says more about whom it is for."""
        return _said(self.tenant), _said(self.model)


@lru_cache(maxsize=64)
def parse_classes(text: str) -> tuple[SloClass, ...]:
    """The entries of a text; Invalid names the entry and what is wrong with it."""
    entries = [entry.strip() for entry in text.split(";") if entry.strip()]
    if len(entries) > ENTRIES_MAX:
        raise _wrong(f"{len(entries)} entries, at most {ENTRIES_MAX}")
    classes = tuple(_entry(entry) for entry in entries)
    whom = [(c.model, c.tenant) for c in classes]
    for pair in whom:
        if whom.count(pair) > 1:
            raise _wrong(f"model={pair[0] or '*'} tenant={pair[1] or '*'} stands twice")
    return classes


@lru_cache(maxsize=4096)
def class_limits(text: str, model: str, tenant: str) -> tuple[float | None, float | None]:
    """TTFT and TBT limits in seconds for a request; None where no entry sets one."""
    ttft_s: float | None = None
    tbt_s: float | None = None
    for c in sorted(parse_classes(text), key=lambda c: c.rank):
        if c.fits(model, tenant):
            ttft_s = ttft_s if c.ttft_s is None else c.ttft_s
            tbt_s = tbt_s if c.tbt_s is None else c.tbt_s
    return ttft_s, tbt_s


@lru_cache(maxsize=4096)
def tenant_class(text: str, model: str, tenant: str) -> str:
    """The tenants a request is counted with: the pattern of the entry that says most about its
    tenant, `DEFAULT` where none names it."""
    fit = [c for c in parse_classes(text) if c.tenant and c.fits(model, tenant)]
    return max(fit, key=lambda c: c.rank).tenant if fit else DEFAULT


def _entry(entry: str) -> SloClass:
    said: dict[str, str] = {}
    for word in entry.split():
        name, equals, value = word.partition("=")
        if not equals or not value or name not in ("model", "tenant", *LIMITS_S):
            raise _wrong(f"{word!r} is none of model=, tenant=, ttft_s=, tbt_s= with a value")
        if name in said:
            raise _wrong(f"{name} stands twice in {entry!r}")
        said[name] = value
    limits = {name: _limit(name, said[name]) for name in LIMITS_S if name in said}
    if not limits:
        raise _wrong(f"{entry!r} sets neither ttft_s nor tbt_s")
    if "model" not in said and "tenant" not in said:
        raise _wrong(f"{entry!r} names neither a model nor a tenant: set slo.ttft_s, slo.tbt_s")
    return SloClass(model=said.get("model", ""), tenant=said.get("tenant", ""), **limits)


def _limit(name: str, value: str) -> float:
    low, high = LIMITS_S[name]
    try:
        found = float(value)
    except ValueError:
        raise _wrong(f"{name}={value} is not a number") from None
    if not low <= found <= high:
        raise _wrong(f"{name}={value} is outside {low:g}..{high:g} s")
    return found


def _fits(pattern: str, name: str) -> bool:
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return not pattern or pattern == name


def _said(pattern: str) -> int:
    """0 for anybody, then the length of a beginning, and whole names above all of these."""
    if not pattern:
        return 0
    return len(pattern) if pattern.endswith("*") else 1_000_000


def _wrong(what: str) -> Invalid:
    return Invalid(f"{FIELD}: {what}", field=FIELD)
