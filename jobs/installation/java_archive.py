"""Makes an archive of Java's classes (class data sharing), with which Spark starts faster.

Most of Spark's start is the time in which Java reads and checks some 20,000 classes; an archive of them halves it. Java
ignores an archive that was made with other jars, or another order of them, so it is made again after jars were
added. `jobs.runtime.session` passes it to the Java that it starts. A Java that spark-submit starts has another class
path, and does not use it. Everything works without the archive.
"""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from config.deployment import Config
from jobs.runtime.session import ARCHIVED_CLASS_PATH, JAVA_ARCHIVE, spark_session


def load_classes(folder: Path) -> SparkSession:
    """Write, query, update and stream a small table, so that Java loads the classes of the commands."""
    config = Config.model_validate(
        {
            "warehouse": str(folder / "warehouse"),
            "checkpoint": str(folder / "checkpoint"),
            "sources": [{"name": "none", "path": str(folder)}],
        }
    )
    spark = spark_session(config, "set-up")
    table = str(folder / "table")
    rows = spark.range(100).selectExpr("id", "cast(id AS string) AS text", "map(id, id) AS pairs")
    rows.write.format("delta").save(table)
    spark.sql(f"SELECT text, count(*), max(id) FROM delta.`{table}` GROUP BY text ORDER BY text").collect()
    spark.sql(f"UPDATE delta.`{table}` SET text = 'x' WHERE id = 1")
    stream = spark.readStream.format("delta").load(table).writeStream.trigger(availableNow=True)
    writing = stream.option("checkpointLocation", str(folder / "followed")).foreachBatch(lambda *_: None)
    writing.start().awaitTermination()
    return spark


def is_whole(archive: Path) -> bool:
    """Whether Java accepts an archive and its checksums; with a truncated archive, Java would crash."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    options = ["-Xshare:on", "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={archive}"]
    command = [java, *options, "-cp", ARCHIVED_CLASS_PATH, "-version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def make_class_archive() -> None:
    """Replace the archive."""
    JAVA_ARCHIVE.unlink(missing_ok=True)
    made = JAVA_ARCHIVE.with_suffix(".part")
    made.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f'"-XX:ArchiveClassesAtExit={made}" -Xlog:disable -XX:TieredStopAtLevel=1'
    )
    settings = f'--conf spark.ui.enabled=false --conf "spark.driver.extraClassPath={ARCHIVED_CLASS_PATH}"'
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master local[2] {settings} pyspark-shell"
    with tempfile.TemporaryDirectory() as folder:
        spark = load_classes(Path(folder))
        gateway: Any = spark.sparkContext._gateway
        java = gateway.proc
        spark.stop()
        java.stdin.close()
        java.wait()
    if made.exists() and is_whole(made):
        made.replace(JAVA_ARCHIVE)
    else:
        made.unlink(missing_ok=True)
        raise OSError("Java made no archive of its classes")
