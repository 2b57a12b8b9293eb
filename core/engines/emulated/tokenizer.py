"""A small tokenizer of our own: word pieces, every byte covered, text <-> ids without loss.

Text is cut into words (with the space before them), numbers, punctuation and white space; each
piece is matched greedily against the vocabulary. Generated text consists of vocabulary words, so
tokenizing a conversation again gives the ids that the engine generated. `huggingface_files`
writes the same tokenizer for the `tokenizers` library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

SPECIALS = ("<|unk|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
OUTPUT_WORDS = 2048
PIECE = (
    r" ?[A-Za-z]+| ?[0-9]+| ?[^ \t\r\n\f\vA-Za-z0-9]+"
    r"|[ \t\r\n\f\v]+(?![^ \t\r\n\f\v])|[ \t\r\n\f\v]+"
)
CHAT_TEMPLATE = (
    "<|bos|>"
    "{%- if tools %}{{ '<|im_start|>tools\\n' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string %}{{ message['content'] }}"
    "{%- elif message['content'] %}"
    "{%- for part in message['content'] %}{{ part['text'] }}{%- endfor %}"
    "{%- endif %}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
_COMMON = (
    "the of and to in is that it was for on are as with his they at be this have from or had by "
    "not but what all were when we there can an your which their said if do will each about how "
    "up out them then she many some so these would other into has more her two like him see time "
    "could no make than first been its who now people my made over did down only way find use may "
    "water long little very after words called just where most know get through back much before "
    "go good new write our used me man too any day same right look think also around another came "
    "come work three word must because does part even place well such here take why things help "
    "put years different away again off went old number great tell men say small every found "
    "still between name should home big give air line set own under read last never us left end "
    "system user assistant answer question model cache token prompt request engine"
)
_MEMO_MAX = 100_000


def _output_words() -> list[str]:
    syllables = [c + v for c, v in product("bdfgklmnprstvz", "aeiou")]
    total = len(syllables) ** 2
    order = ((index * 2657) % total for index in range(OUTPUT_WORDS))
    return [" " + syllables[i // len(syllables)] + syllables[i % len(syllables)] for i in order]


def _vocabulary() -> list[bytes]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [special.encode() for special in SPECIALS]
    pieces += [bytes([value]) for value in range(256)]
    pieces += [word.encode() for word in _output_words()]
    common = [form for word in _COMMON.split() for form in (word, " " + word)]
    pairs = [a + b for a in letters for b in letters]
    rest = common + pairs + [" " + a for a in letters] + [" " + pair for pair in pairs]
    rest += [str(value) for value in range(10, 1000)] + ["  ", "    ", "\n\n", ". ", ", "]
    return list(dict.fromkeys(pieces + [piece.encode() for piece in rest]))


VOCABULARY = _vocabulary()
"""Piece of each token id."""
OUTPUT_BASE = len(SPECIALS) + 256
"""Id of the first word that is ever generated; OUTPUT_WORDS of them follow each other."""

_IDS = {piece: index for index, piece in enumerate(VOCABULARY) if index >= len(SPECIALS)}
_LONGEST = max(len(piece) for piece in _IDS)
_SPECIAL_IDS = {special: index for index, special in enumerate(SPECIALS)}
_SPLIT = re.compile("(" + "|".join(re.escape(special) for special in SPECIALS) + ")")
_PIECES = re.compile(PIECE)
_memo: dict[str, list[int]] = {}


def encode(text: str) -> list[int]:
    """Token ids of a text; special tokens are recognised inside it."""
    ids: list[int] = []
    for part in _SPLIT.split(text):
        special = _SPECIAL_IDS.get(part)
        if special is not None:
            ids.append(special)
            continue
        for piece in _PIECES.findall(part):
            ids += _memo.get(piece) or _learn(piece)
    return ids


def _learn(piece: str) -> list[int]:
    if len(_memo) >= _MEMO_MAX:
        _memo.clear()
    ids = _memo[piece] = _greedy(piece.encode("utf-8", "replace"))
    return ids


def _greedy(data: bytes) -> list[int]:
    ids, start = [], 0
    while start < len(data):
        for end in range(min(len(data), start + _LONGEST), start, -1):
            token = _IDS.get(data[start:end])
            if token is not None:
                ids.append(token)
                start = end
                break
    return ids


def piece_bytes(token: int) -> bytes:
    """The text of one token; ids beyond the vocabulary are written as `<id>`."""
    return VOCABULARY[token] if 0 <= token < len(VOCABULARY) else b"<%d>" % token


def decode(tokens: Iterable[int]) -> str:
    """Text of token ids; broken UTF-8 becomes the replacement character."""
    return b"".join(map(piece_bytes, tokens)).decode("utf-8", "replace")


def content_text(content: Any) -> str:
    """Text of a message's content: a string, null, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Any] | None = None,
) -> str:
    """The prompt of a conversation, as CHAT_TEMPLATE writes it."""
    parts = ["<|bos|>"]
    if tools:
        parts.append(f"<|im_start|>tools\n{json.dumps(tools, ensure_ascii=False)}<|im_end|>\n")
    for message in messages:
        text = content_text(message.get("content"))
        parts.append(f"<|im_start|>{message.get('role', '')}\n{text}<|im_end|>\n")
    if add_generation_prompt:
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


def _byte_letters() -> list[str]:
    """The printable stand-in of each byte in byte-level vocabularies (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {value: chr(value) for value in plain}
    others = (value for value in range(256) if value not in letters)
    letters.update({value: chr(256 + index) for index, value in enumerate(others)})
    return [letters[value] for value in range(256)]


_LETTERS = _byte_letters()


def token_text(token: int) -> str:
    """How a token is shown in vocabularies: special tokens as they are, bytes as letters."""
    if token < len(SPECIALS):
        return SPECIALS[token]
    return "".join(_LETTERS[value] for value in piece_bytes(token))


def huggingface_files() -> dict[str, str]:
    """File name -> content of a directory that `tokenizers` and `transformers` can load."""
    added = [
        {"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i, s in enumerate(SPECIALS)
    ]  # fmt: skip
    split = {"type": "Split", "pattern": {"Regex": PIECE}, "behavior": "Isolated", "invert": False}
    level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "post_processor": None,
        "pre_tokenizer": {
            "type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel", **level}],
        },
        "decoder": {"type": "ByteLevel", **level},
        "model": {
            "type": "WordPiece", "unk_token": SPECIALS[0], "continuing_subword_prefix": "",
            "max_input_chars_per_word": 1_000_000_000,
            "vocab": {token_text(token): token for token in range(len(VOCABULARY))},
        },
    }  # fmt: skip
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[1], "eos_token": SPECIALS[2], "unk_token": SPECIALS[0],
        "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=1),
    }
