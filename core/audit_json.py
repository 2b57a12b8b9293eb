"""Candidate tables and exclusions as compact JSON texts, and back.

A stored decision keeps every candidate's inputs and terms in a few hundred bytes: columns under
short names, columns of zeros left out, columns on which all rows agree as one value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
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
    "node_weight": "W",
}
_NAMES = {code: name for name, code in _CODES.items()}
_WHOLE = re.compile("0|[1-9][0-9]{0,8}")


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

    An object: ``s`` sense (left out: min), ``k`` number of all candidates (left out: those
    kept), ``n`` nodes, ``c`` row of the chosen one (-1: none; left out: the first), ``e`` how
    many shared the best total where more than one did, ``v`` totals (6 significant digits),
    ``i`` inputs and ``t`` terms by column. Names are a list, or ``{"beginning": [rest, ...]}``
    where they share one. A column is a list over the rows; or one value that holds for all; or
    the text ``=x``: equal to the input stored as ``x``. A list that begins with digits in
    quotes holds whole numbers to be divided by ten to that power. Inputs that are 0 throughout
    are left out. Floats have 4 significant digits, whole numbers all of theirs.
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
    chosen = rows.index(table.chosen) if table.chosen in rows else -1
    shape = {
        **({"s": f'"{table.sense}"'} if table.sense != "min" else {}),
        **({"k": str(len(table.nodes))} if len(table.nodes) != len(nodes) else {}),
        **({"c": str(chosen)} if chosen else {}),
        **({"e": str(table.tied)} if table.tied > 1 else {}),
        "n": _names_json(nodes),
        "v": _list_json(_numbers(table.total, rows, "%.6g")),
        "i": _object(inputs),
        "t": _object(terms),
    }
    return _object(shape)


def candidates_from_json(text: str) -> StoredCandidates | None:
    """Read back what `candidates_json` wrote; None for an empty text."""
    if not text:
        return None
    shape = msgspec.json.decode(text)
    nodes = _names(shape["n"])
    codes: dict[str, Any] = {code: _unscaled(value) for code, value in shape["i"].items()}
    totals, chosen = _unscaled(shape["v"]), shape.get("c", 0)
    inputs = {_NAMES.get(code, code): _column(value, codes) for code, value in codes.items()}
    terms = {name: _column(value, codes) for name, value in shape["t"].items()}
    rows = tuple(
        Candidate(
            node=node,
            total=float(totals[row]),
            inputs={name: _cell(value, row) for name, value in inputs.items()},
            terms={name: _cell(value, row) for name, value in terms.items()},
            chosen=row == chosen,
        )
        for row, node in enumerate(nodes)
    )
    return StoredCandidates(
        sense=shape.get("s", "min"),
        size=shape.get("k", len(rows)),
        tied=shape.get("e", 1),
        rows=rows,
    )


def excluded_json(excluded: Mapping[Reason, tuple[NodeId, ...]]) -> str:
    """Reason -> node names as compact JSON, written as in `candidates_json`.

    Where there are too many, a list's last element is the number of the others.
    """
    kept = {
        reason.value: _names_json(
            names[:EXCLUDED_NAMES_MAX], max(len(names) - EXCLUDED_NAMES_MAX, 0)
        )
        for reason, names in excluded.items()
        if names
    }
    return _object(kept) if kept else ""


def excluded_from_json(text: str) -> dict[str, tuple[list[str], int]]:
    """Reason -> (node names, number of further nodes) from what `excluded_json` wrote."""
    found: dict[str, Any] = msgspec.json.decode(text) if text else {}
    return {reason: (_names(names), _more(names)) for reason, names in found.items()}


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
    text = _list_json(texts)
    return f'"={written[text]}"' if text in written else text


def _numbers(column: npt.ArrayLike, rows: list[int], spec: str) -> list[str]:
    """JSON numbers: whole ones exact, others by `spec`; infinities and NaN, which JSON lacks,
    as the texts "inf", "-inf" and "nan"."""
    values = np.asarray(column, dtype=np.float64)[rows].tolist()
    texts = [("%d" if v.is_integer() and -1e15 < v < 1e15 else spec) % v for v in values]
    if all(map(math.isfinite, values)):
        return texts
    return [t if math.isfinite(v) else f'"{v}"' for t, v in zip(texts, values, strict=True)]


def _list_json(texts: list[str]) -> str:
    """Numbers as they are, or as whole ones over a common power of ten: the shorter text."""
    plain = f"[{','.join(texts)}]"
    places = max(len(text) - text.rfind(".") - 1 if "." in text else 0 for text in texts)
    if not 0 < places < 16 or "e" in plain or '"' in plain:
        return plain
    power = 10**places
    scaled = f'["{places}",{",".join(str(round(float(text) * power)) for text in texts)}]'
    return scaled if len(scaled) < len(plain) else plain


def _unscaled(value: Any) -> Any:
    """A column as stored, with lists of whole numbers divided by their power of ten."""
    if not isinstance(value, list) or not isinstance(value[0], str) or not value[0].isdigit():
        return value
    power = 10 ** int(value[0])
    return [number / power for number in value[1:]]


def _names_json(names: Sequence[str], more: int = 0) -> str:
    """Names as a list; where they share a beginning, as an object of it and the rest.

    Rests that are plain whole numbers are written as such. `more` further names are counted:
    last in the list, or beside the empty name in the object.
    """
    beginning = _beginning(names)
    if not beginning:
        return _json([*names, *([more] if more else [])])
    rests = [name[len(beginning) :] for name in names]
    numbers = [int(rest) if _WHOLE.fullmatch(rest) else -1 for rest in rests]
    return _json({beginning: rests if -1 in numbers else numbers} | ({"": more} if more else {}))


def _beginning(names: Sequence[str]) -> str:
    """What two or more names begin with together."""
    first, last = min(names), max(names)
    shared = 0
    for one, other in zip(first, last, strict=False):
        if one != other:
            break
        shared += 1
    return first[:shared] if len(names) > 1 else ""


def _names(value: Any) -> list[str]:
    """The names that `_names_json` wrote."""
    if isinstance(value, list):
        return [name for name in value if isinstance(name, str)]
    return [f"{start}{rest}" for start, rests in value.items() if start for rest in rests]


def _more(value: Any) -> int:
    """How many names were counted only."""
    if isinstance(value, list):
        return sum(count for count in value if isinstance(count, int))
    return int(value.get("", 0))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _object(fields: Mapping[str, str]) -> str:
    """A JSON object of values that are JSON already."""
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def _column(value: Any, codes: Mapping[str, Any]) -> Any:
    return codes[value[1:]] if isinstance(value, str) and value[0] == "=" else value


def _cell(value: Any, row: int) -> float:
    return float(value[row] if isinstance(value, list) else value)
