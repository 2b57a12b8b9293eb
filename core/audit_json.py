"""Candidate tables and exclusions as compact JSON texts, and back.

A stored decision keeps every candidate's inputs and terms in a few hundred bytes: columns under
short names, columns of zeros left out, columns on which all rows agree as one value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from core.domain import CandidateTable, NodeId, Reason

CANDIDATES_MAX = 16
"""Best candidates kept of one table; the chosen one is kept besides."""
EXCLUDED_NAMES_MAX = 16
"""Node names kept for one reason; the rest is a count."""

# Short names of the columns in stored JSON. Append only: stored records are read with them.
_CODES = {
    "match_tokens": "m",
    "queued_tokens": "q",
    "batch": "b",
    "load": "l",
    "queue_s": "w",
    "prefill_s": "p",
    "transfer_s": "x",
    "fetch": "f",
    "prefix_tokens": "k",
    "fetched_prefill_s": "g",
    "waiting": "a",
    "queue_max": "n",
    "compute": "c",
    "network": "o",
    "resident": "r",
    "last_picked": "z",
    "kv_usage": "u",
    "inflight_tokens": "i",
    "decode_load": "d",
    "session_hash": "s",
    "tbt_s": "t",
    "kv_tokens": "v",
    "kv_free_tokens": "y",
    "local_tokens": "e",
    "batch_then": "h",
    "missing_tokens": "j",
    "feasible": "B",
}
_NAMES = {code: name for name, code in _CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One candidate read back: what the policy saw, its named terms, and the total."""

    node: str
    total: float
    inputs: Mapping[str, float]
    terms: Mapping[str, float]
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCandidates:
    """A candidate table read back, best first. `size` counts all, also those not kept; `tied`
    how many shared the best total."""

    sense: str
    size: int
    tied: int
    rows: tuple[Candidate, ...]


def candidates_json(table: CandidateTable | None) -> str:
    """Compact JSON of a candidate table, best first; empty for None or no candidates.

    An object: ``s`` sense, ``k`` number of all candidates, ``n`` nodes, ``c`` row of the chosen
    one (-1: none), ``e`` how many shared the best total where more than one did, ``v`` totals
    (6 significant digits), ``i`` inputs and ``t`` terms by column.
    A column is a list over the rows; or one value that holds for all; or the text ``=x``: equal
    to the input stored as ``x``. Inputs that are 0 throughout are left out. Floats have 4
    significant digits, whole numbers all of theirs.
    """
    if table is None or not table.nodes:
        return ""
    rows = _best_rows(table)
    nodes = [table.nodes[i] for i in rows]
    written: dict[str, str] = {}
    inputs = {
        code: text
        for code, text in (
            (_CODES.get(name, name), _column_json(column, rows, written))
            for name, column in table.columns.items()
        )
        if text != "0" and written.setdefault(text, code)
    }
    terms = {name: _column_json(term, rows, written) for name, term in table.terms.items()}
    shape = {
        "s": f'"{table.sense}"',
        "k": str(len(table.nodes)),
        "c": str(rows.index(table.chosen) if table.chosen in rows else -1),
        **({"e": str(table.tied)} if table.tied > 1 else {}),
        "n": msgspec.json.encode(nodes).decode(),
        "v": f"[{','.join(_numbers(table.total, rows, '%.6g'))}]",
        "i": _object(inputs),
        "t": _object(terms),
    }
    return _object(shape)


def candidates_from_json(text: str) -> StoredCandidates | None:
    """Read back what `candidates_json` wrote; None for an empty text."""
    if not text:
        return None
    shape = msgspec.json.decode(text)
    nodes: list[str] = shape["n"]
    codes: dict[str, Any] = shape["i"]
    inputs = {_NAMES.get(code, code): _column(value, codes) for code, value in codes.items()}
    terms = {name: _column(value, codes) for name, value in shape["t"].items()}
    rows = tuple(
        Candidate(
            node=node,
            total=float(shape["v"][row]),
            inputs={name: _cell(value, row) for name, value in inputs.items()},
            terms={name: _cell(value, row) for name, value in terms.items()},
            chosen=row == shape["c"],
        )
        for row, node in enumerate(nodes)
    )
    return StoredCandidates(sense=shape["s"], size=shape["k"], tied=shape.get("e", 1), rows=rows)


def excluded_json(excluded: Mapping[Reason, tuple[NodeId, ...]]) -> str:
    """Reason -> node names as compact JSON; a number at the end of a list counts the rest."""
    kept = {
        reason.value: [
            *names[:EXCLUDED_NAMES_MAX],
            *([len(names) - EXCLUDED_NAMES_MAX] if len(names) > EXCLUDED_NAMES_MAX else []),
        ]
        for reason, names in excluded.items()
        if names
    }
    return msgspec.json.encode(kept).decode() if kept else ""


def excluded_from_json(text: str) -> dict[str, tuple[list[str], int]]:
    """Reason -> (node names, number of further nodes) from what `excluded_json` wrote."""
    found: dict[str, list[Any]] = msgspec.json.decode(text) if text else {}
    return {
        reason: (
            [name for name in names if isinstance(name, str)],
            sum(count for count in names if isinstance(count, int)),
        )
        for reason, names in found.items()
    }


def _best_rows(table: CandidateTable) -> list[int]:
    total = np.asarray(table.total, dtype=np.float64)
    sign = 1.0 if table.sense == "min" else -1.0
    others = np.arange(len(total)) != table.chosen
    best: list[int] = np.lexsort((others, sign * total))[:CANDIDATES_MAX].tolist()
    if table.chosen in best or not 0 <= table.chosen < len(total):
        return best
    return [*best, table.chosen]


def _column_json(column: npt.ArrayLike, rows: list[int], written: Mapping[str, str]) -> str:
    """A list over rows, the one number on which all agree, or the code of the equal column."""
    texts = _numbers(column, rows, "%.4g")
    if len(set(texts)) == 1:
        return texts[0]
    text = f"[{','.join(texts)}]"
    return f'"={written[text]}"' if text in written else text


def _numbers(column: npt.ArrayLike, rows: list[int], spec: str) -> list[str]:
    """JSON numbers: whole ones exact, others by `spec`; infinities and NaN, which JSON lacks,
    as the texts "inf", "-inf" and "nan"."""
    values = np.asarray(column, dtype=np.float64)[rows].tolist()
    texts = [("%d" if v.is_integer() and -1e15 < v < 1e15 else spec) % v for v in values]
    if all(map(math.isfinite, values)):
        return texts
    return [t if math.isfinite(v) else f'"{v}"' for t, v in zip(texts, values, strict=True)]


def _object(fields: Mapping[str, str]) -> str:
    """A JSON object of values that are JSON already."""
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def _column(value: Any, codes: Mapping[str, Any]) -> Any:
    return codes[value[1:]] if isinstance(value, str) and value[0] == "=" else value


def _cell(value: Any, row: int) -> float:
    return float(value[row] if isinstance(value, list) else value)
