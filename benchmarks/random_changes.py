"""Batches that change random rows of a large table: their time, and the bytes that they write.

    python -m benchmarks.random_changes [--rows N ...] [--changes N ...] [--batches N] [--modes auto never] [--peers]
                                        [--contended N] [--deleted N] [--waiting N] [--series N]

A table gets its rows from logs, in the order of its keys. Then each batch has REPLACEs or UPDATEs of random keys, and
runs in this process, without Spark; then again after maintenance, which joins full files. `--peers` makes the same
changes by Spark's MERGE with and without deletion vectors, and by delta-rs' MERGE, on tables of the same rows. Each
line has the median of the batches' seconds, the bytes that a batch wrote, and these bytes over the bytes of the changed
rows.

`--contended`: two replicasets have written N keys each, so that `_versions` has as many rows. `--deleted`: N keys were
deleted while another replicaset writes the table, so `_versions` remembers them. `--waiting`: N rows wait behind a hole
of the log, so `_pending` has them, and each batch adds more.

`--series`: N batches of each size, one after another, then readers of the table, before and after a purge.
"""

import argparse
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from benchmarks.logs import MemberLogs
from config.deployment import Config
from pipeline.batch import BatchWriter
from pipeline.commit.batch import BatchName
from pipeline.commit.epoch import commit_epoch
from pipeline.compaction.rewrite import compact
from pipeline.start import open_writer
from sources.xlog.directory.offset import OffsetEntry, to_text
from sources.xlog.stream.batch import segments_between
from warehouse.delta.fence import take_writer_number
from warehouse.lock.lock import WriterLock
from warehouse.system_tables import cluster
from warehouse.warehouse import Warehouse

STATE = Path(".state/bench")
SPACE = "orders"
ROWS_PER_LOG = 500_000
LOAD_BYTES = 256 << 20
MIB = 1 << 20


class LocalJob:
    """A deployment whose batches run in this process, one after another."""

    def __init__(
        self, folder: Path, member: MemberLogs, stack: ExitStack, *others: MemberLogs, **settings: object
    ) -> None:
        self.folder, self.member = folder, member
        self.config = Config.model_validate(
            {
                "warehouse": str((folder / "warehouse").resolve()),
                "checkpoint": str((folder / "checkpoint").resolve()),
                "sources": [one.source_entry() for one in (member, *others)],
                "start": "logs",
                **settings,
            }
        )
        self.warehouse = Warehouse(None, self.config.warehouse, self.config.database)
        self.warehouse.create_system_tables()
        cluster.record_allocation(self.warehouse, self.config.cluster.allocation, datetime.now(UTC))
        lock = stack.enter_context(WriterLock(self.warehouse, "benchmark"))
        self.warehouse.open_tables.fence = take_writer_number(self.warehouse.location, lock.check)
        self.writer: BatchWriter = open_writer(self.config, self.warehouse, lock)
        self._offset: Mapping[str, OffsetEntry] = {}
        self._number = 0

    def run(self, limit: int = LOAD_BYTES) -> list[float]:
        """Process all new rows of the logs; return the seconds of each batch."""
        seconds = []
        stream = self.writer.log_stream
        while (end := stream.latest(self._offset, limit)) != self._offset:
            name = BatchName("benchmark", self._number, (to_text(self._offset), to_text(end)))
            segments = segments_between(stream, self._offset, end)
            began = time.perf_counter()
            rows, _ = self.writer.process(segments, name)
            if rows:
                seconds.append(time.perf_counter() - began)
            self._offset, self._number = end, self._number + 1
        return seconds

    def maintain(self) -> float:
        """Join files of the space's table until nothing is left to do; return the seconds."""
        began, tables = time.perf_counter(), self.warehouse.open_tables
        while compact(tables, SPACE):
            pass
        name = ("maintenance", self._number)
        self.writer.state = commit_epoch(tables, self.writer.state, {SPACE: tables.version(SPACE)}, name)
        return time.perf_counter() - began

    def table(self) -> Path:
        """Return the folder of the space's table."""
        return self.folder / "warehouse" / "aggregator.db" / SPACE


def written_bytes(folder: Path) -> int:
    """Return the size of all files of a table that were ever written, its log included."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def load(job: LocalJob, rows: int) -> float:
    """Insert rows with even keys; return the seconds of the batches."""
    seconds = 0.0
    for first in range(0, rows, ROWS_PER_LOG):
        job.member.insert(SPACE, range(2 * first, 2 * min(first + ROWS_PER_LOG, rows), 2))
        seconds += sum(job.run())
    return seconds


def random_keys(draw: random.Random, rows: int, count: int) -> list[int]:
    """Return distinct keys of the table."""
    return [2 * key for key in draw.sample(range(rows), count)]


def measure(job: LocalJob, change: Callable[[Iterable[int]], None], keys: Sequence[int]) -> tuple[float, int]:
    """Do one batch with changes of some keys; return its seconds, and the bytes that it wrote to the table."""
    before = written_bytes(job.table())
    change(keys)
    seconds = sum(job.run())
    return seconds, written_bytes(job.table()) - before


def print_line(what: str, measured: Sequence[tuple[float, int]], changed_bytes: float) -> None:
    """Print the median of the seconds and of the bytes of some batches."""
    seconds = statistics.median(one for one, _ in measured)
    written = statistics.median(one for _, one in measured)
    print(
        f"{what:58} {seconds:8.3f} s {written / MIB:9.2f} MiB written, {written / changed_bytes:7.1f} x the rows'",
        flush=True,
    )


def check(job: LocalJob, rows: int) -> None:
    """Exit unless the table has each key once."""
    table = DeltaTable(str(job.table()))
    query = f'select count(*) n, count(distinct id) d from "{SPACE}"'
    found = pa.table(QueryBuilder().register(SPACE, table).execute(query).read_all()).to_pylist()[0]
    if found != {"n": rows, "d": rows}:
        raise SystemExit(f"the table has {found}, not {rows} rows")


def by_mode(folder: Path, rows: int, changes: Sequence[int], batches: int, mode: str) -> None:
    """Measure batches of each size under one setting of `deletion_vectors`."""
    with ExitStack() as stack:
        job = LocalJob(
            folder,
            MemberLogs(folder / "logs", "a1", [SPACE]),
            stack,
            deletion_vectors=mode,
            trigger="1 second",
        )
        seconds = load(job, rows)
        size = written_bytes(job.table())
        print(
            f"{rows:,} rows, {size / MIB:,.0f} MiB, loaded in {seconds:.1f} s; deletion_vectors: {mode}",
            flush=True,
        )
        row_bytes, draw = size / max(rows, 1), random.Random(rows)
        change_rows(job, draw, rows, row_bytes, changes, batches)
        if mode != "never":
            before, seconds = len(job.warehouse.open_tables.files(SPACE)), job.maintain()
            after = len(job.warehouse.open_tables.files(SPACE))
            print(f"maintenance: {seconds:.1f} s, {before} files become {after}", flush=True)
            change_rows(job, draw, rows, row_bytes, changes, batches)
        check(job, rows)


def change_rows(
    job: LocalJob, draw: random.Random, rows: int, row_bytes: float, changes: Sequence[int], batches: int
) -> None:
    """Measure batches of each size and kind."""
    for kind, change in (("REPLACE", job.member.replace), ("UPDATE", job.member.update)):
        for count in changes:
            measured = [
                measure(job, lambda keys, c=change: c(SPACE, keys), random_keys(draw, rows, count))  # type: ignore[misc]
                for _ in range(batches + 1)
            ]
            what = f"{count:>9,} random {kind}s"
            print_line(f"{what}, first", measured[:1], count * row_bytes)
            print_line(what, measured[1:], count * row_bytes)
            steps = job.writer.seconds_by_step
            print("      ends of steps: " + ", ".join(f"{name} {took:.3f}" for name, took in steps.items()))


def series(folder: Path, rows: int, count: int, batches: int) -> None:
    """Measure batches of one size, one after another: the first ten, the last ten, and what readers take after them."""
    with ExitStack() as stack:
        member = MemberLogs(folder / "logs", "a1", [SPACE])
        job = LocalJob(folder, member, stack, trigger="1 second")
        load(job, rows)
        size, draw = written_bytes(job.table()), random.Random(rows)
        # The first batch makes the key copies.
        measured = [
            measure(job, lambda keys: member.replace(SPACE, keys), random_keys(draw, rows, count))
            for _ in range(batches + 1)
        ][1:]
        changed_bytes = count * size / rows
        for name, part in (("first ten", measured[:10]), ("last ten", measured[-10:])):
            print_line(f"{count:>9,} random REPLACEs, {name} of {batches}", part, changed_bytes)
        written = sum(one for _, one in measured) / batches / changed_bytes
        mean = statistics.mean(one for one, _ in measured)
        print(f"      all of them: {mean:.3f} s and {written:.1f} x the rows' bytes (mean)", flush=True)
        keys = random_keys(draw, rows, 5)
        before = readers(job, keys)
        compact(job.warehouse.open_tables, SPACE, purge=True)
        after = readers(job, keys)
        for name, seconds in before.items():
            print(f"      {name}: {seconds:.3f} s, purged {after[name]:.3f} s", flush=True)
        check(job, rows)


def readers(job: LocalJob, keys: Sequence[int]) -> dict[str, float]:
    """Return the seconds of queries of the table by delta-rs: the fastest of three of each."""
    queries = {
        "count": "select count(*) from orders",
        "point lookup": f"select * from orders where id = {keys[0]}",
        "full scan": "select sum(id), max(length(cast(_lsn as varchar))) from orders",
    }
    seconds = dict.fromkeys(queries, float("inf"))
    for name, query in queries.items():
        for _ in range(3):
            began = time.perf_counter()
            QueryBuilder().register(SPACE, DeltaTable(str(job.table()))).execute(query).read_all()
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return seconds


def onto_nothing(folder: Path, changes: Sequence[int]) -> None:
    """Measure the same batches into an empty table."""
    with ExitStack() as stack:
        job = LocalJob(folder, MemberLogs(folder / "logs", "a1", [SPACE]), stack)
        load(job, 1)
        for count in changes:
            # Keys that the table does not have.
            measured = [
                measure(
                    job,
                    lambda keys: job.member.replace(SPACE, keys),
                    range(10**9 * (n + 1), 10**9 * (n + 1) + count),
                )
                for n in range(3)
            ]
            print_line(f"{count:>9,} REPLACEs into a small table", measured, count * 110.0)


def onto_system_rows(folder: Path, kind: str, count: int, changes: Sequence[int]) -> None:
    """Measure batches while `_versions` (`contended`, `deleted`) or `_pending` (`waiting`) has many rows."""
    with ExitStack() as stack:
        one, other = (MemberLogs(folder / "logs", name, [SPACE]) for name in ("a1", "b1"))
        job = LocalJob(folder, one, stack, other, trigger="1 second")
        system = folder / "warehouse" / "aggregator.db" / ("_pending" if kind == "waiting" else "_versions")
        if kind == "waiting":
            load(job, 1_000)
            one.skip_lsn()
        if kind == "contended":
            other.replace(SPACE, range(0, 2 * count, 2))
        load(job, count) if kind != "waiting" else one.replace(SPACE, range(0, 2 * count, 2))
        if kind == "deleted":
            other.replace(SPACE, range(1, 2_000, 2))
            one.delete(SPACE, range(0, 2 * count, 2))
        print(f"{count:,} {kind}: {sum(job.run()):.1f} s", flush=True)
        draw = random.Random(count)
        for number in changes:
            measured = []
            for turn in range(4):
                # Contended keys go from one replicaset to the other, so that `_versions` changes.
                member = other if kind == "contended" and turn % 2 else one
                before = written_bytes(system)
                member.replace(SPACE, random_keys(draw, count, number))
                seconds = sum(job.run())
                measured.append((seconds, written_bytes(system) - before))
            print_line(f"{number:>9,} REPLACEs, {count:,} {kind}; {system.name}", measured, number * 110.0)


def delta_rs_merge(folder: Path, rows: int, changes: Sequence[int]) -> None:
    """Measure delta-rs' MERGE of random rows into a table of as many rows."""

    def frame(keys: Sequence[int]) -> pa.Table:
        texts = [
            f"customer {key:08d} of a city far away, with some text of the length of a row" for key in keys
        ]
        return pa.table(
            {"id": pa.array(keys, pa.int64()), "name": texts, "amount": [key * 0.5 for key in keys]}
        )

    table = folder / "delta-rs"
    for first in range(0, rows, ROWS_PER_LOG):
        write_deltalake(
            str(table), frame(range(2 * first, 2 * min(first + ROWS_PER_LOG, rows), 2)), mode="append"
        )
    draw = random.Random(rows)
    for count in changes:
        source, before, began = (
            frame(random_keys(draw, rows, count)),
            written_bytes(table),
            time.perf_counter(),
        )
        merge = DeltaTable(str(table)).merge(source, "s.id = t.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        took = time.perf_counter() - began
        print_line(
            f"{count:>9,} changes by delta-rs' MERGE", [(took, written_bytes(table) - before)], count * 90.0
        )


def spark_merge(folder: Path, rows: int, changes: Sequence[int]) -> None:
    """Measure Spark's MERGE of random rows into a table of as many rows, with and without deletion vectors."""
    from delta.tables import DeltaTable as SparkTable
    from pyspark.sql import functions as F

    from benchmarks.measured_job import session_in

    spark = session_in(folder)
    try:
        for vectors in ("true", "false"):
            path = str((folder / f"spark-{vectors}").resolve())
            frame = spark.range(0, 2 * rows, 2).select(
                "id", F.concat(F.lit("customer "), F.col("id"), F.lit(" " + "text " * 14)).alias("name")
            )
            writer = frame.write.format("delta").option("delta.enableDeletionVectors", vectors)
            writer.save(path)
            draw = random.Random(rows)
            for count in changes:
                keys = [(key,) for key in random_keys(draw, rows, count)]
                source = spark.createDataFrame(keys, "id long").withColumn("name", F.lit("x" * 80))
                source.write.format("noop").mode("overwrite").save()
                before, began = written_bytes(Path(path)), time.perf_counter()
                merge = SparkTable.forPath(spark, path).alias("t").merge(source.alias("s"), "t.id = s.id")
                merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
                took = time.perf_counter() - began
                what = f"{count:>9,} changes by Spark's MERGE, vectors: {vectors}"
                print_line(what, [(took, written_bytes(Path(path)) - before)], count * 90.0)
    finally:
        spark.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each number of rows, each in its own folder, and print a line for each kind of batch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[2_000_000, 20_000_000])
    parser.add_argument("--changes", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--modes", nargs="*", default=["auto"])
    parser.add_argument("--peers", action="store_true")
    kinds = ("contended", "deleted", "waiting")
    for kind in kinds:
        parser.add_argument(f"--{kind}", type=int)
    parser.add_argument("--series", type=int, metavar="N")
    options = parser.parse_args(arguments)
    folder = STATE / f"random-{time.time_ns()}"
    try:
        onto_nothing(folder / "empty", options.changes)
        for kind in kinds:
            if (count := getattr(options, kind)) is not None:
                onto_system_rows(folder / kind, kind, count, options.changes)
        for rows in options.rows:
            if options.series:
                for count in options.changes:
                    series(folder / f"series-{rows}-{count}", rows, count, options.series)
                    shutil.rmtree(folder / f"series-{rows}-{count}")
                continue
            for mode in options.modes:
                by_mode(folder / f"{mode}-{rows}", rows, options.changes, options.batches, mode)
                shutil.rmtree(folder / f"{mode}-{rows}")
            if options.peers:
                delta_rs_merge(folder / f"peers-{rows}", rows, options.changes)
                spark_merge(folder / f"spark-{rows}", rows, options.changes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
