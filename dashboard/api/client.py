"""Typed client of the admin API: with the feed's thread, the console's only I/O."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from core import wire

T = TypeVar("T", bound=wire.Answer)
CONNECT_S = 1.0
READ_S = 4.0
EXPORT_S = 120.0


class ServiceError(Exception):
    """Base: the service gave no usable answer. The text is for a person."""


class Unreachable(ServiceError):
    """No answer: nothing listens, or it took too long."""


class Refused(ServiceError):
    """The service answered with an error."""

    def __init__(
        self, status: int, detail: wire.ErrorDetail, *, stale: wire.StaleDetail | None = None
    ) -> None:
        super().__init__(detail.message)
        self.status = status
        self.detail = detail
        self.stale = stale
        """Both diffs, where a change was made from a revision that is not live any more."""


class Unreadable(ServiceError):
    """The answer does not have the agreed shape: most likely another version, or not ours."""


class AdminClient:
    """Uses the admin API under `base_url`, with the token of who is signed in ("" for nobody).

    peer: address of the browser, "" where not known; the service believes it where the console
    is one of its trusted proxies. Safe to share between threads.
    """

    def __init__(self, base_url: str, token: str = "", *, peer: str = "") -> None:
        self.base_url = base_url.rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        headers |= {"x-forwarded-for": peer} if peer else {}
        self._http = httpx.Client(
            base_url=self.base_url + wire.API_PREFIX,
            headers=headers,
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
            trust_env=False,
            verify=_trusted(encrypted=self.base_url.startswith("https:")),
        )

    def whoami(self, *, timeout_s: float = READ_S) -> wire.WhoAmI:
        """Who the service takes the token's owner for; Refused (401) for a bad one."""
        return self.call("GET", "/whoami", wire.WhoAmI, timeout_s=timeout_s)

    def log_in(self, user: str, password: str) -> wire.SignedIn:
        """Begin a session; Refused for a wrong name or password."""
        asked = wire.SignIn(user=user, password=password)
        return self.call("POST", "/login", wire.SignedIn, body=asked, timeout_s=15.0)

    def log_in_elsewhere(self, id_token: str, *, timeout_s: float) -> wire.SignedIn:
        """Begin a session of whom an identity provider vouches for; Refused where it is nobody."""
        asked = wire.SignInElsewhere(id_token=id_token)
        return self.call("POST", "/login/oidc", wire.SignedIn, body=asked, timeout_s=timeout_s)

    def log_out(self) -> wire.Done:
        """End the session whose token this client carries."""
        return self.call("POST", "/logout", wire.Done)

    def state(self) -> wire.FleetState:
        """Everything live, at one moment."""
        return self._get("/state", wire.FleetState)

    def live_series(self) -> wire.Series:
        """The last five minutes, from memory."""
        return self._get("/series", wire.Series, {"window": "live"})

    def minutes(self, start: datetime, end: datetime) -> wire.Series:
        """Stored measurements per minute in [start, end)."""
        params = {"window": "minutes", "since": start.isoformat(), "until": end.isoformat()}
        return self._get("/series", wire.Series, params)

    def decisions(self, query: wire.DecisionQuery) -> wire.DecisionPage:
        """One page of decisions, newest first."""
        return self._get("/decisions", wire.DecisionPage, _params(query))

    def export(self, query: wire.ExportQuery) -> bytes:
        """The matching decisions as a file. ServiceError says why there is none."""
        try:
            response = self._http.get(
                "/decisions/export", params=_params(query), timeout=httpx.Timeout(EXPORT_S)
            )
        except httpx.HTTPError as e:
            raise Unreachable(_plain(e)) from e
        if response.status_code != 200:
            raise Refused(response.status_code, _error_detail(response))
        return response.content

    def decision(self, decision_id: str) -> wire.DecisionDetail:
        """One decision by its id, a unique beginning of it, or a request id."""
        return self._get(f"/decisions/{quote(decision_id, safe='')}", wire.DecisionDetail)

    def prompt(self, decision_id: str) -> wire.PromptView:
        """What is kept of a decision's prompt, by its whole id; the audit tells who read it."""
        path = f"/decisions/{quote(decision_id, safe='')}/prompt"
        return self._get(path, wire.PromptView)

    def close(self) -> None:
        """Close idle connections."""
        self._http.close()

    def _get(self, path: str, shape: type[T], params: Mapping[str, str] | None = None) -> T:
        return self.call("GET", path, shape, params=params)

    def call(
        self,
        method: str,
        path: str,
        shape: type[T],
        *,
        params: Mapping[str, str] | None = None,
        body: wire.Ask | None = None,
        timeout_s: float = READ_S,
    ) -> T:
        """One call under the API's prefix, its answer as `shape`. ServiceError says why not."""
        sent = None if body is None else body.model_dump(mode="json", exclude_none=True)
        try:
            response = self._http.request(
                method, path, params=params, json=sent,
                timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
            )  # fmt: skip
        except httpx.TimeoutException as e:
            raise Unreachable(f"no answer within {timeout_s:.0f} s") from e
        except httpx.HTTPError as e:
            raise Unreachable(_plain(e)) from e
        if not response.is_success:
            detail, stale = _error_detail(response), _stale_detail(response)
            raise Refused(response.status_code, detail, stale=stale)
        try:
            return shape.model_validate_json(response.content)
        except ValidationError as e:
            first = e.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "body"
            raise Unreadable(
                f"{method} {path}: field {where}: {first['msg']}; "
                "service and console versions differ"
            ) from e


@cache
def _trusted(*, encrypted: bool) -> ssl.SSLContext:
    """Whom to believe, for all clients: to read the list takes longer than many a page. Nobody,
    where nothing is encrypted."""
    if encrypted:
        return httpx.create_ssl_context(trust_env=False)
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _params(query: wire.DecisionQuery) -> dict[str, str]:
    """Filters as query parameters; what is not asked for is left out."""
    given = query.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    given["limit"] = query.limit
    if isinstance(query, wire.ExportQuery):
        given["format"] = query.format
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in given.items()}


def _plain(e: httpx.HTTPError) -> str:
    if isinstance(e, httpx.ConnectError):
        return "nothing answers at this address"
    return str(e) or type(e).__name__


def _stale_detail(response: httpx.Response) -> wire.StaleDetail | None:
    if response.status_code != 409:
        return None
    try:
        return wire.StaleBody.model_validate_json(response.content).error
    except ValidationError:
        return None


def _error_detail(response: httpx.Response) -> wire.ErrorDetail:
    try:
        return wire.ErrorBody.model_validate_json(response.content).error
    except ValidationError:
        return wire.ErrorDetail(message=f"status {response.status_code} without an explanation")
