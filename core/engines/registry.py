"""Engine kind -> adapter: the only place that knows every family."""

from __future__ import annotations

from core.domain import EngineKind
from core.engines.base import EngineAdapter
from core.engines.sglang import SglangAdapter
from core.engines.vllm import VllmAdapter


class EmulatedAdapter(VllmAdapter):
    """Our emulated engine: vLLM's wire under its own name."""

    kind = EngineKind.EMULATED


_ADAPTERS: dict[EngineKind, EngineAdapter] = {
    a.kind: a for a in (VllmAdapter(), SglangAdapter(), EmulatedAdapter())
}


def adapter(kind: EngineKind) -> EngineAdapter:
    """The adapter of an engine family."""
    return _ADAPTERS[kind]


def adapters() -> dict[EngineKind, EngineAdapter]:
    """Every adapter by kind (a copy)."""
    return dict(_ADAPTERS)
