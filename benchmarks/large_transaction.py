"""Time and memory to aggregate one transaction of 10^6 rows and 1.5 GB, by Spark's tasks and in the driver.

    python -m benchmarks.large_transaction [--rows N] [--bytes N]

A transaction is one block of the log, which is decompressed as a whole; `max_block_bytes` limits its size. Checks first
that the default limit refuses the transaction.
"""

import argparse
import shutil
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from benchmarks.growth import MIB, PeakMemory
from benchmarks.logs import MemberLogs
from benchmarks.measured_job import MeasuredJob, session_in

STATE = Path(".state/bench")
SPACE = "orders"


def check_default_limit(spark: SparkSession, folder: Path, member: MemberLogs) -> None:
    """Print the error with which the default limit refuses the transaction; exit if there is none."""
    try:
        MeasuredJob(spark, folder, [member]).run()
    except StreamingQueryException as error:
        text = next(line for line in str(error).splitlines() if "Error" in line and ".xlog" in line)
        print(f"with the default limit: {text.strip()}", flush=True)
        return
    raise SystemExit("the transaction was not refused")


def measure(spark: SparkSession, folder: Path, member: MemberLogs, rows: int, executor: str) -> None:
    """Aggregate the transaction into a new warehouse, and print time and memory."""
    settings = {"max_block_bytes": 4096 * MIB, "local_bytes": 1 << 40, "executor": executor}
    job = MeasuredJob(spark, folder, [member], **settings)
    with PeakMemory() as peak:
        seconds = job.run()
    count = job.warehouse.opened(SPACE).to_pyarrow_dataset().count_rows()
    if count != rows:
        raise SystemExit(f"the table has {count} rows instead of {rows}")
    print(f"{executor}: {seconds:.1f} s, {1e6 * seconds / rows:.1f} µs a row; {peak}", flush=True)


def main() -> None:
    """Write the transaction, check the default limit, and measure both executors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=1_500_000_000)
    options = parser.parse_args()
    folder = STATE / f"transaction-{time.time_ns()}"
    spark = session_in(folder)
    try:
        member = MemberLogs(folder / "logs", "a1", [SPACE])
        size = member.transaction(SPACE, options.rows, options.bytes // options.rows)
        print(
            f"one transaction: {options.rows:,} rows, {options.bytes:,} bytes, {size:,} in the file",
            flush=True,
        )
        if options.bytes > 1024 * MIB:
            check_default_limit(spark, folder / "refused", member)
        for name in ("tasks", "driver"):
            measure(spark, folder / name, member, options.rows, name)
            shutil.rmtree(folder / name)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
