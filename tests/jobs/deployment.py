"""A deployment that tests run as the job does, in the tests' Spark session; its tables are read without Spark.

All deployments share one catalog, so each has a database of its own.
"""

import itertools
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.aggregate import aggregate
from tests.oracle.fold import Folded, fold_directory
from tests.oracle.wins import Winner, last_write_wins
from tests.pipeline.deployment import CONTROL, Tables, batch_writer, next_batch
from tests.truth import Recording
from warehouse.warehouse import Warehouse

_numbers = itertools.count()


class Deployment(Tables):
    """One configuration and its tables."""

    columns = CONTROL[:-1]

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.database = f"aggregator_{next(_numbers)}"

    def opened(self, spark: SparkSession) -> Warehouse:
        """Return the warehouse with a Spark session, for tests that change tables."""
        config = self.config()
        return Warehouse(spark, config.warehouse, config.database)

    def run(self, **changes: Any) -> None:
        """Run the job once, to the current end of the logs."""
        aggregate(self.config(**changes), once=True)

    def write(self, **changes: Any) -> None:
        """Run batches up to the current end of the logs with the job's writer, without Spark.

        It saves the seconds in which a stream starts. Do not mix it with `run`, which does not know its offset.
        """
        config = self.config(**changes)
        with batch_writer(config) as (_, writer):
            while done := next_batch(writer, self.offset, self.batches, config.max_bytes_per_trigger):
                self.offset, self.batches = done[0], self.batches + 1

    def forget_checkpoint(self) -> None:
        """Delete the checkpoint, as an operator might."""
        shutil.rmtree(self.folder / "checkpoint")

    def rows(self, table: str, columns: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Return a table's rows, read without Spark; a missing table has none."""
        path = self.folder / "warehouse" / f"{self.database}.db" / table
        if not DeltaTable.is_deltatable(str(path)):
            return []
        found = DeltaTable(str(path)).to_pyarrow_table(columns=list(columns) if columns else None)
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    def refused_spaces(self) -> set[str]:
        """Return the names of the spaces that have no table."""
        newest: dict[Any, dict[str, Any]] = {}
        for row in sorted(
            self.rows("_schema", ["epoch", "replicaset_id", "space_id", "name", "state"]), key=_epoch
        ):
            newest[row["replicaset_id"], row["space_id"]] = row
        return {row["name"] for row in newest.values() if row["state"].startswith("refused")}


def _epoch(row: Mapping[str, Any]) -> int:
    return int(row["epoch"])


def folded(recording: Recording, node: str) -> Folded:
    """Return the result of the oracle for the logs of a member of a recording."""
    return fold_directory(recording.directory(node))


def winners(one: Folded, other: Folded, space: str, sequence: Iterable[str] = ()) -> list[Winner]:
    """Return the rows that the table of a space must have after `last_write_wins`, by the oracle."""
    return list(last_write_wins([one, other], space, tuple(sequence)).values())
