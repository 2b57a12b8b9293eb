"""Engine families: translation, probing, event streams; and our emulated engine."""

from core.engines.base import Discovery, EngineAdapter, Flow, Usage
from core.engines.registry import adapter, adapters

__all__ = ["Discovery", "EngineAdapter", "Flow", "Usage", "adapter", "adapters"]
