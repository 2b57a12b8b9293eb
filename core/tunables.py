"""Every live-tunable parameter: typed, bounded, with unit, default and source.

`Tunables` is one frozen tree; a change makes a new tree (`changed`), which is validated as a
whole before it can be seen by any decision. Paths name leaves, e.g. ``linear.alpha``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from core.errors import Invalid
from core.slo_classes import parse_classes
from core.tunable_groups import (
    Admission,
    Alerts,
    Batching,
    Breaker,
    Cpp,
    Decode,
    Dynamo,
    Fetch,
    Forecast,
    Guard,
    Hotspot,
    Linear,
    LlmdDefault2026,
    LlmdWeighted,
    Load,
    Migration,
    Multiplicative,
    PstackLoadaware,
    Shadow,
    Slo,
    SmgCacheAware,
    TrustRules,
    VllmLeastLoaded,
    Weighted,
    text,
)

__all__ = [
    "Admission",
    "Alerts",
    "Batching",
    "Breaker",
    "Cpp",
    "Decode",
    "Dynamo",
    "Fetch",
    "Forecast",
    "Guard",
    "Hotspot",
    "Leaf",
    "Linear",
    "LlmdDefault2026",
    "LlmdWeighted",
    "Load",
    "Migration",
    "Multiplicative",
    "PstackLoadaware",
    "Shadow",
    "Slo",
    "SmgCacheAware",
    "TrustRules",
    "Tunables",
    "VllmLeastLoaded",
    "Weighted",
    "diff",
    "leaves",
    "parse",
    "resolve",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunables:
    """The whole tree. `policy` names the live prefill policy."""

    policy: str = text("min_ttft", "prefill policy", "F Alg. 1")
    linear: Linear = Linear()
    weighted: Weighted = Weighted()
    multiplicative: Multiplicative = Multiplicative()
    dynamo: Dynamo = Dynamo()
    llmd_weighted: LlmdWeighted = LlmdWeighted()
    llmd_default_2026: LlmdDefault2026 = LlmdDefault2026()
    pstack_loadaware: PstackLoadaware = PstackLoadaware()
    smg_cache_aware: SmgCacheAware = SmgCacheAware()
    vllm_least_loaded: VllmLeastLoaded = VllmLeastLoaded()
    fetch: Fetch = Fetch()
    slo: Slo = Slo()
    admission: Admission = Admission()
    load: Load = Load()
    decode: Decode = Decode()
    breaker: Breaker = Breaker()
    trust: TrustRules = TrustRules()
    cpp: Cpp = Cpp()
    migration: Migration = Migration()
    hotspot: Hotspot = Hotspot()
    batching: Batching = Batching()
    guard: Guard = Guard()
    shadow: Shadow = Shadow()
    alerts: Alerts = Alerts()
    forecast: Forecast = Forecast()

    def changed(self, changes: Mapping[str, Any]) -> Tunables:
        """A new tree with `changes` (path -> value) applied together; Invalid names the path."""
        tree = self
        for path, value in changes.items():
            tree = _set(tree, path, value)
        _check_whole(tree)
        return tree


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tunable as documentation and forms need it."""

    path: str
    value: Any
    default: Any
    unit: str
    doc: str
    source: str
    low: float | None
    high: float | None
    choices: tuple[Any, ...]


def leaves(tree: Tunables) -> Iterator[Leaf]:
    """Every leaf of the tree in declaration order."""
    defaults = Tunables()
    for f in fields(tree):
        value = getattr(tree, f.name)
        if is_dataclass(value):
            group = getattr(defaults, f.name)
            for g in fields(value):
                yield _leaf(f"{f.name}.{g.name}", g, getattr(value, g.name), getattr(group, g.name))
        else:
            yield _leaf(f.name, f, value, getattr(defaults, f.name))


def resolve(name: str, policy: str) -> str:
    """Full path of a short name: ``alpha`` under policy ``linear`` is ``linear.alpha``.

    A full path stays itself. Looks in the policy's own group first, then for the one leaf of
    that name; raises Invalid when there is none or more than one.
    """
    paths = [leaf.path for leaf in leaves(Tunables())]
    if name in paths:
        return name
    if f"{policy}.{name}" in paths:
        return f"{policy}.{name}"
    found = [p for p in paths if p.rsplit(".", 1)[-1] == name]
    if len(found) != 1:
        hint = f"write one of {', '.join(found)}" if found else "no tunable has that name"
        raise Invalid(f"{name}: {hint}", field=name)
    return found[0]


def parse(path: str, text: str) -> Any:
    """`text` as the type of the leaf at `path`; Invalid names path and type."""
    for leaf in leaves(Tunables()):
        if leaf.path == path:
            return _parse_as(path, text, leaf.default)
    raise Invalid(f"{path}: no such tunable", field=path)


def diff(old: Tunables, new: Tunables) -> dict[str, tuple[Any, Any]]:
    """Path -> (old, new) for every leaf that differs."""
    pairs = zip(leaves(old), leaves(new), strict=True)
    return {a.path: (a.value, b.value) for a, b in pairs if a.value != b.value}


def _leaf(path: str, f: dataclasses.Field[Any], value: Any, default: Any) -> Leaf:
    m = f.metadata
    return Leaf(
        path, value, default, m["unit"], m["doc"], m["source"],
        m.get("low"), m.get("high"), m.get("choices", ()),
    )  # fmt: skip


def _parse_as(path: str, text: str, default: Any) -> Any:
    if isinstance(default, bool):
        words = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
        if text.lower() not in words:
            raise Invalid(f"{path}: {text!r} is not true or false", field=path)
        return words[text.lower()]
    if isinstance(default, str):
        return text
    kind = type(default)
    try:
        return kind(text)
    except ValueError:
        raise Invalid(f"{path}: {text!r} is not a {kind.__name__}", field=path) from None


def _set(tree: Tunables, path: str, value: Any) -> Tunables:
    head, _, rest = path.partition(".")
    names = {f.name: f for f in fields(tree)}
    if head not in names:
        raise Invalid(f"{path}: no such tunable", field=path)
    if not rest:
        if is_dataclass(getattr(tree, head)):
            raise Invalid(f"{path}: is a group, name one of its values", field=path)
        return dataclasses.replace(tree, **{head: _checked(path, names[head], value)})
    group: Any = getattr(tree, head)
    inner = {f.name: f for f in fields(group)} if is_dataclass(group) else {}
    if rest not in inner:
        raise Invalid(f"{path}: no such tunable", field=path)
    new = dataclasses.replace(group, **{rest: _checked(path, inner[rest], value)})
    return dataclasses.replace(tree, **{head: new})


def _checked(path: str, f: dataclasses.Field[Any], value: Any) -> Any:
    meta = f.metadata
    if "choices" in meta:
        if value not in meta["choices"] or isinstance(value, bool) != isinstance(f.default, bool):
            allowed = ", ".join(str(c).lower() for c in meta["choices"])
            raise Invalid(f"{path}: {value!r} is not one of {allowed}", field=path)
        return value
    if "low" not in meta:
        if not isinstance(value, str):
            raise Invalid(f"{path}: {value!r} is not a text", field=path)
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Invalid(f"{path}: {value!r} is not a number", field=path)
    if not meta["low"] <= value <= meta["high"]:
        unit = f" {meta['unit']}" if meta["unit"] else ""
        text = f"{path}: {value} is outside {meta['low']:g}..{meta['high']:g}{unit}"
        raise Invalid(text, field=path)
    if isinstance(f.default, float):
        return float(value)
    if value != int(value):
        raise Invalid(f"{path}: {value!r} is not a whole number", field=path)
    return int(value)


def _check_whole(tree: Tunables) -> None:
    parse_classes(tree.slo.classes)
    w = tree.weighted
    total = w.load + w.queue + w.compute + w.network + w.model
    if abs(total - 1.0) > 1e-6:
        raise Invalid(f"weighted: weights sum to {total:g}, must sum to 1", field="weighted")
    if tree.breaker.open_max_s < tree.breaker.open_s:
        raise Invalid(
            f"breaker.open_max_s: {tree.breaker.open_max_s:g} is below breaker.open_s",
            field="breaker.open_max_s",
        )
