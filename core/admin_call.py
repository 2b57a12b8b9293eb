"""What commands that talk to a running service share: one call, who asks, how an answer is shown.

A service that is not there, or refuses, ends a command with one line and code 1.
"""

from __future__ import annotations

import getpass
import json as jsonlib
import math
from typing import Annotated, Any, TypeVar

import httpx
import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from core import admin_token, wire
from core.errors import BadRequest, ConductorError

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 30.0
WIDTH_PIPED = 500
"""Columns at most of a table that no terminal shows."""
AUTHOR_CHARS_MAX = 128
Url = Annotated[str, typer.Option("--url", envvar="CONDUCTOR_URL", help="Address of the service.")]
Json = Annotated[bool, typer.Option("--json", help="The API's answer on standard output.")]
Author = Annotated[str, typer.Option("--author", help="Who; default: you.")]
Answer = TypeVar("Answer", bound=BaseModel)


class Refused(ConductorError):
    """The service refused, or is not there. `body`: its answer, empty where there is none."""

    def __init__(self, message: str, *, field: str | None = None, body: bytes = b"") -> None:
        super().__init__(message, field=field)
        self.body = body


def call(
    url: str,
    method: str,
    path: str,
    kind: type[Answer],
    body: dict[str, Any] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Answer:
    """One request to the admin API; Refused with the service's own words, BadRequest for a number
    that is none."""
    try:
        answer = httpx.request(
            method,
            f"{url.rstrip('/')}{wire.API_PREFIX}{path}",
            content=_encoded(body),
            headers={"content-type": "application/json", **admin_token.headers(url)},
            timeout=timeout_s,
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Refused(f"url: no answer from {url}: {error}", field="url") from None
    try:
        if answer.is_success:
            return kind.model_validate_json(answer.content)
        told = wire.ErrorBody.model_validate_json(answer.content).error
    except ValidationError:
        text = f"url: {url} answered {answer.status_code}, not as a conductor does"
        raise Refused(text, field="url") from None
    message = admin_token.advised(answer.status_code, told.message)
    raise Refused(message, field=told.param, body=answer.content)


def _encoded(body: dict[str, Any] | None) -> bytes | None:
    """The body as JSON, which has neither infinity nor what is no number."""
    if body is None:
        return None
    for name, value in {**body, **body.get("changes", {})}.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadRequest(f"{name}: {value} is no finite number", field=name)
    return jsonlib.dumps(body).encode()


def author_or_me(author: str = "") -> str:
    """The given author, or the user who runs the command."""
    if author:
        return author
    try:
        return getpass.getuser()[:AUTHOR_CHARS_MAX]
    except (KeyError, OSError):
        return "cli"


def show(found: BaseModel, json: bool, shown: str | Table) -> None:
    """Print the answer as JSON, or what was made of it."""
    if json:
        typer.echo(found.model_dump_json(indent=2))
    elif isinstance(shown, str):
        typer.echo(shown)
    else:
        print_table(shown)


def print_table(table: Table) -> None:
    """On standard output, with no name or value cut off: what is piped on is as wide as it needs
    to be, and in a narrow terminal long words go on in the next line. Cells are shown as they are
    written: what people write may look like markup."""
    for column in table.columns:
        column.overflow = "fold"
    if table.columns:
        table.columns[0].no_wrap = True
    out = Console(markup=False, emoji=False)
    if not out.is_terminal:
        out = Console(markup=False, emoji=False, width=WIDTH_PIPED)
    out.print(table)


def print_error(message: str) -> None:
    """What ended a command, on standard error, as it is written and not broken into lines."""
    shown = Text.assemble(("error:", "red"), " ", message)
    Console(stderr=True).print(shown, soft_wrap=True)
