"""Rate of reading a log file into Arrow batches, against Tarantool's own `xlog.pairs` on the same file.

    python -m benchmarks.decode [--rows N] [--repeat N] [--keep DIR]

Two files have the same rows (REPLACE of tuples of about 108 bytes): one with about 300 rows per zstd block, as a
busy server writes, and one with one row per block, as a serial client causes. The fastest of the repeats is printed;
both sides read the whole file from the page cache and use every row. Needs `tarantool` on PATH.
"""

import argparse
import os
import platform
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgpack
import pyarrow as pa

from schemas.iproto import RequestType
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import Meta
from sources.xlog.format.writer import Fsync, XlogWriter
from sources.xlog.reader.reader import open_fs, read_rows
from tests.bodies import encode_body

INSTANCE = "aaaaaaaa-0000-4000-8000-0000000000a1"
ROWS_PER_BLOCK = 300
CITIES = ("Amsterdam", "Berlin", "Cairo", "Dhaka", "Edinburgh", "Florence", "Geneva", "Helsinki")
WIDTHS = (7, 11, 9, 6, 9, 7, 9)
PAIRS = """
local started = require('clock').monotonic()
local rows, bytes = 0, 0
for lsn, row in require('xlog').pairs(arg[1]) do
    rows = rows + (row.BODY.tuple and 1 or 0)
end
print(rows, require('clock').monotonic() - started)
"""


def rows(count: int) -> Iterator[bytes]:
    """Yield encoded rows, the same ones on every run."""
    draw = random.Random(0)
    for lsn in range(1, count + 1):
        id_ = draw.randrange(count)
        tuple_ = [
            id_,
            f"customer {id_:08d}",
            f"user{id_ % 9973}@example.org",
            draw.choice(CITIES),
            draw.random() * 1000,
            draw.getrandbits(60),
            draw.randrange(100),
            lsn % 2 == 0,
            "state of the order: paid, shipped",
        ]
        body = encode_body(space_id=512, tuple_=msgpack.packb(tuple_))
        yield encode_row(RequestType.REPLACE, body, replica_id=1, lsn=lsn, timestamp=1.7e9 + lsn / 1e5)


def write(path: Path, count: int, rows_per_block: int) -> None:
    """Write a log of `count` rows."""
    meta = Meta("XLOG", "0.13", INSTANCE, {}, None, {"Version": "2.6.0"})
    with XlogWriter(path, meta, Fsync.NEVER) as log:
        for number, row in enumerate(rows(count), 1):
            log.write([row])
            if number % rows_per_block == 0:
                log.flush()


def read(path: str, begin: int, end: int | None, count: int | None = None) -> int:
    """Read a byte range of a log, and return its number of rows; exit if that is not `count`."""
    found = 0
    fs, inner = open_fs(path)
    for batch in read_rows(fs, inner, begin, end):
        found += batch.num_rows - batch["tuple"].null_count
    if count is not None and found != count:
        raise SystemExit(f"{path}: {found} rows instead of {count}")
    return found


def read_halves(pool: ProcessPoolExecutor, path: str, count: int) -> None:
    """Read a log in two processes, each a half of the bytes, as two Spark tasks would."""
    middle = Path(path).stat().st_size // 2
    halves = [pool.submit(read, path, begin, end) for begin, end in ((0, middle), (middle, None))]
    if sum(half.result() for half in halves) != count:
        raise SystemExit(f"{path}: the halves do not have {count} rows")


def xlog_pairs(path: Path, count: int) -> tuple[float, float]:
    """Return the seconds that Tarantool's `xlog.pairs` takes for the file, and those of processor time."""
    script = path.with_name("pairs.lua")
    script.write_text(PAIRS)
    command = ["tarantool", str(script), str(path)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found, seconds = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if int(found) != count:
        raise SystemExit(f"{path}: xlog.pairs found {found} rows instead of {count}")
    return float(seconds), after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that a call takes, and those of processor time of this process."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - used


def compare(path: Path, count: int, repeat: int, pool: ProcessPoolExecutor) -> None:
    """Measure both sides on one file, and print their rates and ratios as one line."""
    lua, one, two = [], [], []
    read(str(path), 0, None, count)
    read_halves(pool, str(path), count)
    for _ in range(repeat):
        lua.append(xlog_pairs(path, count))
        one.append(timed(lambda: read(str(path), 0, None, count)))
        two.append(timed(lambda: read_halves(pool, str(path), count)))
    (theirs, theirs_used), (ours, ours_used), (halves, _) = (
        map(min, zip(*t, strict=True)) for t in (lua, one, two)
    )
    rates = [count / seconds / 1e6 for seconds in (theirs, ours, halves)]
    print(
        f"{path.stem:14} {path.stat().st_size / count:7.1f} {rates[0]:11.2f} {rates[1]:9.2f} {rates[2]:6.2f}"
        f" {rates[1] / rates[0]:8.2f}x {rates[2] / rates[0]:6.2f}x {theirs_used / ours_used:8.2f}x"
    )


def main() -> None:
    """Write the two files, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="directory that keeps the logs for the next run")
    args = parser.parse_args()
    directory = args.keep or Path(tempfile.mkdtemp())
    directory.mkdir(parents=True, exist_ok=True)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, pyarrow {pa.__version__}"
    )
    print(f"{args.rows} rows: M rows/s, then ratios to xlog.pairs; cpu: ratio of processor times, one core")
    titles = ("B/row", "xlog.pairs", "one core", "two", "one core", "two", "cpu")
    print(f"{'file':14}" + "".join(f" {title:>{width}}" for title, width in zip(titles, WIDTHS, strict=True)))
    with ProcessPoolExecutor(2) as pool:
        for name, rows_per_block in (("group_commit", ROWS_PER_BLOCK), ("row_a_block", 1)):
            path = directory / f"{name}.xlog"
            if not path.exists():
                write(path, args.rows, rows_per_block)
            compare(path, args.rows, args.repeat, pool)
    if args.keep is None:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
