"""`python faulty.py FAULT toydepth's words`: the command line in a world where something goes wrong.

    kill:N      the process kills itself as it is about to complete its N-th write (or half-way through a line)
    full:N      the disk is full from the N-th write on
    readonly:N  the folder is read-only from the N-th write on
    clock       the clock on the wall jumps to and fro by days

A write is a file or folder taking its place under its name, or a line added to a history.
"""

import errno
import os
import random
import signal
import sys
import time

from toydepth import cli, store

SAID = {
    "full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "readonly": OSError(errno.EROFS, os.strerror(errno.EROFS)),
}
DAYS = 86400.0


class Fault:
    """Counts writes, and strikes at the N-th: once and for all."""

    def __init__(self, kind: str, at: int):
        self.kind, self.at, self.writes = kind, at, 0

    def strikes(self) -> bool:
        self.writes += 1
        return self.writes >= self.at

    def strike(self) -> None:
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise SAID[self.kind]


def plant(fault: Fault) -> None:
    """Lets the fault strike at a write, of which it leaves a part."""
    replace, append = os.replace, store.append_history

    def failing_replace(source, target, **options):
        if fault.strikes():
            fault.strike()
        replace(source, target, **options)

    def failing_append(folder, row):
        if fault.strikes():
            with (folder / "history.jsonl").open("a") as file:
                file.write('{"step": 1')
            fault.strike()
        append(folder, row)

    os.replace, store.append_history = failing_replace, failing_append


def main() -> int:
    kind, _, at = sys.argv[1].partition(":")
    if kind == "clock":
        now, chance = time.time, random.Random(0)
        time.time = lambda: now() + chance.choice((-DAYS, 0.0, DAYS))
    else:
        plant(Fault(kind, int(at)))
    return cli.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
