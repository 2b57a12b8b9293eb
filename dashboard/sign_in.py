"""Signing in and out: a plain page beside the console that leaves the token in a cookie.

The cookie cannot be read by scripts (HttpOnly) and never comes along from another site (SameSite);
the console reads it when a browser connects, and sends the token to the admin API, where every
check is made. A token in the address (the link that a first start prints) is exchanged at once.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit, urlunsplit

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from core import wire
from dashboard import oidc
from dashboard.api.client import AdminClient, Refused, ServiceError
from dashboard.navigation import address, present
from dashboard.session import COOKIE, service_url
from dashboard.who import NEXT

SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
BODY_BYTES_MAX = 4096
FIELDS_MAX = 8
NEXT_CHARS_MAX = 4096
COOKIE_AGE_S = 12 * 3600
PATIENCE_S = 15.0
"""Signing in may wait longer than a page's refresh."""
_TOKEN = re.compile(r"[!-~]{1,512}")
"""What can stand in a header, where it is sent; the service knows which are good."""
_HEADERS = {
    "cache-control": "no-store",
    # Not "no-referrer": browsers would send the forms with the Origin "null".
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
}
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Conductor: sign in</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 22rem; margin: 12vh auto }}
h1 {{ font-size: 1.4rem }}
label {{ display: block; margin-top: .8rem }}
input {{ font: inherit; width: 100%; box-sizing: border-box; padding: .4rem }}
button {{ font: inherit; margin-top: 1rem; padding: .4rem 1.2rem }}
hr {{ margin: 1.5rem 0 }}
.error {{ color: #b3261e; font-weight: 600 }}
</style>
<h1>Conductor</h1>
<p class="error" role="alert">{error}</p>
<form method="post"><label>User <input name="user" value="{user}" autocomplete="username"></label>
<label>Password <input name="password" type="password" autocomplete="current-password"></label>
<button>Sign in</button></form>
{elsewhere}<hr><form method="post"><label>or a token <input name="token" type="password"></label>
<button>Use the token</button></form>
</html>"""


def routes() -> list[Route]:
    """The two routes, for the console's server."""
    return [
        Route(SIGN_IN, _sign_in, methods=["GET", "POST"]),
        Route(SIGN_OUT, _sign_out, methods=["GET"]),
    ]


async def _sign_in(request: Request) -> Response:
    """The page, or what its forms (or a printed link) send."""
    if request.method == "GET":
        token = request.query_params.get("token", "")
        return await _with_token(request, token) if token else _page()
    if not _from_here(request):
        return _page("The form was sent from another site.", 403)
    form = await _form(request)
    if form is None:
        return _page("That is too long.", 413)
    if "token" in form:
        return await _with_token(request, form["token"].strip())
    return await _with_password(request, form.get("user", ""), form.get("password", ""))


async def _with_token(request: Request, token: str) -> Response:
    if not _TOKEN.fullmatch(token):
        return _page("Token: paste one whole, as it was printed.", 422)
    try:
        await run_in_threadpool(_check, token)
    except ServiceError as error:
        return _refused(error)
    return _welcome(request, token)


async def _with_password(request: Request, user: str, password: str) -> Response:
    peer = request.client.host if request.client else ""
    try:
        asked = wire.SignIn(user=user, password=password)
    except ValidationError as error:
        wrong = {str(e["loc"][0]): e["ctx"] for e in error.errors()}
        return _page(" ".join(map(_length_words, wrong, wrong.values())), 422, user)
    try:
        token = await run_in_threadpool(_log_in, asked, peer)
    except ServiceError as error:
        return _refused(error, user)
    return _welcome(request, token)


async def _sign_out(request: Request) -> Response:
    """End the session at the service, forget the cookie, and go back."""
    token = request.cookies.get(COOKIE, "")
    elsewhere = any(name.startswith(oidc.COOKIE) for name in request.cookies)
    there = f"/?{oidc.STEP}={oidc.END}" if elsewhere else "/"
    answer = RedirectResponse(there, 303, headers=_HEADERS)
    if token:
        await run_in_threadpool(_log_out, token)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


def _check(token: str) -> None:
    client = AdminClient(service_url(), token)
    try:
        client.call("GET", "/whoami", wire.WhoAmI, timeout_s=PATIENCE_S)
    finally:
        client.close()


def _length_words(field: str, bounds: Mapping[str, int]) -> str:
    """What a field takes, by the bound that its text broke."""
    if "max_length" in bounds:
        return f"{field.capitalize()}: at most {bounds['max_length']} characters."
    return f"{field.capitalize()}: fill it in."


def _log_in(asked: wire.SignIn, peer: str) -> str:
    client = AdminClient(service_url(), peer=peer)
    try:
        return client.log_in(asked.user, asked.password).token
    finally:
        client.close()


def _log_out(token: str) -> None:
    client = AdminClient(service_url(), token)
    try:
        client.log_out()
    except ServiceError:
        pass  # the cookie goes in any case, and the session ends by its age
    finally:
        client.close()


def _welcome(request: Request, token: str) -> Response:
    there = way_back(request.query_params.get(NEXT, ""))
    answer = RedirectResponse(there, 303, headers=_HEADERS)
    forwarded = request.headers.get("x-forwarded-proto", "")
    answer.set_cookie(
        COOKIE,
        token,
        max_age=COOKIE_AGE_S,
        path="/",
        httponly=True,
        samesite="strict",
        secure="https" in (request.url.scheme, forwarded),
    )
    return answer


def way_back(asked: str) -> str:
    """Where to go after signing in: a page of this console as it was asked for, or its first."""
    parts = urlsplit(asked)
    known = {address(e.name) for entries in present().values() for e in entries}
    if parts.scheme or parts.netloc or parts.path not in known or len(asked) > NEXT_CHARS_MAX:
        return "/"
    return urlunsplit(("", "", parts.path, parts.query, ""))


def _page(error: str = "", status: int = 200, user: str = "") -> Response:
    """The page; `user` is what was typed before."""
    name, elsewhere = oidc.offered(), ""
    if name:
        there = f"/?{oidc.STEP}={oidc.BEGIN}"
        elsewhere = f'<p><a href="{there}">Sign in with {html.escape(name)}</a></p>'
    typed = html.escape(user, quote=True)
    text = _PAGE.format(error=html.escape(error), elsewhere=elsewhere, user=typed)
    return HTMLResponse(text, status, headers=_HEADERS)


async def _form(request: Request) -> dict[str, str] | None:
    """The fields of a short form; None where it is not short."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            return None
    text = body.decode("utf-8", "replace")
    try:
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        return None
    return {name: values[0] for name, values in fields.items()}


def _from_here(request: Request) -> bool:
    """Whether a form comes from this console's own page: browsers say so in Origin."""
    origin = request.headers.get("origin", "")
    return not origin or urlsplit(origin).netloc == request.headers.get("host", "")


def _refused(error: ServiceError, user: str = "") -> Response:
    """The page again, with the service's own words or what is wrong with it."""
    if isinstance(error, Refused):
        return _page(str(error), error.status, user)
    return _page(f"The service does not answer: {error}. Try again.", 503, user)
