"""A process that records decisions at a steady rate until it is killed or told to stop.

    python store_child.py URL SPOOL_DIR FIRST PER_S

Prints `number monotonic_seconds` for each decision handed over, and `closed dropped N` after a
line on standard input. `full` on standard input makes every further write to a file fail as on a
full disk, `free` ends that.
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from record_cases import decision, outcome

from storage.store import Storage, open_storage

CANDIDATES = (
    '{"n":{"prefill-":[2,7,6,5,0,4,3,1]},"v":["7",195537,498740,516421,1209530,1727760,1956380,'
    '2206710,3534670],"i":{"m":[3408,3136,3120,2480,1984,1760,1584,112],"q":[0,0,0,0,0,0,153,0],'
    '"b":[0,0,0,0,0,0,1,0],"p":["5",1955,4987,5164,12100,17280,19560,21340,35350],"k":"=m"},'
    '"t":{"queue":0,"transfer":0,"prefill":"=p"}}'
)
"""Of eight nodes, as a conductor writes them: what waits for the database has its real size."""


def obey(stop: threading.Event) -> None:
    """Commands from standard input until it ends."""
    for line in sys.stdin:
        command = line.strip()
        if command == "stop":
            break
        limit = 64 if command == "full" else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        print(f"did {command}", flush=True)
    stop.set()


def record(storage: Storage, first: int, per_s: float, stop: threading.Event) -> None:
    """Hand over decisions and their outcomes, evenly spaced."""
    started, number = time.monotonic(), first
    while not stop.is_set():
        due = first + int((time.monotonic() - started) * per_s)
        while number < due:
            storage.sink.put_decision(decision(number, candidates=CANDIDATES))
            storage.sink.put_outcome(outcome(number))
            print(number, time.monotonic())
            number += 1
        sys.stdout.flush()
        stop.wait(0.01)


def main() -> None:
    url, folder, first, per_s = sys.argv[1:]
    stop = threading.Event()
    threading.Thread(target=obey, args=(stop,), daemon=True).start()
    storage = open_storage(url, spool_dir=Path(folder))
    record(storage, int(first), float(per_s), stop)
    storage.close(30.0)
    print("closed dropped", storage.sink.counters().dropped, flush=True)


if __name__ == "__main__":
    main()
