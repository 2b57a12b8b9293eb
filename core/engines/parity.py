"""Do we tokenize as the engine does? If not, no block of ours ever matches one of its own.

Pure: ids in, verdict out. The supervisor asks the engine and the gateway's tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Prompt = str | Sequence[Mapping[str, Any]]

PROBES: tuple[Prompt, ...] = (
    "The quick brown fox jumps over 13 lazy dogs.\n\tTabs, and a naïve café: 日本語 🙂",
    " leading space, trailing space ",
    [{"role": "user", "content": "Hello, world! 1234567890"}],
    [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Say\n\nhi."},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Again: ünïcödé"},
    ],
)
"""Texts and conversations on which tokenizers and chat templates tend to differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Outcome of the comparison for one model on one node."""

    model: str
    compared: int
    mismatches: tuple[str, ...]
    """One sentence for each prompt on which the ids differ."""

    @property
    def agrees(self) -> bool:
        """Whether at least one prompt was compared and none differed."""
        return self.compared > 0 and not self.mismatches


def compare(prompt: Prompt, ours: Sequence[int], theirs: Sequence[int]) -> str | None:
    """None where the ids agree, else where they part."""
    if list(ours) == list(theirs):
        return None
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    at = min(len(ours), len(theirs)) if at is None else at
    kind = "text" if isinstance(prompt, str) else "chat"
    return (
        f"{kind} prompt {_brief(prompt)}: token {at} is {_token(ours, at)} for us and "
        f"{_token(theirs, at)} for the engine ({len(ours)} against {len(theirs)} tokens)"
    )


def _token(ids: Sequence[int], at: int) -> str:
    return str(ids[at]) if at < len(ids) else "absent"


def _brief(prompt: Prompt) -> str:
    text = prompt if isinstance(prompt, str) else str(prompt[-1].get("content", ""))
    return repr(text if len(text) <= 40 else text[:37] + "...")
