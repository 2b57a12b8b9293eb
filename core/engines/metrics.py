"""Reading the Prometheus text page of an engine: only the named metrics, in one pass.

Engine pages are 50 to 90 KB with hundreds of histogram lines; one compiled pattern picks the
wanted lines out without parsing the others. Pure: text in, values out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_LABELS = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_ESCAPE = re.compile(r'\\[\\"n]')


@dataclass(frozen=True, slots=True)
class Sample:
    """One finite value of a page with its labels."""

    name: str
    labels: Mapping[str, str]
    value: float


class MetricsPage:
    """The wanted samples of one page; every question answers None where nothing matches."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            self._by_name.setdefault(sample.name, []).append(sample)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def _matching(self, name: str, labels: Mapping[str, str]) -> Iterator[Sample]:
        """Samples of a name whose labels agree; a label a sample does not carry never excludes."""
        for sample in self._by_name.get(name, ()):
            if all(sample.labels.get(k, v) == v for k, v in labels.items()):
                yield sample

    def values(self, name: str, labels: Mapping[str, str] | None = None) -> list[float]:
        """Every matching value in page order."""
        return [s.value for s in self._matching(name, labels or {})]

    def total(
        self, names: str | Iterable[str], labels: Mapping[str, str] | None = None
    ) -> float | None:
        """Sum of the first of the names that is on the page."""
        for name in [names] if isinstance(names, str) else names:
            if found := self.values(name, labels):
                return math.fsum(found)
        return None

    def mean(
        self, names: str | Iterable[str], labels: Mapping[str, str] | None = None
    ) -> float | None:
        """Mean of the first of the names that is on the page: shares over several ranks."""
        for name in [names] if isinstance(names, str) else names:
            if found := self.values(name, labels):
                return math.fsum(found) / len(found)
        return None

    def label(self, name: str, label: str, labels: Mapping[str, str] | None = None) -> str | None:
        """A label of the first matching sample: how info metrics tell configuration."""
        for sample in self._matching(name, labels or {}):
            if label in sample.labels:
                return sample.labels[label]
        return None


class MetricsReader:
    """Picks a fixed set of metric names out of Prometheus text.

    Substring search jumps from wanted line to wanted line, which is several times faster than
    looking at each line of the page.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        quoted = r'"(?:[^"\\\n]|\\.)*"'
        self._rest = re.compile(rf'(?:\{{((?:[^"}}\n]|{quoted})*)\}})?[ \t]+(\S+)')

    def read(self, text: str) -> MetricsPage:
        """The page's samples of the wanted names; damaged and non-finite ones are left out."""
        framed = "\n" + text
        return MetricsPage(s for name in self.names for s in self._samples(framed, name))

    def _samples(self, framed: str, name: str) -> Iterator[Sample]:
        start = "\n" + name
        at = framed.find(start)
        while at >= 0:
            end = at + len(start)
            line = self._rest.match(framed, end)
            if line is not None and (number := _finite(line[2])) is not None:
                yield Sample(name, _parse_labels(line[1] or ""), number)
            at = framed.find(start, end)


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _parse_labels(text: str) -> dict[str, str]:
    return {
        key: _ESCAPE.sub(lambda m: _ESCAPES[m.group()], value) if "\\" in value else value
        for key, value in _LABELS.findall(text)
    }


def whole(value: float | None) -> int | None:
    """A gauge that counts things, as an integer that is never negative."""
    return None if value is None else max(int(value), 0)
