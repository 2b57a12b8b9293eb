"""The metrics page: the names of vLLM 0.32 that a scheduler reads, as Prometheus text."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
LONG_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip


class Histogram:
    """Counts by upper bound; `bounds` ascend, the last bucket is open."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Latencies:
    """The request-level histograms, in seconds."""

    def __init__(self) -> None:
        self.first_token = Histogram(SECONDS)
        self.inter_token = Histogram(TOKEN_SECONDS)
        self.end_to_end = Histogram(LONG_SECONDS)
        self.queue = Histogram(LONG_SECONDS)
        self.prefill = Histogram(LONG_SECONDS)
        self.decode = Histogram(LONG_SECONDS)

    def by_name(self) -> Iterator[tuple[str, Histogram]]:
        """Metric name and histogram."""
        yield "vllm:time_to_first_token_seconds", self.first_token
        yield "vllm:inter_token_latency_seconds", self.inter_token
        yield "vllm:e2e_request_latency_seconds", self.end_to_end
        yield "vllm:request_queue_time_seconds", self.queue
        yield "vllm:request_prefill_time_seconds", self.prefill
        yield "vllm:request_decode_time_seconds", self.decode


class Page:
    """Builds the text of one scrape; every sample carries the page's own labels too."""

    def __init__(self, labels: Mapping[str, str], *, created_s: float) -> None:
        self._labels = dict(labels)
        self._created_s = created_s
        self._lines: list[str] = []

    def _label_text(self, more: Mapping[str, str]) -> str:
        both = sorted({**self._labels, **more}.items())
        return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in both) + "}"

    def gauge(self, name: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> None:
        """A gauge with one sample a label set."""
        self._lines.append(f"# TYPE {name} gauge")
        self._lines += [f"{name}{self._label_text(more)} {float(v)}" for more, v in samples]

    def counter(self, name: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> None:
        """A counter (`name` without `_total`) and when it began."""
        pairs = list(samples)
        self._lines.append(f"# TYPE {name}_total counter")
        self._lines += [f"{name}_total{self._label_text(more)} {float(v)}" for more, v in pairs]
        self.gauge(f"{name}_created", [(more, self._created_s) for more, _ in pairs])

    def histogram(self, name: str, histogram: Histogram) -> None:
        """A histogram's cumulative buckets, count and sum."""
        self._lines.append(f"# TYPE {name} histogram")
        below = 0
        bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
        for bound, count in zip(bounds, histogram.counts, strict=True):
            below += count
            self._lines.append(f"{name}_bucket{self._label_text({'le': bound})} {float(below)}")
        own = self._label_text({})
        self._lines.append(f"{name}_count{own} {float(below)}")
        self._lines.append(f"{name}_sum{own} {histogram.total}")

    def plain(self, name: str, kind: str, value: float) -> None:
        """A process-wide sample, without labels."""
        self._lines += [f"# TYPE {name} {kind}", f"{name} {value}"]

    def text(self) -> str:
        """The page."""
        return "\n".join(self._lines) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def process_samples() -> Iterator[tuple[str, str, float]]:
    """Name, kind and value of CPU seconds, resident memory and open descriptors."""
    times = os.times()
    yield "process_cpu_seconds_total", "counter", times.user + times.system
    statm = Path("/proc/self/statm")
    if statm.exists():
        pages = int(statm.read_text().split()[1])
        yield "process_resident_memory_bytes", "gauge", float(pages * os.sysconf("SC_PAGE_SIZE"))
        yield "process_open_fds", "gauge", float(_open_fds())


def _open_fds() -> int:
    # A scan makes no object an entry: engines that share a process have thousands.
    with os.scandir("/proc/self/fd") as found:
        return sum(1 for _ in found)
