"""Plain Delta for `benchmarks.pipeline`: one table of all rows, and one table per space, written from Parquet."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.logs import ADMIN, FIRST_SPACE_ID, FORMAT
from schemas.layout import table_layout
from schemas.space import Field, KeyPart, Space
from udfs.tuples.tuples import tuple_columns

ORDER = ("timestamp", "segment", "position", "row")


class PlainDelta:
    """The Delta tables in an empty folder: `_log`, and one per space."""

    def __init__(self, spark: SparkSession, folder: Path, spaces: Sequence[str]) -> None:
        self.spark, self.folder, self.spaces = spark, folder, spaces
        self._batches = 0

    def path(self, name: str) -> str:
        """Return the path of a table, or of a Parquet directory."""
        return str((self.folder / name).resolve())

    def decode(self, changelog: DataFrame) -> Mapping[str, str]:
        """Write a batch's rows as Parquet, and create missing tables.

        Returns the paths by space, of the space's rows decoded and typed; and under "", of all rows as they are.
        """
        fields = tuple(Field(name, kind) for name, kind in FORMAT)
        space = Space(FIRST_SPACE_ID, ADMIN, "any", "memtx", fields, (KeyPart(0, "unsigned"),))
        decode = tuple_columns(table_layout([space]))
        rows = changelog.where(F.col("layout").isNotNull() & F.col("tuple").isNotNull())
        rows = rows.withColumn("typed", decode(F.col("tuple"), F.lit(0)))
        typed = rows.select("space", "timestamp", "segment", "position", "row", "tuple", "typed.*")
        self._batches += 1
        files = {"": self.path(f"decoded-{self._batches}")}
        changelog.write.parquet(files[""])
        for name in self.spaces:
            files[name] = self.path(f"decoded-{self._batches}-{name}")
            typed.where(F.col("space") == name).write.parquet(files[name])
        for name, file in files.items():
            target = self.path(name or "_log")
            if not DeltaTable.isDeltaTable(self.spark, target):
                self.spark.read.parquet(file).limit(0).write.format("delta").save(target)
        return files

    def write(self, files: Mapping[str, str], threads: int) -> None:
        """Append all rows to `_log`, then MERGE the rows of each space, with some spaces in parallel."""
        self.spark.read.parquet(files[""]).write.format("delta").mode("append").save(self.path("_log"))
        changed = [name for name in files if name]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda name: self._merge(name, files[name]), changed))

    def _merge(self, name: str, file: str) -> None:
        session = self.spark.newSession()
        rows = session.read.parquet(file)
        last = (
            rows.groupBy("id")
            .agg(F.max_by(F.struct(*rows.columns), F.struct(*ORDER)).alias("r"))
            .select("r.*")
        )
        target = DeltaTable.forPath(session, self.path(name)).alias("t")
        merge = target.merge(last.alias("s"), "t.id = s.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
