"""A deployment whose batches run without a stream, by the job's own writer; its tables are read without Spark."""

import atexit
import itertools
import os
import shutil
import tempfile
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self

import msgpack
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from config.deployment import Config
from pipeline.batch import BatchWriter, MakeDistributed
from pipeline.commit.batch import BatchName
from pipeline.start import open_writer
from schemas.names import table_name
from sources.xlog.directory.offset import OffsetEntry, to_text
from sources.xlog.stream.batch import segments_between
from tests.jobs.written import Node, replicasets_of
from warehouse.delta.fence import take_writer_number
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.lock.lock import WriterLock
from warehouse.warehouse import Warehouse

CONTROL = ("_key", "_tuple", "_global_id", "_replicaset_id", "_lsn", "_timestamp", "_created", "_misfits")
"""Columns that every space's table has."""

TIME_COLUMNS = {"committed_at", "found_at", "decided_at", "first_seen"}
"""Columns with the time at which a batch ran."""


class Tables:
    """The tables of a deployment, as its subclass reads their rows.

    Args:
        folder: The folder for the warehouse and the checkpoint.
        sources: Directories of logs by the sources' names.
        replicasets: Uuids of replicasets by the sources' names, for sources whose files do not have them.
        **settings: Further keys of the configuration.
    """

    columns: Sequence[str] = CONTROL
    """Columns of `table`."""
    database = "aggregator"
    origins: Mapping[str, Sequence[str]] = {}
    """The `origins` of sources by their names."""

    def __init__(
        self,
        folder: Path,
        sources: Mapping[str, Path],
        replicasets: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.folder, self.sources, self.replicasets = folder, dict(sources), dict(replicasets or {})
        self.settings = {"start": "logs", **settings}
        self.offset: Mapping[str, OffsetEntry] = {}
        self.batches = 0

    @classmethod
    def of(cls, folder: Path, *nodes: Node, **settings: Any) -> Self:
        """Return a deployment that reads the logs of nodes."""
        sources = {node.path.name: node.path for node in nodes}
        return cls(folder, sources, replicasets_of(*sources), **settings)

    @classmethod
    def aggregated(cls, folder: Path, *nodes: Node, **settings: Any) -> Self:
        """Write the rows of nodes that are in no log yet to one, and return a deployment that has read all."""
        for node in nodes:
            if node.is_open:
                node.close()
        deployment = cls.of(folder, *nodes, **settings)
        deployment.run()
        return deployment

    def run(self, *args: Any, **settings: Any) -> Any:
        """Read all rows that are in the logs now."""
        raise NotImplementedError

    def config(self, **changes: Any) -> Config:
        """Return the configuration, with further keys in `changes`."""
        whole = {
            "warehouse": str(self.folder / "warehouse"),
            "checkpoint": str(self.folder / "checkpoint"),
            "database": self.database,
            "sources": [
                {
                    **{"name": name, "path": str(path), "replicaset": self.replicasets.get(name)},
                    **({"origins": list(self.origins[name])} if name in self.origins else {}),
                }
                for name, path in self.sources.items()
            ],
            **self.settings,
            **changes,
        }
        return Config.model_validate(whole)

    @property
    def location(self) -> WarehouseLocation:
        config = self.config()
        return location_of(config.warehouse, config.database)

    def rows(self, table: str, columns: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Return a table's rows; a missing table has none."""
        raise NotImplementedError

    def table(self, space: str) -> dict[bytes, dict[str, Any]]:
        """Return the rows of a space's table by canonical key, without the typed columns."""
        rows = self.rows(table_name(space), self.columns)
        found = {row["_key"]: row for row in rows}
        assert len(found) == len(rows), f"{space} has a key twice"
        return found

    def fields(self, table: str = "s") -> list[list[Any]]:
        """Return the fields of each tuple in a table, sorted."""
        return sorted(msgpack.unpackb(row["_tuple"]) for row in self.rows(table, ["_tuple"]))

    def tuples(self, space: str) -> list[bytes]:
        """Return the tuples of a space: those in its table, and those that were set aside."""
        table = table_name(space)
        return sorted([row["_tuple"] for row in self.table(space).values()] + self.unfit_tuples(table))

    def unfit_tuples(self, table: str) -> list[bytes]:
        """Return the unfit tuples of keys without a row in the table."""
        newest: dict[Any, dict[str, Any]] = {}
        for row in sorted(self.rows("_versions"), key=lambda row: row["epoch"]):
            if row["space"] == table:
                newest[row["key"], row["replicaset_id"]] = row
        keys = {row["_key"] for row in self.rows(table, ["_key"])}
        return [r["tuple"] for (key, _), r in newest.items() if r["state"] == "unfit" and key not in keys]


class Deployment(Tables):
    """One configuration and its tables.

    Args:
        distributed: Makes the executor of each batch; by default batches run in this process.
        origins: The `origins` of sources by their names.
    """

    def __init__(
        self,
        folder: Path,
        sources: Mapping[str, Path],
        replicasets: Mapping[str, str] | None = None,
        distributed: MakeDistributed | None = None,
        origins: Mapping[str, Sequence[str]] | None = None,
        **settings: Any,
    ) -> None:
        tasks = {} if distributed is None else {"local_bytes": 1}
        super().__init__(folder, sources, replicasets, **{**tasks, **settings})
        self.distributed, self.origins = distributed, dict(origins or {})

    def run(self, budget: int | Iterable[int] | None = None, batches: int | None = None) -> int:
        """Run batches until all rows are read, and return how many batches had rows.

        Args:
            budget: Approximate number of bytes of logs per batch; with 1, each batch reads one block. An iterable has
                one number for each batch. By default one batch reads all.
            batches: Greatest number of batches.
        """
        done = 0
        with self.writer() as (_, writer):
            for size in itertools.islice(_budgets(budget), batches):
                rows = self.batch(writer, size)
                if rows is None:
                    break
                done += bool(rows)
        return done

    def batch(self, writer: BatchWriter, size: int | None = None) -> int | None:
        """Run one batch of about `size` bytes of logs, and return its number of rows; None if there is no batch."""
        done = next_batch(writer, self.offset, self.batches, size)
        if done is None:
            return None
        self.offset, rows = done
        self.batches += 1
        return rows

    @contextmanager
    def writer(self) -> Iterator[tuple[Warehouse, BatchWriter]]:
        """Hold the writer's lock while the block runs; yield the warehouse and its writer, as after a start."""
        with batch_writer(self.config(), self.distributed) as opened:
            yield opened

    def rows(self, table: str, columns: Iterable[str] | None = None) -> list[dict[str, Any]]:
        path = self.folder / "warehouse" / "aggregator.db" / table
        if not (path / "_delta_log").is_dir():
            return []
        wanted = "*" if columns is None else ", ".join(f'"{name}"' for name in columns)
        query = QueryBuilder().register("opened", DeltaTable(str(path)))
        found: list[dict[str, Any]] = pa.table(
            query.execute(f"SELECT {wanted} FROM opened").read_all()
        ).to_pylist()
        return found


@cache
def _empty_tables() -> Path:
    """Return a folder with the system tables as a first start makes them.

    Each process makes them once: to make them takes 60 ms, to copy them 3, and a thousand tests begin with them.
    """
    folder = Path(tempfile.mkdtemp(prefix="empty-tables-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    atexit.register(shutil.rmtree, folder)
    made = Warehouse(None, str(folder))
    made.create_system_tables()
    return Path(made.location.path)


@contextmanager
def batch_writer(
    config: Config, distributed: MakeDistributed | None = None
) -> Iterator[tuple[Warehouse, BatchWriter]]:
    """Hold the lock of a warehouse while the block runs; yield the warehouse and its writer, as after a start."""
    warehouse = Warehouse(None, config.warehouse, config.database)
    if not Path(warehouse.location.path).exists():
        shutil.copytree(_empty_tables(), warehouse.location.path)
    with WriterLock(warehouse, "a test") as lock:
        warehouse.open_tables.fence = take_writer_number(warehouse.location, lock.check)
        yield warehouse, open_writer(config, warehouse, lock, distributed)


def next_batch(
    writer: BatchWriter, offset: Mapping[str, OffsetEntry], number: int, size: int | None = None
) -> tuple[Mapping[str, OffsetEntry], int] | None:
    """Do the batch after an offset, and return the next offset and the batch's rows; None if there is no batch."""
    end = writer.log_stream.latest(offset, size)
    if end == offset:
        return None
    if not offset:  # the first batch of a stream only sets where the replicasets begin
        return end, 0
    segments = segments_between(writer.log_stream, offset, end)
    rows, _ = writer.process(segments, BatchName("test", number, (to_text(offset), to_text(end))))
    return end, rows


def _budgets(budget: int | Iterable[int] | None) -> Iterator[int | None]:
    if budget is None or isinstance(budget, int):
        yield from itertools.repeat(budget)
    else:
        yield from budget
        yield from itertools.repeat(None)


def contents(deployment: Deployment) -> dict[str, Counter[str]]:
    """Return the rows of each table as texts, without what differs between runs: times, the executor, own uuids.

    Epochs are numbered without those that wrote no row: after a batch that was rolled back, or was done twice.
    """
    folder = deployment.folder / "warehouse" / "aggregator.db"
    written = sorted({row["epoch"] for row in deployment.rows("_changelog", ["epoch"])})
    (aggregator,) = [row["uuid"] for row in deployment.rows("_cluster") if row["replicaset_id"] == 0]

    def text(row: dict[str, Any]) -> str:
        if row.get("epoch") is not None:
            row = {**row, "epoch": bisect(written, row["epoch"])}
        differs = (
            TIME_COLUMNS | {"executor"} | ({"timestamp"} if row.get("source") == "aggregator" else set())
        )
        return repr(sorted(one for one in row.items() if one[0] not in differs)).replace(aggregator, "own")

    return {
        table.name: Counter(map(text, deployment.rows(table.name)))
        for table in sorted(folder.iterdir())
        if (table / "_delta_log").is_dir()
    }


def rows_of_tables(deployment: Deployment) -> dict[str, Counter[str]]:
    """Return `contents` without `_epochs`, whose versions of tables depend on how files are written."""
    return {table: rows for table, rows in contents(deployment).items() if table != "_epochs"}
