"""The document every page begins with, and the chart library beside it."""

import re

import plotly
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dashboard import front
from dashboard.navigation import address, present

PAGES = [address(entry.name) for entries in present().values() for entry in entries]


@pytest.fixture(scope="module")
def client():
    return TestClient(Starlette(routes=front.routes()))


@pytest.mark.parametrize("page", PAGES)
def test_each_page_begins_with_streamlits_document_and_asks_for_the_library(client, page):
    answer = client.get(page)
    assert answer.headers["cache-control"] == "no-cache"
    assert '<div id="root">' in answer.text
    [named] = re.findall(r'href="\.(\S+)" data-chart-library', answer.text)
    assert named == f"{front.LIBRARY}?v={plotly.__version__}"
    assert answer.text.index("data-chart-library") < answer.text.index("</head>")


def test_the_library_travels_packed_and_is_the_installed_one(client):
    packed = client.get(front.LIBRARY)
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < front.PLOTLY_JS.stat().st_size / 3
    plain = client.get(front.LIBRARY, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content == front.PLOTLY_JS.read_bytes()
    for answer in (packed, plain):
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["vary"] == "Accept-Encoding"


def test_a_document_of_another_shape_is_served_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "index.html").write_text("<html>another</html>")
    monkeypatch.setattr(front, "get_static_dir", lambda: str(tmp_path))
    front.document.cache_clear()
    try:
        assert front.document() == "<html>another</html>"
    finally:
        front.document.cache_clear()
