"""Prompt text beside the decisions, where keeping it is switched on; what retention leaves of it.

The text is redacted before it comes here, and stands in a table of its own: no list, export or
copy of decisions has it.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from core.errors import NotFound
from core.ports import KeptPrompt
from storage.models import prompts
from storage.types import from_micros


def of_decision(connection: Connection, id: str) -> KeptPrompt:
    """The prompt of a decision, by its whole id; NotFound where none is kept."""
    row = connection.execute(select(prompts).where(prompts.c.decision_id == id)).one_or_none()
    if row is None:
        raise NotFound(f"no prompt is kept of decision {id!r} (records.keep_prompts)", field="id")
    return KeptPrompt(decision_id=row.decision_id, at=from_micros(row.at_us), text=row.text)
