"""A process that does cases of some kinds: with a memory limit, a watchdog and guard pages around kernels' buffers.

    python -m tests.fuzz.worker KIND,KIND... SEED BEGIN END SECONDS

Case number i is of the kind i modulo their number, and has the seed SEED + i divided by it. Writes a line for each case
before it is done (`? i`), so that whoever reads knows which one ended the process, and one for each failure
(`! i reason`); at the end the counts. A case is refused if one of the project's errors is
raised; any other exception, a difference from what an independent decoder says, and more processor time than its bytes
allow, is a failure.
"""

import faulthandler
import json
import logging
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from schemas.errors import AggregatorError
from tests.fuzz.draw import Draw
from tests.fuzz.guard import guards
from tests.fuzz.targets import TARGETS, Target

MEMORY = 6 << 30
"""Bytes of address space that a worker may have: what it needs itself, and room for a case."""

CASE_SECONDS = 20
"""A case that takes longer is a hang."""

SLOW_SECONDS, SLOW_BYTE_SECONDS = 0.5, 20e-6
"""A case may take so much processor time, and so much more for each byte that was made for it.

Seen: 0.02 s at most for the kinds of small inputs; 3 µs a byte at most for those that are made to be slow (`costly`).
"""

TRIES = 3
"""How often a case is too slow before it counts: its first time may load kernels, and others use the machine too."""


def run(kinds: Sequence[str], seed: int, begin: int, end: int, seconds: float) -> dict[str, Counter[str]]:
    """Do cases until they are done or the time is over, and return what became of them by kind."""
    counts = {kind: Counter[str]() for kind in kinds}
    until = time.monotonic() + seconds
    for number in range(begin, end):
        if time.monotonic() > until:
            break
        kind, own = kinds[number % len(kinds)], seed + number // len(kinds)
        print("?", number, flush=True)
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        try:
            counts[kind][done_in_time(TARGETS[kind], f"{kind} {own}")] += 1
        except Exception as error:
            counts[kind]["failed"] += 1
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
            reason = f"{type(error).__name__} in {where}: {ascii(str(error))[:300]}"
            print("!", number, json.dumps(reason), flush=True)
        finally:
            faulthandler.cancel_dump_traceback_later()
    return counts


def done_in_time(target: Target, seed: str) -> str:
    """Do a case, and return `accepted` or `refused`.

    Raises:
        TimeoutError: It takes more processor time than its bytes allow, each time.
        Exception: What no input must cause.
    """
    for _ in range(TRIES):
        draw, outcome, began = Draw(seed), "accepted", time.process_time()
        try:
            target(draw)
        except AggregatorError:
            outcome = "refused"
        seconds = time.process_time() - began
        if seconds <= SLOW_SECONDS + SLOW_BYTE_SECONDS * draw.made:
            return outcome
    raise TimeoutError(f"{seconds:.2f} s for {draw.made} bytes")


def main() -> None:
    """Run, as the module says."""
    kinds, (seed, begin, end) = sys.argv[1].split(","), map(int, sys.argv[2:5])
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with guards():
        counts = run(kinds, seed, begin, end, float(sys.argv[5]))
    print("=", json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
