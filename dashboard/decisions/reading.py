"""Reading decisions page by page: full pages out of short ones, and samples for comparisons."""

from __future__ import annotations

from core import wire
from dashboard.api.client import AdminClient

CALLS_MAX = 5
"""Reads for one page: a page may come short, with a cursor to search on from."""
SAMPLE = 500
"""Decisions of each side of a comparison."""
PAGE_MAX = 500


def full_page(client: AdminClient, query: wire.DecisionQuery) -> wire.DecisionPage:
    """A page of `query.limit` rows, or what a few reads find; `next` goes on from there.

    ServiceError of the first read; a later one that fails ends the page early.
    """
    page = client.decisions(query)
    rows = list(page.rows)
    for _ in range(CALLS_MAX - 1):
        if page.next is None or len(rows) >= query.limit:
            break
        more = query.model_copy(update={"cursor": page.next, "limit": query.limit - len(rows)})
        page = client.decisions(more)
        rows += page.rows
    return wire.DecisionPage(rows=rows, next=page.next)


def sample(client: AdminClient, query: wire.DecisionQuery, most: int) -> list[wire.DecisionRow]:
    """The newest decisions that match, at most `most`."""
    asked = query.model_copy(update={"limit": min(PAGE_MAX, most), "cursor": None})
    return list(full_page(client, asked).rows)[:most]
