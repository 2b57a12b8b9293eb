"""Admin routes of saved views: everybody opens them, operators keep and share them."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Path, Query

from core import wire
from core.errors import Conflict, Forbidden, NotFound
from core.gateway.admin_records import required
from core.identity.audit import entry
from core.identity.principal import ACTING, AccessRole
from core.ports import DocumentRecord

if TYPE_CHECKING:
    from core.gateway.service import Service

KIND = "view"
LISTED_MAX = 2_000
Id = Annotated[str, Path(max_length=64)]
Reason = Annotated[str, Query(max_length=500)]


def view_routes(service: Service) -> APIRouter:
    """All routes, to be mounted under the API's prefix."""
    router = APIRouter(prefix="/views", tags=["views"])

    @router.get("")
    async def views() -> wire.SavedViewList:
        """The caller's own and what others share."""
        found = [_view(record) for record in await _records(service)]
        shown = [v for v in found if v.mine or v.shared]
        shown.sort(key=lambda v: (not v.mine, v.name.casefold(), v.owner))
        return wire.SavedViewList(views=shown)

    @router.post("", status_code=201)
    async def save(asked: wire.SavedViewAsk) -> wire.SavedView:
        """Keep a view; 409 where its name is taken (unless `replace`) or there are too many."""
        record = _record(service, asked)
        mine = {r.id: r for r in await _records(service) if r.owner == record.owner}
        before = mine.get(record.id)
        if before is not None and not asked.replace:
            raise Conflict(f"name: you keep a view {asked.name!r} already", field="name")
        if before is None and len(mine) >= wire.VIEWS_MAX:
            text = f"name: {len(mine)} views are kept, the most for one person; delete one first"
            raise Conflict(text, field="name")
        facts = None if before is None else dict(before.data)
        audit = entry(
            "view.saved", record.at, target=asked.name, reason=asked.reason, before=facts,
            after=dict(record.data),
        )  # fmt: skip
        store = required(service)
        await asyncio.to_thread(store.put_document, record, audit=audit)
        service.counters["views.saved"] += 1
        return _view(record)

    @router.delete("/{id}")
    async def remove(id: Id, reason: Reason = "") -> wire.SavedView:
        """Delete one's own view; administrators delete what others share, too."""
        store, who = required(service), ACTING.get()
        record = await asyncio.to_thread(store.document, KIND, id)
        found = _view(record)
        if not found.mine and not found.shared:
            raise NotFound(f"there is no view {id!r}", field="id")
        if not found.mine and not who.may(AccessRole.ADMIN):
            raise Forbidden(f"the view {found.name!r} is kept by {found.owner}", field="id")
        audit = entry(
            "view.deleted", service.clock.wall(), target=found.name, reason=reason,
            before=dict(record.data) | {"owner": record.owner},
        )  # fmt: skip
        if not await asyncio.to_thread(store.remove_document, KIND, id, audit=audit):
            raise NotFound(f"there is no view {id!r}", field="id")
        service.counters["views.deleted"] += 1
        return found

    return router


async def _records(service: Service) -> list[DocumentRecord]:
    store = required(service)
    return list(await asyncio.to_thread(store.documents, KIND, limit=LISTED_MAX))


def _record(service: Service, asked: wire.SavedViewAsk) -> DocumentRecord:
    owner = ACTING.get().name
    data: dict[str, Any] = asked.model_dump(include={"name", "page", "params", "shared"})
    return DocumentRecord(
        kind=KIND, id=_id(owner, asked.name), owner=owner, at=service.clock.wall(), data=data
    )


def _id(owner: str, name: str) -> str:
    """One id for one name of one person, so that two savings at once cannot make two."""
    return hashlib.blake2b(f"{owner}\0{name}".encode(), digest_size=8).hexdigest()


def _view(record: DocumentRecord) -> wire.SavedView:
    mine = record.owner == ACTING.get().name
    return wire.SavedView(
        id=record.id, owner=record.owner, mine=mine, changed_at=record.at, **record.data
    )
