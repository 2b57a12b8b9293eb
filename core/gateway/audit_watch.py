"""Reads the administrative audit's chain again, in small batches, all of it every hour or so."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from core.errors import StoreError
from core.ports import AuditMark, ChainFault

if TYPE_CHECKING:
    from core.gateway.service import Service

PERIOD_S = 10.0
BATCH = 500
"""Entries a look: some milliseconds in a thread."""
AGAIN_S = 3600.0
"""From the end of one whole reading to the next."""
log = logging.getLogger("conductor.gateway")


class AuditWatch:
    """How far the audit is as it was written. One a service; `look` is its job.

    New entries are checked as they come, beginning with the last good one, so that entries taken
    off the end show as well. All the others are read again from time to time. A fault stays until
    the entry is as it was.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._end = self._again = AuditMark()
        self._again_at_s = math.inf
        self._known = False
        self.fault: ChainFault | None = None
        if service.store is not None:
            what = "read the audit's chain again, a batch at a time"
            service.jobs.add("audit_chain", self.look, every_s=PERIOD_S, what=what)

    @property
    def broken(self) -> float | None:
        """1 where an entry is not as it was written, 0 where all are; None: not yet known."""
        if self.fault is not None:
            return 1.0
        return 0.0 if self._known else None

    @property
    def checked(self) -> int:
        """Entries found good, from the first one on."""
        return self._end.number

    async def look(self) -> None:
        """Check one more batch of new entries and one of old ones. StoreError without a store."""
        now = self._service.clock.now()
        self._end, fault, through = await self._batch(self._end)
        if fault is None and through:
            self._known = True
            fault = await self._reread(now)
        if fault is not None and fault != self.fault:
            log.error("audit entry %d %s", fault.number, fault.what)
        self.fault = fault

    async def _reread(self, now: float) -> ChainFault | None:
        """One batch of a whole reading, where one is under way or due."""
        if self._again_at_s == math.inf:
            self._again_at_s = now + AGAIN_S
        if now < self._again_at_s:
            return None
        self._again, fault, through = await self._batch(self._again)
        if fault is None and through:
            self._again, self._again_at_s = AuditMark(), now + AGAIN_S
        return fault

    async def _batch(self, mark: AuditMark) -> tuple[AuditMark, ChainFault | None, bool]:
        """(how far it is good, the fault, whether that is the end)."""
        store = self._service.store
        if store is None:
            raise StoreError("this service keeps no records")
        good, fault = await asyncio.to_thread(store.verify_audit_from, mark, limit=BATCH)
        return good, fault, good.number - mark.number < BATCH
