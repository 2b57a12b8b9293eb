"""Choosing the source of a prompt's token ids, and turning ids into block keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from core.errors import BadRequest, EngineFault
from core.hashing import chain, root_key, token_array
from core.prompt.tokenizer import LocalTokenizer, SegmentCache

Tokens = npt.NDArray[np.uint32]
Remote = Callable[[str, dict[str, Any]], Awaitable[Sequence[int] | None]]
"""(served model name, /tokenize fields) -> the engine's ids; None or EngineFault without one."""

TEXT_SALT = "text:"
"""Prefix of the salt of keys over text: they never equal keys over token ids."""
BYTES_PER_TOKEN = 4.0
"""First guess, until engines report prompt lengths."""
MEDIA_TOKENS = 1_024
"""A picture or a sound among the messages, where only its bytes are known: they are no text."""
SLICE_TOKENS = 65_536
"""Tokens hashed before the event loop gets a turn."""
_CHAT_FIELDS = (
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "tools",
    "chat_template",
    "chat_template_kwargs",
)
_ONLY_ENGINE = ("continue_final_message", "add_special_tokens", "chat_template", "documents")
"""Chat fields that only the engine's own rendering understands fully."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as the scheduler needs it.

    tokens: token ids as uint32, or the text's words where `exact` is False; length: prompt
    tokens, estimated from the text where `exact` is False.
    """

    tokens: Tokens
    length: int
    exact: bool
    source: str
    """ids, local, engine or text."""
    text_bytes: int = 0


class Prompts:
    """All models' prompt handling. Owned by one event loop; long texts go to threads.

    tokenizers: base model name -> its local tokenizer. remote: asks an engine's /tokenize.
    thread_chars: texts longer than this are tokenized in a thread.
    """

    def __init__(
        self,
        tokenizers: Mapping[str, LocalTokenizer] | None = None,
        *,
        remote: Remote | None = None,
        approximate: Iterable[str] = (),
        thread_chars: int = 8_192,
        threads: int = 2,
    ) -> None:
        self._tokenizers = dict(tokenizers or {})
        self.remote = remote
        self._approximate = set(approximate)
        self._thread_chars = thread_chars
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="tokenize")
        self._remote_cache = SegmentCache()
        self._ratio: dict[str, float] = {}
        self.distrusted: dict[str, str] = {}
        """Models whose local ids differ from the engine's, and how."""
        self.counts = {"ids": 0, "local": 0, "engine": 0, "engine_failed": 0, "text": 0}

    def close(self) -> None:
        """Stop the threads; texts being tokenized are abandoned."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def distrust(self, model: str, detail: str) -> None:
        """Stop using the local tokenizer of a model: its ids are not the engine's."""
        self.distrusted[model] = detail

    def tokenizer(self, model: str) -> LocalTokenizer | None:
        """The local tokenizer of a base model, where there is one that may be used."""
        return None if model in self.distrusted else self._tokenizers.get(model)

    def local_ids(
        self, model: str, prompt: str | Sequence[Mapping[str, Any]]
    ) -> Sequence[int] | None:
        """Our own ids of a text or conversation, to compare with an engine's at registration;
        None where there is no local tokenizer (or template) for the model."""
        local = self._tokenizers.get(model)
        if local is None:
            return None
        if isinstance(prompt, str):
            return [int(token) for token in local.encode_text(prompt)]
        try:
            ids = local.encode_chat(prompt)
        except BadRequest:
            return None
        return None if ids is None else [int(token) for token in ids]

    def observe(self, model: str, prompt: Prompt, prompt_tokens: int) -> None:
        """Learn how long a model's texts are in tokens, from what the engine reported."""
        if prompt.source == "text" and prompt.text_bytes >= 64 and prompt_tokens > 0:
            seen = prompt.text_bytes / prompt_tokens
            known = self._ratio.get(model, BYTES_PER_TOKEN)
            self._ratio[model] = known + 0.1 * (min(max(seen, 0.25), 64.0) - known)

    async def of_body(self, body: Mapping[str, Any], model: str, *, served: str = "") -> Prompt:
        """The prompt of an OpenAI body for base model `model` under its served name.

        Never refuses what the engine might accept, except token ids that are none (BadRequest):
        whatever has no token ids here is scheduled by its text.
        """
        if "messages" in body:
            return await self._chat(body, model, served or model)
        prompt = _first_prompt(body.get("prompt"))
        if isinstance(prompt, list):
            ids = _cut(token_array(prompt), body)
            self.counts["ids"] += 1
            return Prompt(tokens=ids, length=len(ids), exact=True, source="ids")
        return await self._text(prompt, body, model, served or model)

    async def _chat(self, body: Mapping[str, Any], model: str, served: str) -> Prompt:
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            return self._by_text(b"", model)
        text = chat_text(messages, body.get("tools"))
        local = self.tokenizer(model)
        if local is not None and not any(body.get(name) for name in _ONLY_ENGINE):
            ids = await self._local_chat(local, body, len(text))
            if ids is not None:
                return self._exact(ids, body, "local")
        fields = {"messages": messages, "add_generation_prompt": True}
        fields |= {k: body[k] for k in _CHAT_FIELDS if body.get(k) is not None}
        return await self._remote(fields, body, text, model, served, media=media_sizes(messages))

    async def _text(self, prompt: str, body: Mapping[str, Any], model: str, served: str) -> Prompt:
        local = self.tokenizer(model)
        if local is not None and body.get("add_special_tokens", True) is True:
            if len(prompt) <= self._thread_chars:
                return self._exact(local.encode_text(prompt), body, "local")
            loop = asyncio.get_running_loop()
            ids = await loop.run_in_executor(self._pool, local.encode_text, prompt)
            return self._exact(ids, body, "local")
        fields: dict[str, Any] = {"prompt": prompt}
        if "add_special_tokens" in body:
            fields["add_special_tokens"] = body["add_special_tokens"]
        text = prompt.encode("utf-8", "surrogatepass")
        return await self._remote(fields, body, text, model, served)

    async def _local_chat(
        self, local: LocalTokenizer, body: Mapping[str, Any], size: int
    ) -> Tokens | None:
        extra = body.get("chat_template_kwargs")

        def encode() -> Tokens | None:
            return local.encode_chat(
                body["messages"],
                add_generation_prompt=body.get("add_generation_prompt") is not False,
                tools=body.get("tools") if isinstance(body.get("tools"), list) else None,
                extra=extra if isinstance(extra, dict) else None,
            )

        try:
            if size <= self._thread_chars:
                return encode()
            return await asyncio.get_running_loop().run_in_executor(self._pool, encode)
        except BadRequest:
            # The engine has the last word on what its template accepts.
            return None

    async def _remote(
        self,
        fields: dict[str, Any],
        body: Mapping[str, Any],
        text: bytes,
        model: str,
        served: str,
        media: Sequence[int] = (),
    ) -> Prompt:
        if self.remote is None or model in self._approximate:
            return self._by_text(text, model, media)
        key = f"{served}\0{xxhash.xxh3_128_hexdigest(orjson.dumps(fields))}"
        ids = self._remote_cache.get(key)
        if ids is None:
            ids = await self._ask(served, fields)
            if ids is None:
                return self._by_text(text, model, media)
            self._remote_cache.put(key, ids)
        return self._exact(ids, body, "engine")

    async def _ask(self, served: str, fields: dict[str, Any]) -> Tokens | None:
        assert self.remote is not None
        try:
            answer = await self.remote(served, fields)
        except EngineFault:
            answer = None
        if answer is None:
            self.counts["engine_failed"] += 1
            return None
        return token_array(answer)

    def _exact(self, ids: Tokens, body: Mapping[str, Any], source: str) -> Prompt:
        self.counts[source] += 1
        ids = _cut(ids, body)
        return Prompt(tokens=ids, length=len(ids), exact=True, source=source)

    def _by_text(self, text: bytes, model: str, media: Sequence[int] = ()) -> Prompt:
        """media: bytes of each part of `text` that is none."""
        self.counts["text"] += 1
        written = max(len(text) - sum(media), 0)
        guess = round(written / self._ratio.get(model, BYTES_PER_TOKEN))
        return Prompt(
            tokens=text_words(text),
            length=max(guess, 1) + MEDIA_TOKENS * len(media),
            exact=False,
            source="text",
            # With media there is no telling what the text's part of the engine's count was.
            text_bytes=0 if media else written,
        )


async def prompt_keys(
    prompt: Prompt, model: str, *, block_sizes: Iterable[int], adapter: str = "", salt: str = ""
) -> dict[int, list[int]]:
    """Block size -> chained keys of the prompt's whole blocks; long prompts in slices, so that
    hashing never holds the event loop for more than about a millisecond."""
    salt = salt if prompt.exact else TEXT_SALT + salt
    keys: dict[int, list[int]] = {}
    for size in block_sizes:
        parent = root_key(model, adapter=adapter, salt=salt, block_size=size)
        step = max(SLICE_TOKENS // size, 1) * size
        made = chain(prompt.tokens[:step], size, parent)
        for start in range(step, len(prompt.tokens), step):
            await asyncio.sleep(0)
            made += chain(prompt.tokens[start : start + step], size, made[-1])
        keys[size] = made
    return keys


def chat_text(messages: Sequence[Any], tools: Any = None) -> bytes:
    """A conversation as bytes such that a longer one begins with the shorter one's bytes."""
    head = orjson.dumps(tools) if tools else b""
    return head + orjson.dumps(messages)[:-1]


def media_sizes(messages: Sequence[Any]) -> list[int]:
    """Characters of each content part that is no text: a picture's or a sound's data."""
    contents = (m.get("content") for m in messages if isinstance(m, Mapping))
    return [
        _characters(part)
        for content in contents
        if isinstance(content, list)
        for part in content
        if isinstance(part, Mapping) and part.get("type") != "text"
    ]


def _characters(value: Any, depth: int = 3) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping) and depth:
        return sum(_characters(v, depth - 1) for v in value.values())
    return 0


def text_words(text: bytes) -> Tokens:
    """The text in words of four bytes, as uint32; an unfinished last word is left out."""
    return np.frombuffer(text[: len(text) & ~3], dtype="<u4").astype(np.uint32, copy=False)


def _first_prompt(prompt: Any) -> str | list[int]:
    """The prompt to schedule by: of a batch, its first one."""
    while isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    return prompt if isinstance(prompt, (str, list)) and prompt else ""


def _cut(ids: Tokens, body: Mapping[str, Any]) -> Tokens:
    """The last `truncate_prompt_tokens` ids, as the engine will cut them."""
    limit = body.get("truncate_prompt_tokens")
    if isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit < len(ids):
        return ids[-limit:]
    return ids
