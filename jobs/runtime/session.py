"""The Spark session of a job: with Delta, in UTC, with workers that run the job's own Python.

Works under spark-submit and in plain Python. In plain Python the folder `conf/` next to the packages is Spark's
configuration folder (unless `SPARK_CONF_DIR` names another one). Under spark-submit, Spark reads the folder
`conf` of its installation, the one that `SPARK_CONF_DIR` names, or the file of `--properties-file`. Settings that the
tables depend on are set here if they are missing; tuning is in `conf/spark-defaults.conf`. `warehouse.catalog` adds
databases and tables to the session.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
from delta import configure_spark_with_delta_pip
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from config.deployment import Config
from jobs.runtime.steps import log_step
from schemas.errors import ConfigurationError
from sources.xlog.datasource import PROJECT_PATH, import_in_workers, register
from warehouse.views import VERSION_AGE_CHECK
from warehouse.warehouse import TIMESTAMP_MICROS, TIMESTAMP_TYPE

CONF_FOLDER = Path(__file__).resolve().parents[2] / "conf"

SPARK_FOLDER = Path(pyspark.__file__).resolve().parent

JAVA_ARCHIVE = SPARK_FOLDER / "classes.jsa"
"""Java's class data archive of Spark's classes, with which Java starts faster; made by `aggregator setup classes`."""

ARCHIVED_CLASS_PATH = f"{SPARK_FOLDER}/jars/*"
"""The jars whose classes are in the archive. Java uses the archive only if Java's class path begins with the same jars.
The class path that Spark makes begins with the configuration folder, which cannot be in an archive. So these jars are
put in front of that folder."""

QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Each logs every error of a query with Java's stack, though a command prints the error that it does not catch."""

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def spark_session(config: Config, app: str) -> SparkSession:
    """Return the session of a job.

    Raises:
        ConfigurationError: Java does not start, or Spark has no Delta.
    """
    if SparkContext._active_spark_context is None:
        log_step("starting Spark")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit has started Java before this Python
        _start_java()
    SparkContext._ensure_initialized()
    given = SparkConf()
    # Workers unpickle this interpreter's objects: they need the same Python, by name or by path.
    os.environ["PYSPARK_PYTHON"] = given.get("spark.pyspark.python") or sys.executable
    extensions = given.get("spark.sql.extensions", "") or ""
    if DELTA_EXTENSION not in extensions:
        extensions = f"{extensions},{DELTA_EXTENSION}".removeprefix(",")
    builder = (
        SparkSession.builder.appName(app)
        .config("spark.sql.extensions", extensions)
        .config("spark.sql.catalog.spark_catalog", DELTA_CATALOG)
        .config("spark.sql.session.timeZone", "UTC")
        .config(TIMESTAMP_TYPE, TIMESTAMP_MICROS)
        .config("spark.sql.warehouse.dir", config.warehouse)
        .config(VERSION_AGE_CHECK, "false")
    )
    session = builder.getOrCreate()
    _order_workers_path(session)
    _require_delta(session)
    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    return session


def _order_workers_path(session: SparkSession) -> None:
    """Let workers find modules in the current folder as this process does: first, last or not at all.

    `python -m`, by which Spark starts them, would put it first: a user's module there may have the name of one of this
    project.
    """
    if {"", str(Path.cwd())} & {*sys.path[:1]}:
        return
    session.sparkContext.environment.setdefault("PYTHONSAFEPATH", "1")
    import_in_workers(session, PROJECT_PATH)
    if str(Path.cwd()) in sys.path:
        import_in_workers(session, str(Path.cwd()))


def log_reading_session(config: Config, app: str) -> SparkSession:
    """Return the session of a job that reads logs: with the data source `xlog` registered."""
    spark = spark_session(config, app)
    register(spark)
    return spark


def pass_to_spark(master: str | None, settings: Sequence[str]) -> None:
    """Make the Spark session of this process use `master` and settings of the form `key=value`.

    Spark's launcher reads them from `PYSPARK_SUBMIT_ARGS` before Java starts, the driver's memory included.

    Raises:
        ConfigurationError: A setting has no `=`, or spark-submit has already started Java.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        raise ConfigurationError("Spark has been started already", advice="give its options to spark-submit")
    wrong = [text for text in settings if not re.fullmatch(r"[^=\s]+=.*", text, re.DOTALL)]
    if wrong:
        raise ConfigurationError(f"{wrong[0]!r} is not a setting", advice="--conf spark.driver.memory=4g")
    words = [] if master is None else ["--master", master]
    words += [word for text in settings for word in ("--conf", text)]
    given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(words)} {given}"


def delta_coordinates() -> str:
    """Return the Maven coordinates of the Delta jars that fit the installed `delta-spark` and `pyspark`."""
    options = configure_spark_with_delta_pip(SparkSession.Builder())._options
    return str(options["spark.jars.packages"])


def _start_java() -> None:
    """Start Java with the configuration folder `conf/`; Ivy downloads Delta's jars unless `aggregator setup` did so."""
    if (CONF_FOLDER / "spark-defaults.conf").is_file():
        os.environ.setdefault("SPARK_CONF_DIR", str(CONF_FOLDER))
    conf = SparkConf()
    if not any(SPARK_FOLDER.glob("jars/delta-spark_*.jar")):
        conf.set("spark.jars.packages", delta_coordinates())
    if may_use_class_archive(os.environ, JAVA_ARCHIVE):
        conf.set("spark.driver.extraClassPath", ARCHIVED_CLASS_PATH)
        given = os.environ.get("SPARK_SUBMIT_OPTS", "")
        # An archive that does not fit this Java is no news to a user: it starts as without.
        archive = (
            f'"-XX:SharedArchiveFile={JAVA_ARCHIVE}" -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off'
        )
        os.environ["SPARK_SUBMIT_OPTS"] = f"{given} {archive}".strip()
    try:
        SparkContext._ensure_initialized(conf=conf)
    except (PySparkException, OSError) as error:
        raise ConfigurationError(
            f"Spark's Java did not start: {error}", advice="install Java 17, or set JAVA_HOME to one"
        ) from error


def may_use_class_archive(environment: Mapping[str, str], archive: Path) -> bool:
    """Return whether Java can use the archive of Spark's loaded classes, which makes its start faster.

    Java ignores an archive if its class path does not begin with the jars for which the archive was made. So this
    returns False if Spark is not the installed pyspark, or if the user's settings name a class path or an archive.
    """
    home = environment.get("SPARK_HOME")
    if not archive.is_file() or (home and Path(home).resolve() != SPARK_FOLDER):
        return False
    settings = Path(environment.get("SPARK_CONF_DIR", "")) / "spark-defaults.conf"
    given = [environment.get(name, "") for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS")]
    if settings.is_file():
        given.append(settings.read_text(encoding="utf-8"))
    return not any(
        re.search(r"extraClassPath|driver-class-path|SharedArchive|ArchiveClasses", text) for text in given
    )


def _require_delta(session: SparkSession) -> None:
    """Raise ConfigurationError if Spark lacks Delta's jars; without them the first query would fail inside Spark."""
    jvm: Any = session.sparkContext._jvm
    try:
        # Only checks that the class exists: loading the catalog takes seconds, and many jobs never need
        # it.
        jvm.org.apache.spark.util.Utils.classForName(DELTA_CATALOG, False, False)
    except Exception as error:
        raise ConfigurationError(
            f"this Spark has no Delta: {DELTA_CATALOG} is not there",
            advice=f"run `aggregator setup`, or give spark-submit `--packages {delta_coordinates()}`",
        ) from error
