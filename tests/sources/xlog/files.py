"""Log files of every type and version, complete, empty, damaged; and ways to read them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sources.xlog.datasource import register
from sources.xlog.format.block import EOF_MARKER, encode_block
from sources.xlog.options import parse_options
from sources.xlog.spark_readers import XlogReader, XlogStreamReader
from tests.sources.xlog import plain, samples

RowPosition = tuple[str, int | None, int | None, str | None]
UUID = samples.INSTANCE

INSERT = encode_block(samples.insert(1, "a"))
HEADERS = {
    "XLOG of 1.6.1, without VClock": f"XLOG\n0.12\nServer: {UUID}\n\n",
    "SNAP of 1.6.1, without VClock": f"SNAP\n0.12\nServer: {UUID}\n\n",
    "XLOG without an instance": "XLOG\n0.12\n\n",
    "XLOG of 1.6": f"XLOG\n0.12\nServer: {UUID}\nVClock: {{1: 5}}\n\n",
    "SNAP of 1.7": f"SNAP\n0.13\nVersion: 1.7.2\nServer: {UUID}\nVClock: {{}}\n\n",
    "VYLOG of 1.7, without VClock": f"VYLOG\n0.13\nInstance: {UUID}\n\n",
    "RUN": f"RUN\n0.13\nVersion: 2.6.0\nInstance: {UUID}\n\n",
    "INDEX": f"INDEX\n0.13\nVersion: 2.6.0\nInstance: {UUID}\n\n",
}
"""Text headers of files that are sound."""

BLOCKS = samples.blocks(3, rows=4)
TWELVE = list(range(6, 18))
"""The lsns in `BLOCKS`."""


def made(header: str, *parts: bytes, marker: bool = True) -> bytes:
    """Return a file of a text header and blocks."""
    return header.encode() + b"".join(parts) + (EOF_MARKER if marker else b"")


def expected(paths: Iterable[Path]) -> Counter[RowPosition]:
    """Return the positions and types of the rows of whole files, as the plain reader finds them."""
    return Counter(
        (row["file"], row["position"], row["row"], row["type"])
        for path in paths
        for row in plain.read(path.read_bytes(), path.name)
    )


def positions(rows: Iterable[Mapping[str, Any]]) -> Counter[RowPosition]:
    return Counter((row["file"], row["position"], row["row"], row["type"]) for row in rows)


def batch(path: str | list[str], **options: str) -> list[dict[str, Any]]:
    """Return the rows of a batch read, as Spark's driver and tasks make them."""
    parsed = parse_options(options | _path(path))
    reader = XlogReader(parsed)
    partitions = reader.partitions()
    assert partitions, "Spark makes no table of no partition"
    return [row for part in partitions for rows in reader.read(part) for row in rows.to_pylist()]


def stream(
    path: str | list[str], start: dict[str, Any], **options: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows that a stream reads from an offset up to the end of what is there, and the offset there.

    As Spark does for `Trigger.AvailableNow`; the options of each batch are parsed again, as after a kill.
    """
    parsed = parse_options(options | _path(path))
    reader = XlogStreamReader(parsed)
    reader.prepareForTriggerAvailableNow()
    found: list[dict[str, Any]] = []
    while (end := json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))) != start:
        another = XlogStreamReader(parsed)
        for part in another.partitions(start, end):
            found += [row for rows in another.read(part) for row in rows.to_pylist()]
        start = end
    return found, start


def _path(path: str | list[str]) -> dict[str, str]:
    return {"paths": json.dumps(path)} if isinstance(path, list) else {"path": path}


def spark_batch(spark: SparkSession, path: str | list[str], **options: str) -> list[dict[str, Any]]:
    register(spark)
    return [row.asDict() for row in spark.read.format("xlog").options(**options).load(path).collect()]


def spark_stream(
    spark: SparkSession, checkpoint: Path, path: str | list[str], **options: str
) -> list[dict[str, Any]]:
    """Return the rows that Spark streams up to the end of what is there."""
    register(spark)
    reader = spark.readStream.format("xlog").options(**options)
    frame = reader.load(path) if isinstance(path, str) else reader.options(**_path(path)).load()
    found: list[dict[str, Any]] = []
    query = frame.writeStream.foreachBatch(
        lambda part, _: found.extend(row.asDict() for row in part.collect())
    )
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return found
