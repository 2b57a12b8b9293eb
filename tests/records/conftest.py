"""The record store of both databases, open and without rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage.store import Storage, open_storage


@pytest.fixture
def storage(record_url: str) -> Iterator[Storage]:
    with open_storage(record_url) as opened:
        yield opened
