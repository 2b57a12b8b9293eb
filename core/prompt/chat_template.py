"""Chat templates as Hugging Face models ship them: sandboxed jinja over the messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core.errors import BadRequest

_LOOPS_OVER_CONTENT = re.compile(
    r"for\s+\w+\s+in\s+\w+(?:\[\w+\])?(?:\.content|\[\s*['\"]content['\"]\s*\])", re.ASCII
)
_FAILURES = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What a template can run into over messages or tools of a shape it does not expect."""


class ChatTemplate:
    """One compiled template. `tokens` are the special tokens it may name (bos_token, ...)."""

    def __init__(self, source: str, *, tokens: Mapping[str, str] | None = None) -> None:
        self._template = _environment().from_string(source)
        self._tokens = dict(tokens or {})
        self.wants_parts = bool(_LOOPS_OVER_CONTENT.search(source))
        """Whether it walks over content parts itself; else parts are joined to one text."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The conversation as one text. BadRequest where the template refuses it.

        extra: further template variables (chat_template_kwargs); they cannot replace the
        messages. now: the date a template may print, local time of the caller when None.
        """
        values: dict[str, Any] = {**self._tokens, **(extra or {})}
        values["messages"] = [self._message(m) for m in messages]
        values["tools"] = list(tools) if tools else None
        values.setdefault("documents", None)
        values["add_generation_prompt"] = add_generation_prompt
        values["strftime_now"] = (now or datetime.now()).strftime
        try:
            return self._template.render(values)
        except jinja2.TemplateError as error:
            text = f"the chat template refused the messages: {error}"
            raise BadRequest(text[:500], field="messages") from None
        except _FAILURES as error:
            text = f"the chat template failed on the messages: {type(error).__name__}: {error}"
            raise BadRequest(text[:500], field="messages") from None

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        out = dict(message)
        content = out.get("content")
        if self.wants_parts and isinstance(content, str):
            out["content"] = [{"type": "text", "text": content}]
        elif not self.wants_parts and isinstance(content, list):
            out["content"] = joined_parts(content)
        out.setdefault("content", "")
        calls = out.get("tool_calls")
        if isinstance(calls, list):
            out["tool_calls"] = [_parsed_call(c) for c in calls]
        return out


def joined_parts(parts: Sequence[Any]) -> str:
    """The texts of content parts, one a line, as engines join them."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "\n".join(texts)


def only_text(messages: Sequence[Any]) -> bool:
    """Whether every content part is text: images and audio have no token ids here."""
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list) and not all(_is_text(part) for part in content):
            return False
    return True


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and part.get("type") == "text")


def _parsed_call(call: Any) -> Any:
    """A tool call with its arguments as an object: templates print them as JSON."""
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": parsed}}  # type: ignore[dict-item]


def _environment() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise
    return env


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    """JSON as templates expect it: not HTML-escaped, as jinja's own filter would."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _raise(message: str) -> str:
    raise jinja2.TemplateError(message)
