"""Chained block keys: equal keys mean equal prefixes of equal caches.

A prompt is cut into blocks of `block_size` tokens; only whole blocks have keys. A block's key is
xxh3-64 over its tokens (uint32, little-endian), seeded with the key of the block before it, so
one key names the whole prefix up to its end. The first block is seeded with `root_key`, which
folds in everything that keeps caches apart: model, adapter, salt and block size.

Keys are not cryptographic: whoever knows a root can construct collisions. A collision can only
misplace a request; the engine compares content itself, so it never mixes data.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import xxhash

from core.errors import BadRequest

TOKEN_MAX = 2**32 - 1
_NO_EXTRAS: Mapping[int, bytes] = MappingProxyType({})
_EXTRA_SEED = 0x9E3779B97F4A7C15
"""Keeps the hash of an extra apart from the hash of a block with the same bytes."""


def root_key(model: str, *, adapter: str = "", salt: str = "", block_size: int) -> int:
    """64-bit start of a chain; caches that must not mix have different roots."""
    if block_size < 1:
        raise ValueError(f"block_size must be >= 1, not {block_size}")
    digest = xxhash.xxh3_64()
    for part in (model, adapter, salt, str(block_size)):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return int(digest.intdigest())


def chain(
    tokens: np.ndarray,
    block_size: int,
    parent: int,
    *,
    extras: Mapping[int, bytes] = _NO_EXTRAS,
) -> list[int]:
    """Keys of the whole blocks of `tokens` (uint32), continuing from `parent`.

    parent: a root_key, or the key of the block before `tokens`; continuing from a block's key
    gives the same keys as hashing everything at once. extras[i]: bytes that belong to the
    identity of block i besides its tokens (multimodal ids and the like).
    """
    whole = len(tokens) // block_size
    if not whole:
        return []
    data = np.ascontiguousarray(tokens[: whole * block_size], dtype="<u4")
    blocks: list[bytes] = data.view(f"V{4 * block_size}").tolist()
    digest = xxhash.xxh3_64_intdigest
    key = parent
    if not extras:
        return [key := digest(block, key) for block in blocks]
    keys: list[int] = []
    for index, block in enumerate(blocks):
        key = digest(block, key)
        if index in extras:
            key = digest(extras[index], key ^ _EXTRA_SEED)
        keys.append(key)
    return keys


def trace_keys(hash_ids: Sequence[int], root: int) -> list[int]:
    """Keys for a trace that carries one id a block instead of tokens (ids are 0..2**64-1)."""
    digest = xxhash.xxh3_64_intdigest
    key = root
    return [key := digest(block.to_bytes(8, "little"), key) for block in hash_ids]


def token_array(ids: Sequence[int] | np.ndarray, *, field: str = "prompt") -> np.ndarray:
    """Token ids as a uint32 array; BadRequest naming `field` where they are no token ids."""
    if isinstance(ids, np.ndarray):
        return _checked_array(ids, field)
    try:
        tokens = np.frombuffer(array("I", ids), dtype=np.uint32) if len(ids) else _empty()
    except OverflowError:
        raise BadRequest(f"token ids must be 0..{TOKEN_MAX}", field=field) from None
    except TypeError:
        raise BadRequest("token ids must be whole numbers", field=field) from None
    # True and False pass as 1 and 0, so only small values need the slow look.
    if tokens.size and tokens.min() <= 1 and any(type(token) is bool for token in ids):
        raise BadRequest("token ids must be whole numbers, not booleans", field=field)
    return tokens


def _empty() -> np.ndarray:
    return np.empty(0, dtype=np.uint32)


def _checked_array(ids: np.ndarray, field: str) -> np.ndarray:
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise BadRequest("token ids must be a flat array of whole numbers", field=field)
    if ids.dtype != np.uint32 and ids.size and (ids.min() < 0 or ids.max() > TOKEN_MAX):
        raise BadRequest(f"token ids must be 0..{TOKEN_MAX}", field=field)
    return ids.astype(np.uint32, copy=False)
