"""Renders settings and tunables as Markdown tables, and writes them between marks in documents.

`python -m core.reference` brings README.md and core/TUNABLES.md up to date; a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from core.settings import NodeTemplate, Settings
from core.tunables import Tunables, leaves

ROOT = Path(__file__).parent.parent
TUNABLES_HEAD = """# Tunables

What may change while traffic runs. Each change is validated as a whole, gets a revision number,
and holds from the next decision on. Start values stand in the settings file under `[tunables]`;
paths are written as here. Sources: F = the Mooncake paper (FAST'25), L = LMetric (arXiv
2603.15202), S1 to S3 = the articles the scheduler was first described in.

"""


def settings_table() -> str:
    """Every setting with its default and meaning."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    rows += [f"| `{path}` | {default} | {text} |" for path, default, text in _fields(Settings, "")]
    return "\n".join(rows)


def tunables_table() -> str:
    """Every tunable with unit, bounds, default and source."""
    rows = ["| path | default | bounds | unit | meaning | source |", "|---|---|---|---|---|---|"]
    for leaf in leaves(Tunables()):
        if leaf.choices:
            bounds = ", ".join(_shown(c) for c in leaf.choices)
        else:
            bounds = "" if leaf.low is None else f"{leaf.low:g} to {leaf.high:g}"
        row = (f"`{leaf.path}`", _shown(leaf.default), bounds, leaf.unit, leaf.doc, leaf.source)
        rows.append("| " + " | ".join(row) + " |")
    return "\n".join(rows)


def documents() -> Iterator[tuple[Path, str]]:
    """(path, text as it should be) of each document with a generated part."""
    readme = ROOT / "README.md"
    yield readme, between(readme.read_text(), "settings", settings_table())
    yield ROOT / "core" / "TUNABLES.md", TUNABLES_HEAD + tunables_table() + "\n"


def between(text: str, mark: str, content: str) -> str:
    """`text` with what stands between the comments of `mark` replaced."""
    pattern = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
    return pattern.sub(lambda m: f"{m.group(1)}{content}\n{m.group(2)}", text)


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, info in model.model_fields.items():
        inner = _model(info)
        if inner is None:
            yield f"{prefix}{name}", _default(info), _cell(info.description or "")
        elif inner is NodeTemplate:
            text = f"{info.description}: everything of `nodes[]` but id and url"
            yield f"{prefix}{name}", "-", _cell(text)
        elif _repeated(info):
            yield from _fields(inner, f"{prefix}{name}[].")
        else:
            yield from _fields(inner, f"{prefix}{name}.")


def _model(info: FieldInfo) -> type[BaseModel] | None:
    """The nested model of a field, if it is one (or a tuple of them)."""
    for kind in (info.annotation, *get_args(info.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel) and not _optional(info):
            return kind
    return None


def _optional(info: FieldInfo) -> bool:
    return any(not isinstance(a, type) and a is not Ellipsis for a in get_args(info.annotation))


def _repeated(info: FieldInfo) -> bool:
    return getattr(info.annotation, "__origin__", None) is tuple


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    return _shown(info.default)


def _shown(value: Any) -> str:
    if value is None or value in ("", (), frozenset(), {}):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, frozenset)):
        return ", ".join(str(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for path, wanted in documents():
        path.write_text(wanted)
