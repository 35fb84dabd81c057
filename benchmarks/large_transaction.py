"""One transaction of 10^6 rows and 1.5 GB: refused by name at first, then done by each executor; the memory of both.

    python -m benchmarks.large_transaction [--rows N] [--bytes N]

A transaction is one block of the log, which is decompressed as a whole: `max_block_bytes` says how large it may be.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from benchmarks.deployed import Ours, session_in
from benchmarks.growth import MIB, Peak
from benchmarks.logs import Member

STATE = Path(".state/bench")
SPACE = "orders"


def refused(spark: SparkSession, folder: Path, member: Member) -> None:
    """Stop unless the default limit refuses the transaction by name."""
    try:
        Ours(spark, folder, [member]).run()
    except StreamingQueryException as error:
        said = next(line for line in str(error).splitlines() if "Error" in line and ".xlog" in line)
        print(f"with the default limit: {said.strip()}", flush=True)
        return
    raise SystemExit("the transaction was not refused")


def measure(spark: SparkSession, folder: Path, member: Member, rows: int, local_bytes: int) -> None:
    """Aggregate the transaction, and print what it took."""
    settings = {"max_block_bytes": 4096 * MIB, "local_bytes": local_bytes}
    ours = Ours(spark, folder, [member], **settings)
    with Peak() as peak:
        seconds = ours.run()
    found = ours.warehouse.opened(SPACE).to_pyarrow_dataset().count_rows()
    if found != rows:
        raise SystemExit(f"{found} rows of {rows} are in the table")
    kind = "local" if local_bytes > 1 else "distributed"
    print(f"{kind}: {seconds:.1f} s, {1e6 * seconds / rows:.1f} µs a row; {peak}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=1_500_000_000)
    options = parser.parse_args()
    folder = STATE / f"transaction-{time.time_ns()}"
    spark = session_in(folder)
    try:
        member = Member(folder / "logs", "a1", [SPACE])
        size = member.transaction(SPACE, options.rows, options.bytes // options.rows)
        print(
            f"one transaction: {options.rows:,} rows, {options.bytes:,} bytes, {size:,} in the file",
            flush=True,
        )
        if options.bytes > 1024 * MIB:
            refused(spark, folder / "refused", member)
        for name, local_bytes in (("distributed", 1), ("local", 1 << 40)):
            measure(spark, folder / name, member, options.rows, local_bytes)
            shutil.rmtree(folder / name)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
