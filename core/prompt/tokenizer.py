"""A model's tokenizer and chat template out of a local directory, with a cache of segments.

Special tokens are cut out of a text before anything else is done with it, so the pieces between
them are tokenized on their own. A conversation is therefore tokenized message by message, and
the messages of earlier turns come from the cache. Tokenizers that look at where in the text a
piece stands break that rule; each is tested on loading and then tokenizes whole texts.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from tokenizers import Tokenizer

from core.errors import BadRequest
from core.hashing import token_array
from core.prompt.chat_template import ChatTemplate, only_text

Tokens = npt.NDArray[np.uint32]

CACHE_TOKENS_MAX = 4_000_000
"""Tokens kept in the cache of one tokenizer: 16 MB."""
_PROBES = (
    "Hello, world",
    " leading space",
    "trailing ",
    "\nline\n\nline",
    "naïve 漢字 🙂",
    "a",
    "1 2",
)
_TEMPLATE_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class SegmentCache:
    """Text piece -> token ids, least recently used first out, bounded by tokens; thread-safe."""

    def __init__(self, tokens_max: int = CACHE_TOKENS_MAX) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Tokens] = OrderedDict()
        self._tokens_max = tokens_max
        self.tokens = 0
        self.hits = 0
        self.misses = 0

    def get(self, text: str) -> Tokens | None:
        """Ids of a piece seen before."""
        with self._lock:
            found = self._kept.get(text)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._kept.move_to_end(text)
            return found

    def put(self, text: str, ids: Tokens) -> None:
        """Keep a piece; pieces larger than a tenth of the cache are not kept."""
        cost = len(ids) + len(text) // 4
        if cost > self._tokens_max // 10:
            return
        with self._lock:
            if text in self._kept:
                return
            self._kept[text] = ids
            self.tokens += cost
            while self.tokens > self._tokens_max:
                old, gone = self._kept.popitem(last=False)
                self.tokens -= len(gone) + len(old) // 4


class LocalTokenizer:
    """`tokenizer.json` of a directory, and the chat template beside it if there is one.

    Every method may be called from any thread.
    """

    def __init__(self, directory: str | Path) -> None:
        folder = Path(directory)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise BadRequest(f"{path} is missing", field="tokenizer_dir")
        self._tokenizer = Tokenizer.from_file(str(path))
        # A stored truncation or padding is for training batches, not for prompts.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.template = _load_template(folder)
        self.cache = SegmentCache()
        self._special = self._special_pattern()
        self.segmented = self._special is not None and self._splits_cleanly()
        """Whether pieces between special tokens may be tokenized (and cached) on their own."""

    def encode_text(self, text: str) -> Tokens:
        """Ids of a completion prompt, with the special tokens the model puts around it."""
        return self._whole(text, special=True)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Tokens | None:
        """Ids of a conversation; None where this directory cannot give them (no template, or
        content that is not text). BadRequest where the template refuses the messages."""
        if self.template is None or not only_text(messages):
            return None
        text = self.template.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, extra=extra
        )
        return self._pieces(text) if self.segmented else self._whole(text, special=False)

    def _whole(self, text: str, *, special: bool) -> Tokens:
        key = f"{'s' if special else 'p'}\0{text}"
        found = self.cache.get(key)
        if found is None:
            found = token_array(self._tokenizer.encode(text, add_special_tokens=special).ids)
            self.cache.put(key, found)
        return found

    def _pieces(self, text: str) -> Tokens:
        assert self._special is not None
        parts: list[Tokens] = []
        for piece in self._special.split(text):
            if piece:
                parts.append(self._whole(piece, special=False))
        return np.concatenate(parts) if parts else np.empty(0, np.uint32)

    def _special_pattern(self) -> re.Pattern[str] | None:
        """Matches the added tokens that are cut out of the raw text, wherever they stand."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        if any(t.lstrip or t.rstrip or t.single_word for t in added):
            return None
        texts = sorted((t.content for t in added if not t.normalized), key=len, reverse=True)
        if not texts or any(t.normalized for t in added):
            return None
        return re.compile("(" + "|".join(re.escape(t) for t in texts) + ")")

    def _splits_cleanly(self) -> bool:
        """Whether probe texts get the same ids in one go and piece by piece."""
        special = next(t.content for t in self._tokenizer.get_added_tokens_decoder().values())
        for a in _PROBES:
            for b in _PROBES:
                text = f"{special}{a}{special}{b}"
                whole = self._tokenizer.encode(text, add_special_tokens=False).ids
                if whole != self._pieces(text).tolist():
                    return False
        return True


def _load_template(folder: Path) -> ChatTemplate | None:
    config = _json(folder / "tokenizer_config.json")
    named = _json(folder / "special_tokens_map.json")
    tokens = {}
    for name in _TEMPLATE_TOKENS:
        value = config.get(name) or named.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        tokens[name] = text if isinstance(text, str) else ""
    source = _template_source(folder, config)
    return ChatTemplate(source, tokens=tokens) if source else None


def _template_source(folder: Path, config: Mapping[str, Any]) -> str:
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    found = config.get("chat_template") or _json(folder / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        by_name = {t.get("name"): t.get("template") for t in found if isinstance(t, Mapping)}
        found = by_name.get("default")
    return found if isinstance(found, str) else ""


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = orjson.loads(path.read_bytes())
    return found if isinstance(found, dict) else {}
