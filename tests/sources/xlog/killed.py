"""A streaming query in a process of its own that dies in the middle of a batch: run by `test_stream`.

Usage: python -m tests.sources.xlog.killed DIRECTORY CHECKPOINT REPORT BATCH
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.sources.xlog.streams import rows_of, stream_of


def main(directory: str, checkpoint: str, report: str, fatal: str) -> None:
    """Follow a directory; write each batch's rows down, and die in the batch with the given number."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()

    def take(batch: DataFrame, number: int) -> None:
        with Path(report).open("a", encoding="utf-8") as file:
            file.write(json.dumps([number, rows_of(batch)]) + "\n")
        if number == int(fatal):
            os._exit(9)

    options = {"maxBytesPerTrigger": "200", "includeSnapshot": "true"}
    writer = stream_of(spark, options, Path(directory)).writeStream.foreachBatch(take)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(*sys.argv[1:])
