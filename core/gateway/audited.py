"""Acts on what lives in memory: first entered in the audit, then done.

The entry is stored before anything happens, so no act goes without one: where the database is
away, nothing happens and the caller gets 503. An act that turns out impossible leaves a second
entry that says so. Acts that change what is stored go with their entry in one transaction
instead (`core.control`, `core.identity.identities`, `core.gateway.committed`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from core import wire
from core.errors import ConductorError, StoreError
from core.identity.audit import entry

if TYPE_CHECKING:
    from core.gateway.service import Service


@asynccontextmanager
async def audited(
    service: Service,
    action: str,
    *,
    target: str = "",
    reason: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> AsyncIterator[None]:
    """Enter the act, then let its body happen. StoreError, and it does not.

    A service without a store has no audit.
    """
    store, at = service.store, service.clock.wall()
    if store is None:
        yield
        return
    draft = entry(action, at, target=target, reason=reason, before=before, after=after)
    await asyncio.to_thread(store.append_audit, draft)
    try:
        yield
    except ConductorError as error:
        why = {"error": error.message}
        failed = entry(f"{action}.refused", at, target=target, reason=reason, after=why)
        with contextlib.suppress(StoreError):
            await asyncio.to_thread(store.append_audit, failed)
        raise


def asked_facts(asked: wire.Ask) -> dict[str, Any]:
    """What was asked for, without who and why."""
    return asked.model_dump(mode="json", exclude={"author", "reason"}, exclude_unset=True)
