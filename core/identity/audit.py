"""Entries of the administrative audit: who, when, from where, why, before and after."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from core.identity.principal import ACTING, Principal
from core.ports import AuditDraft

JSON_CHARS_MAX = 16_384
TEXT_CHARS_MAX = 500


def entry(
    action: str,
    at: datetime,
    *,
    target: str = "",
    reason: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    who: Principal | None = None,
) -> AuditDraft:
    """An entry for who is acting now, unless `who` is given."""
    who = who or ACTING.get()
    return AuditDraft(
        at=at,
        actor=who.name[:TEXT_CHARS_MAX],
        kind=who.kind.value,
        role=who.role.value if who.role else "",
        peer=who.peer[:TEXT_CHARS_MAX],
        action=action,
        target=target[:TEXT_CHARS_MAX],
        reason=reason[:TEXT_CHARS_MAX],
        before=_text(before),
        after=_text(after),
    )


def _text(facts: Mapping[str, Any] | None) -> str:
    """Facts as JSON, cut where they are too long to be kept."""
    if facts is None:
        return ""
    text = json.dumps(facts, sort_keys=True, default=str, ensure_ascii=False)
    if len(text) <= JSON_CHARS_MAX:
        return text
    return json.dumps({"cut": len(text), "begins": text[: JSON_CHARS_MAX // 2]})
