"""`python -m tests.bench`: every benchmark in turn, the long ones (`records`) only when named.

Each prints ratios; none decides anything.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = sorted(p.stem for p in Path(__file__).parent.glob("bench_*.py"))
LONG = (
    "bench_records",
    "bench_console_live",
    "bench_console_scale",
    "bench_console_sessions",
)


def main() -> None:
    wanted = sys.argv[1:] or [name for name in NAMES if name not in LONG]
    for name in wanted:
        stem = name if name.startswith("bench_") else f"bench_{name}"
        if stem not in NAMES:
            sys.exit(f"no benchmark {name!r}; there are {', '.join(NAMES)}")
        print(f"== {stem}", flush=True)
        importlib.import_module(f"tests.bench.{stem}").main()


if __name__ == "__main__":
    main()
