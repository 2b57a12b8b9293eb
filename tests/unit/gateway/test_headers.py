"""What crosses the proxy, both ways, and which heads are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadRequest
from core.gateway.headers import (
    REQUEST_ALLOWED,
    RESPONSE_ALLOWED,
    HeadTooLarge,
    check_request_head,
    request_headers,
    response_headers,
    safe_id,
)

HOP_BY_HOP = [
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection",
]  # fmt: skip
PRIVATE = [
    b"authorization", b"cookie", b"host", b"content-length", b"forwarded", b"x-forwarded-for",
    b"x-forwarded-host", b"x-real-ip", b"x-data-parallel-rank", b"x-conductor-tenant",
    b"x-smg-routing-key", b"accept-encoding", b"api-key", b"x-api-key", b"x-request-id",
]  # fmt: skip
FROM_ENGINES = [b"set-cookie", b"server", b"date", b"content-length", b"via", b"x-powered-by"]


@pytest.mark.parametrize("name", HOP_BY_HOP + PRIVATE)
def test_client_headers_that_stay_behind(name):
    assert request_headers([(name, b"v"), (b"accept", b"a/b")], {}) == {"accept": "a/b"}


@pytest.mark.parametrize("name", HOP_BY_HOP + FROM_ENGINES)
def test_engine_headers_that_stay_behind(name):
    kept = response_headers([(name.title(), b"v"), (b"Content-Type", b"a/b")])
    assert kept == [(b"content-type", b"a/b")]


def test_connection_takes_named_headers_with_it():
    head = [(b"connection", b"Content-Type, close"), (b"content-type", b"a/b"), (b"accept", b"x")]
    assert request_headers(head, {}) == {"accept": "x"}
    assert response_headers(head) == []


def test_ours_win():
    assert request_headers([(b"accept", b"x")], {"accept": "y", "x-request-id": "1"}) == {
        "accept": "y",
        "x-request-id": "1",
    }


names = st.sampled_from(sorted(REQUEST_ALLOWED | RESPONSE_ALLOWED) + HOP_BY_HOP + PRIVATE)
heads = st.lists(st.tuples(names, st.sampled_from([b"", b"v", b"close", b"accept, x"])), max_size=8)


@given(heads)
def test_filters_are_idempotent(head):
    once = response_headers(head)
    assert response_headers(once) == once
    sent = request_headers(head, {})
    again = [(k.encode(), v.encode()) for k, v in sent.items()]
    assert request_headers(again, {}) == sent


@pytest.mark.parametrize(
    "head",
    [
        [(b"content-length", b"5"), (b"content-length", b"5")],
        [(b"content-length", b"5"), (b"content-length", b"6")],
        [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", b"")],
        [(b"content-length", b"+5")],
        [(b"content-length", b"5, 5")],
        [(b"content-length", b"0x5")],
        [(b"content-length", b"-1")],
        [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
        [(b"transfer-encoding", b"gzip, chunked")],
        [(b"transfer-encoding", b"xchunked")],
        [(b"transfer-encoding", b"identity")],
        [(b"content_length", b"5")],
        [(b"x user", b"5")],
        [(b"", b"5")],
        [(b"x-a", b"1\x00")],
        [(b"x-a", b"1\r\nx-b: 2")],
    ],
)
def test_ambiguous_heads_are_refused(head):
    with pytest.raises(BadRequest) as e:
        check_request_head([(b"host", b"x"), *head])
    assert e.value.status == 400


def test_heads_are_bounded():
    with pytest.raises(HeadTooLarge) as e:
        check_request_head([(b"x-a", b"1")] * 101)
    assert e.value.status == 431
    with pytest.raises(HeadTooLarge):
        check_request_head([(b"x-a", b"1" * 17_000)])


def test_plain_heads_pass():
    check_request_head([(b"host", b"x"), (b"content-length", b"12"), (b"x-a", b"tab\tok")])
    check_request_head([(b"transfer-encoding", b"chunked")])


@pytest.mark.parametrize(
    ("given", "kept"),
    [(b"abc-1", "abc-1"), (b"", ""), (b"a b", ""), (b"a\nb", ""), (b"x" * 129, ""), (b"-x", "")],
)
def test_request_ids_are_harmless_or_ours(given, kept):
    assert safe_id(given) == kept
