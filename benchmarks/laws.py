"""How long laws take, in seconds of one core: a free fit of 245 rows, and 1,000 bootstraps of it.

    python -m benchmarks.laws [TABLE]

TABLE is Chinchilla's 245 rows unless given (`toydepth law data chinchilla`); bars: 50 ms and 15 s.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from toydepth.laws import bootstrap, fit, named
from toydepth.laws.readers import read
from toydepth.laws.request import find
from toydepth.laws.tables import ready

REPEATS, DRAWS = 20, 1000


def seconds(work: Callable[[], object]) -> float:
    """How long it keeps the core, whatever else runs."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main(words: list[str]) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, also for libraries that use threads
    law = named("width-depth-tokens")
    table = ready(read(find(words[0] if words else "chinchilla")), law)
    sizes, loss = table.sizes(law), table.loss
    best = fit(sizes, loss, law)
    times = sorted(seconds(lambda: fit(sizes, loss, law)) for _ in range(REPEATS))
    print(f"{best.n} rows, {best.k} parameters, {best.starts} starts ({best.starts_agreeing} agree)")
    print(
        f"free fit: median {1e3 * times[REPEATS // 2]:.1f} ms, slowest of {REPEATS} {1e3 * times[-1]:.1f} ms (bar 50)"
    )
    print(f"{DRAWS} bootstraps: {seconds(lambda: bootstrap(sizes, loss, best, DRAWS)):.2f} s (bar 15)")


if __name__ == "__main__":
    main(sys.argv[1:])
