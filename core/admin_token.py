"""The token the command line acts with.

It is the one given (`conductor --token TOKEN …`, or CONDUCTOR_TOKEN), else, for a service on this
machine, that of the state directory's admin.token.
"""

from __future__ import annotations

from contextvars import ContextVar

import httpx

from core.errors import BadRequest
from core.identity import admin_file
from core.identity.peers import is_loopback
from core.settings import load_settings

ADVICE = "act with a token: conductor --token TOKEN …, or CONDUCTOR_TOKEN"
_GIVEN: ContextVar[str] = ContextVar("given_token", default="")


def use(token: str) -> None:
    """Act with this token from now on; BadRequest, which does not repeat it, where it is none."""
    given = token.strip()
    if not (given.isascii() and given.isprintable()) or " " in given:
        raise BadRequest(
            "token: has characters that no token has (--token, CONDUCTOR_TOKEN)", field="token"
        )
    _GIVEN.set(given)


def headers(url: str) -> dict[str, str]:
    """The Authorization header for a service; empty where there is no token for it."""
    token = _GIVEN.get() or _local(url)
    return {"authorization": f"Bearer {token}"} if token else {}


def advised(status: int, message: str) -> str:
    """A refusal's words, with what to do where a token would help."""
    return f"{message} ({ADVICE})" if status in (401, 403) else message


def _local(url: str) -> str | None:
    """The state directory's token; it is never sent to another machine."""
    try:
        host = httpx.URL(url).host
    except httpx.InvalidURL:
        return None
    return admin_file.read(load_settings().state_dir) if is_loopback(host) else None
