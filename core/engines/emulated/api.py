"""The OpenAI dialect of vLLM 0.32: request bodies in, error and answer bodies out. No sockets."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import xxhash

from core.engines.emulated import tokenizer
from core.engines.emulated.config import EngineConfig
from core.engines.emulated.http import HttpRequest
from core.engines.emulated.pipeline import BadPart, Part, part_of
from core.engines.emulated.sequence import (
    RemoteKv,
    Sequence,
    cache_root,
    chain,
    draw,
    pack,
)

FINGERPRINT = "vllm-0.32.0-emulated"
VERSION = "0.32.0"
COMPLETION_TOKENS_DEFAULT = 16
FREE_LENGTH = range(16, 256)
"""Output lengths of chats that do not limit theirs."""


class ApiError(Exception):
    """An answer other than success: status, message, type, and the field at fault."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {
            "error": {
                "message": str(self),
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


def invalid(message: str, param: str | None = None) -> ApiError:
    """A value that vLLM itself refuses."""
    return ApiError(400, message, "BadRequestError", param)


def malformed(kind: str, location: str, message: str, given: object) -> ApiError:
    """A body that does not fit the schema, worded like vLLM's validation errors."""
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{location}', 'msg': '{message}'"
    return ApiError(400, f"{text}, 'input': {given!r}}}", "Bad Request", location)


def missing(name: str, body: Mapping[str, Any]) -> ApiError:
    """A required field is not there."""
    return malformed("missing", f"body.{name}", "Field required", f"<dict of {len(body)} items>")


def internal_error(message: str = "Internal server error") -> ApiError:
    """A failure inside the engine."""
    return ApiError(500, message, "InternalServerError")


def not_held() -> ApiError:
    """A stage lacks the cached prefix that its group starts from."""
    return ApiError(409, "the pipeline's prefix is not cached here", "Conflict", "pipeline")


def busy() -> ApiError:
    """The queue is full."""
    text = "The engine is currently busy and cannot accept new requests. "
    text += "Please try again later or on a different instance."
    return ApiError(503, text, "Service Unavailable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A parsed request: how to answer, around the sequence that does the work."""

    chat: bool
    id: str
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    sequence: Sequence


def json_body(request: HttpRequest) -> dict[str, Any]:
    """The body as an object. Raises ApiError."""
    try:
        body = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise malformed("json_invalid", f"body.{error.pos}", "JSON decode error", {}) from None
    if not isinstance(body, dict):
        raise malformed("model_attributes_type", "body", "Input should be a valid dictionary", body)
    return body


def check_model(config: EngineConfig, body: Mapping[str, Any]) -> str | None:
    """The adapter asked for, None for the base model. Raises ApiError for any other name."""
    model = body.get("model") or config.model
    if model == config.model:
        return None
    if isinstance(model, str) and model in config.adapters:
        return model
    aliases = ", ".join((config.model, *config.adapters))
    message = f"The model `{model}` does not exist. Valid aliases: {aliases}."
    raise ApiError(404, message, "NotFoundError", "model")


def object_field(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field that is an object, null or missing. Raises ApiError."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        message = "Input should be a valid dictionary"
        raise malformed("dict_type", f"body.{name}", message, value)
    return value


def _text_field(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise malformed("string_type", f"body.{name}", "Input should be a valid string", value)
    return value or None


def _is_content(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(part, dict) for part in value)
    return value is None or isinstance(value, str)


def chat_tokens(body: Mapping[str, Any]) -> list[int]:
    """Token ids of a conversation. Raises ApiError."""
    messages = body.get("messages")
    if messages is None:
        raise malformed(
            "missing", "body.messages", "Field required", f"<dict of {len(body)} items>"
        )
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise malformed("list_type", "body.messages", "Input should be a valid list", messages)
    if not messages:
        text = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise invalid(text)
    for index, message in enumerate(messages):
        if not _is_content(message.get("content")):
            location = f"body.messages.{index}.content"
            raise malformed("string_type", location, "Input should be text or parts", "content")
    prompt = body.get("add_generation_prompt", True)
    text = tokenizer.render_chat(
        messages, add_generation_prompt=bool(prompt), tools=body.get("tools")
    )
    return tokenizer.encode(text)


def prompt_tokens(body: Mapping[str, Any]) -> list[int]:
    """Token ids of a completion's prompt: text or ids, one prompt. Raises ApiError."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    if isinstance(prompt, list) and (not prompt or isinstance(prompt[0], int)):
        return prompt
    if prompt is None:
        raise missing("prompt", body)
    raise invalid("prompt must be one text or one list of token ids", "prompt")


def _number(body: Mapping[str, Any], name: str, default: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise malformed(
            "int_parsing", f"body.{name}", "Input should be a valid integer, unable to parse", value
        )
    if value < 1:
        raise invalid(f"{name} must be at least 1, got {value}. (parameter={name})", name)
    return value


def _check_sampling(body: Mapping[str, Any]) -> None:
    temperature = body.get("temperature")
    if temperature is not None and not isinstance(temperature, int | float):
        message = "Input should be a valid number, unable to parse string as a number"
        raise malformed("float_parsing", "body.temperature", message, temperature)
    if temperature is not None and temperature < 0:
        value = float(temperature)
        text = f"temperature must be non-negative, got {value}. "
        raise invalid(f"{text}(parameter=temperature, value={value})", "temperature")
    if body.get("n") not in (None, 1):
        raise invalid(f"n must be 1, got {body['n']}. (parameter=n, value={body['n']})", "n")


def _output_length(
    config: EngineConfig, body: Mapping[str, Any], *, chat: bool, prompt: int, seed: int
) -> tuple[int, str]:
    """Output tokens and the finish reason that goes with them."""
    limit = config.context_max
    if prompt >= limit:
        raise invalid(
            f"This model's maximum context length is {limit} tokens. However, your prompt contains "
            f"at least {limit + 1} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={limit + 1})",
            "input_tokens",
        )
    asked = _number(body, "max_tokens", None if chat else COMPLETION_TOKENS_DEFAULT)
    if chat:
        asked = _number(body, "max_completion_tokens", asked)
    if asked is None:
        length = FREE_LENGTH[draw(seed, -2) % len(FREE_LENGTH)]
        return (length, "stop") if prompt + length <= limit else (limit - prompt, "length")
    if asked > limit:
        text = f"max_tokens={asked} cannot be greater than max_model_len={limit}. "
        text += f"Please request fewer output tokens. (parameter=max_tokens, value={asked})"
        raise invalid(text, "max_tokens")
    if prompt + asked > limit:
        text = f"max_tokens={asked} and {prompt} prompt tokens exceed max_model_len={limit}. "
        text += f"Please request fewer output tokens. (parameter=max_tokens, value={asked})"
        raise invalid(text, "max_tokens")
    return asked, "length"


def _remote_kv(params: Mapping[str, Any]) -> RemoteKv | None:
    if not params.get("do_remote_prefill"):
        return None
    try:
        return RemoteKv(
            host=str(params["remote_host"]),
            port=int(params["remote_port"]),
            engine_id=str(params["remote_engine_id"]),
            request_id=str(params["remote_request_id"]),
            blocks=tuple(map(int, params["remote_block_ids"][0])),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        message = f"kv_transfer_params lacks a usable field: {error!r}"
        raise invalid(message, "kv_transfer_params") from error


def _session(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    extra = object_field(body, "vllm_xargs")
    found = body.get("session_id") or headers.get("x-session-id") or extra.get("session_id")
    return str(found) if found else None


def parse_generation(config: EngineConfig, request: HttpRequest, *, chat: bool) -> Generation:
    """A generation request, checked and tokenized. Raises ApiError."""
    body = json_body(request)
    adapter = check_model(config, body)
    _check_sampling(body)
    tokens = chat_tokens(body) if chat else prompt_tokens(body)
    if not tokens:
        raise invalid("The prompt must not be empty.", "prompt")
    own_id = request.headers.get("x-request-id") or secrets.token_hex(8)
    full_id = ("chatcmpl-" if chat else "cmpl-") + own_id
    options = object_field(body, "stream_options")
    stream = bool(body.get("stream"))
    return Generation(
        chat=chat,
        id=full_id,
        model=adapter or config.model,
        stream=stream,
        include_usage=stream and bool(options.get("include_usage")),
        continuous_usage=stream and bool(options.get("continuous_usage_stats")),
        return_token_ids=bool(body.get("return_token_ids")),
        sequence=_sequence(config, request, body, full_id, tokens, adapter=adapter, chat=chat),
    )


def _sequence(
    config: EngineConfig,
    request: HttpRequest,
    body: Mapping[str, Any],
    full_id: str,
    tokens: list[int],
    *,
    adapter: str | None,
    chat: bool,
) -> Sequence:
    try:
        data = pack(tokens)
    except (OverflowError, TypeError) as error:
        raise invalid(f"prompt must hold unsigned 32-bit token ids: {error}", "prompt") from None
    seed = xxhash.xxh3_64_intdigest(data, cache_root(config.model, adapter, None))
    length, reason = _output_length(config, body, chat=chat, prompt=len(tokens), seed=seed)
    salt = _text_field(body, "cache_salt")
    root = cache_root(config.model, adapter, salt)
    params = object_field(body, "kv_transfer_params")
    hold = bool(params.get("do_remote_decode"))
    return Sequence(
        part=_part(config, body, len(tokens)),
        id=full_id,
        tokens=tokens,
        prompt_tokens=len(tokens),
        output_tokens_max=length,
        hashes=chain(data, config.block_size, root),
        text_seed=seed,
        root=root,
        finish_reason=reason,
        adapter_id=config.adapters.index(adapter) + 1 if adapter else None,
        adapter=adapter,
        salt=salt,
        session=_session(body, request.headers),
        report_hits=object_field(body, "vllm_xargs").get("kv_cache_report_mode") == "full",
        hold_id=f"{full_id}-{secrets.token_hex(4)}" if hold else None,
        remote=_remote_kv(params),
    )


def _part(config: EngineConfig, body: Mapping[str, Any], prompt: int) -> Part | None:
    """The request's part in a pipeline: the last stage, unless it names another."""
    told = object_field(body, "pipeline")
    if not told:
        return None
    stage = told.get("stage")
    try:
        return part_of(told, stage=stage, prompt=prompt, block=config.block_size)
    except BadPart as error:
        raise invalid(str(error), "pipeline") from None


def sample(seed: int, index: int) -> int:
    """Token id of the index-th generated token: a word of the vocabulary."""
    return tokenizer.OUTPUT_BASE + draw(seed, index) % tokenizer.OUTPUT_WORDS
