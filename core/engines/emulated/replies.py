"""Answers of generation requests: token by token (SSE) or whole, in vLLM 0.32's shapes."""

from __future__ import annotations

from typing import Any

import orjson

from core.engines.emulated import tokenizer
from core.engines.emulated.api import FINGERPRINT, ApiError, Generation
from core.engines.emulated.http import STREAM_END, STREAM_HEAD, Connection, chunk, json_response

_MARK = b"\x00word\x00"
_MARK_JSON = orjson.dumps(_MARK.decode())[1:-1]
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def usage(generation: Generation, block_size: int, *, details: bool = True) -> dict[str, Any]:
    """Token counts; with details also how many prompt tokens came from the cache."""
    sequence = generation.sequence
    prompt, output = sequence.prompt_tokens, sequence.output_tokens
    counts = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
    }
    if not details:
        return {**counts, "completion_tokens_details": None}
    cached = sequence.cached_tokens or 0
    created = (prompt // block_size - cached // block_size) * block_size
    if sequence.received_tokens:
        created = 0
    # The completions endpoint does not tell what was newly cached.
    told = created if generation.chat else None
    return {
        **counts,
        "prompt_tokens_details": {"cached_tokens": cached, "created_cache_tokens": told},
    }


def full_body(generation: Generation, block_size: int, created: int) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    sequence = generation.sequence
    output = sequence.tokens[sequence.prompt_tokens :]
    counts = usage(generation, block_size)
    counts["prompt_tokens_details"]["multimodal_tokens"] = None
    ids = output if generation.return_token_ids else None
    prompt_ids = sequence.tokens[: sequence.prompt_tokens] if generation.return_token_ids else None
    choice: dict[str, Any] = {"index": 0}
    text = tokenizer.decode(output)
    if generation.chat:
        choice["message"] = {
            "role": "assistant", "content": text, "refusal": None, "annotations": None,
            "audio": None, "function_call": None, "reasoning": None,
        }  # fmt: skip
    else:
        choice["text"] = text
    choice |= {"logprobs": None, "finish_reason": sequence.finish_reason, "stop_reason": None}
    choice["token_ids"] = ids
    own = {"prompt_logprobs": None, "prompt_token_ids": prompt_ids}
    if not generation.chat:
        choice |= own
    choice["routed_experts"] = None
    return {
        "id": generation.id,
        "object": "chat.completion" if generation.chat else "text_completion",
        "created": created,
        "model": generation.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {**counts, "completion_tokens_details": None},
        **({**own, "prompt_text": None} if generation.chat else {}),
        "kv_transfer_params": sequence.transfer_params,
        "ec_transfer_params": None,
        "metrics": None,
    }


class FullReply:
    """Collects the whole answer."""

    def __init__(
        self, connection: Connection, generation: Generation, *, block_size: int, created: int
    ) -> None:
        self._connection = connection
        self._generation = generation
        self._block_size = block_size
        self._created = created

    def token(self, token: int) -> None:
        """One token was generated; the sequence keeps it."""

    def flush(self) -> None:
        """Nothing to write before the end."""

    def end(self) -> None:
        """All tokens are there."""
        body = full_body(self._generation, self._block_size, self._created)
        self._connection.finish(json_response(200, body))

    def abort(self) -> None:
        """Ended by request: what there is, with the reason."""
        self._generation.sequence.finish_reason = "abort"
        self.end()

    def fail(self, error: ApiError) -> None:
        """The engine failed."""
        self._connection.finish(json_response(error.status, error.body()))


class StreamReply:
    """Writes each token as one server-sent event; what is written together is one HTTP chunk."""

    def __init__(
        self,
        connection: Connection,
        generation: Generation,
        *,
        block_size: int,
        created: int,
        drop_after: int | None = None,
    ) -> None:
        self._connection = connection
        self._generation = generation
        self._block_size = block_size
        self._drop_after = drop_after
        self._base = {
            "id": generation.id,
            "object": "chat.completion.chunk" if generation.chat else "text_completion",
            "created": created,
            "model": generation.model,
        }
        self._parts: list[bytes] = []
        self._sent = 0
        self._plain = not (generation.return_token_ids or generation.continuous_usage)
        before, after = self._event(_MARK.decode()).split(_MARK_JSON)
        self._before, self._after = before, after
        connection.send(STREAM_HEAD)

    def _choice(self, text: str, reason: str | None, token: int | None) -> dict[str, Any]:
        ids = [token] if token is not None and self._generation.return_token_ids else None
        choice: dict[str, Any] = {"index": 0}
        choice |= {"delta": {"content": text}} if self._generation.chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": reason}
        if not self._generation.chat:
            first = self._generation.return_token_ids and self._sent == 0
            prompt = self._prompt_ids() if first else None
            return choice | {"stop_reason": None, "prompt_token_ids": prompt, "token_ids": ids}
        return choice | ({"stop_reason": None} if reason else {}) | {"token_ids": ids}

    def _prompt_ids(self) -> list[int] | None:
        sequence = self._generation.sequence
        wanted = self._generation.return_token_ids
        return sequence.tokens[: sequence.prompt_tokens] if wanted else None

    def _event(self, text: str, reason: str | None = None, token: int | None = None) -> bytes:
        body: dict[str, Any] = {**self._base, "choices": [self._choice(text, reason, token)]}
        if self._generation.continuous_usage:
            body["usage"] = usage(self._generation, self._block_size, details=False)
        if reason and not self._generation.include_usage:
            body["system_fingerprint"] = FINGERPRINT
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def _role(self) -> bytes:
        choice = {
            "index": 0, "delta": {"role": "assistant", "content": ""},
            "logprobs": None, "finish_reason": None,
        }  # fmt: skip
        body: dict[str, Any] = {**self._base, "choices": [choice]}
        if self._generation.continuous_usage:
            prompt = self._generation.sequence.prompt_tokens
            body["usage"] = {
                "prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0,
                "completion_tokens_details": None,
            }  # fmt: skip
        body |= {"prompt_token_ids": self._prompt_ids(), "prompt_text": None}
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def token(self, token: int) -> None:
        """Queue one token's event."""
        if self._generation.chat and not self._sent:
            self._parts.append(self._role())
        last = self._sent + 1 == self._generation.sequence.output_tokens_max
        if self._plain and not last:
            word = tokenizer.VOCABULARY[token]
            self._parts.append(b"%b%b%b" % (self._before, word, self._after))
        else:
            reason = self._generation.sequence.finish_reason if last else None
            self._parts.append(self._event(tokenizer.decode([token]), reason, token))
        self._sent += 1

    def flush(self) -> None:
        """Write what is queued; under a fault, break off once enough was sent."""
        if self._parts:
            self._connection.send(chunk(b"".join(self._parts)))
            self._parts.clear()
        if self._drop_after is not None and self._sent >= self._drop_after:
            self._connection.abort()

    def _usage_event(self) -> bytes:
        counts = usage(self._generation, self._block_size)
        details = counts["prompt_tokens_details"]
        counts["prompt_tokens_details"] = {k: v for k, v in details.items() if v is not None}
        body: dict[str, Any] = {
            **self._base,
            "choices": [],
            "usage": counts,
            "system_fingerprint": FINGERPRINT,
        }
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def end(self) -> None:
        """All tokens are queued: usage if wanted, then the end."""
        if self._drop_after is not None and self._sent >= self._drop_after:
            self.flush()
            return
        if self._generation.include_usage:
            self._parts.append(self._usage_event())
        self._finish()

    def abort(self) -> None:
        """Ended by request."""
        self._parts.append(self._event("", "abort"))
        self._finish()

    def fail(self, error: ApiError) -> None:
        """The engine failed mid-way: an error event, and still the end mark."""
        # Spaces as the engine writes them: this event alone is not compact JSON.
        text = f'"message": {orjson.dumps(str(error)).decode()}, "type": "{error.kind}"'
        body = f'{{"error": {{{text}, "param": null, "code": {error.status}}}}}'
        self._parts.append(b"data: " + body.encode() + b"\n\n")
        self._finish()

    def _finish(self) -> None:
        events = b"".join(self._parts)
        self._parts.clear()
        self._connection.finish((chunk(events) if events else b"") + STREAM_END)


class StageReply:
    """Answers a stage of a pipeline, which generates nothing, once all is handed over."""

    def __init__(self, connection: Connection, generation: Generation) -> None:
        self._connection = connection
        self._sequence = generation.sequence

    def token(self, token: int) -> None:
        """Stages generate no tokens."""

    def flush(self) -> None:
        """Nothing to write before the end."""

    def end(self) -> None:
        """Every chunk is with the next stage."""
        s = self._sequence
        told = {"computed_tokens": s.computed - (s.cached_tokens or 0)}
        self._connection.finish(json_response(200, told))

    def abort(self) -> None:
        """Ended by request."""
        self.fail(ApiError(500, "aborted on request", "InternalServerError"))

    def fail(self, error: ApiError) -> None:
        """The stage failed, and with it the group."""
        self._connection.finish(json_response(error.status, error.body()))


Reply = FullReply | StreamReply | StageReply
