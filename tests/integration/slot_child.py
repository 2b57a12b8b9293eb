"""A process that does the slots of one job until it is told or made to stop.

    python slot_child.py URL REPLICA PERIOD_S STALL_S

Prints ``did SLOT`` after each commit and ``lost`` where one failed. A line on standard input
makes it stay inside the next slot, after ``in SLOT``, until the next line.
"""

from __future__ import annotations

import sys
import threading

from sqlalchemy import Connection, text

from core.errors import StoreError
from storage.database import writer_engine
from storage.slots import Slots

hold, go_on = threading.Event(), threading.Event()


def obey() -> None:
    for number, _ in enumerate(sys.stdin):
        (go_on if number % 2 else hold).set()


def main() -> None:
    url, replica, period_s, stall_s = sys.argv[1:]
    threading.Thread(target=obey, daemon=True).start()
    slots = Slots(writer_engine(url), replica, stall_s=float(stall_s))

    def work(connection: Connection, slot: int) -> None:
        row = {"slot": slot, "replica": replica}
        connection.execute(text("INSERT INTO probe VALUES (:slot, :replica)"), row)
        if hold.is_set():
            hold.clear()
            print("in", slot, flush=True)
            go_on.wait()

    while True:
        try:
            slot = slots.run_due("job", float(period_s), work, catch_up=10_000)
            if slot is not None:
                print("did", slot, flush=True)
        except StoreError:
            print("lost", flush=True)
        threading.Event().wait(0.05)


if __name__ == "__main__":
    main()
