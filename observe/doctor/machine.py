"""Gathers facts of this machine and checks them: programs, packages, jars, memory, disk space. Runs `java -version`."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from config.deployment import Config
from config.subscribe import Subscribe
from observe.doctor.findings import Finding, fail, ok, warn
from pipeline.lookup.copy_folder import KEPT_FREE_BYTES, free_bytes, stored_bytes
from schemas.units import size_text
from warehouse.lock.lock import local_folder

TESTED_PYTHON = (3, 11)
"""The version with which all tests run, and for which the lock files are."""

FIRST_REFUSED_PYTHON = (3, 14)
"""The first version for which the package cannot be installed (`requires-python` of pyproject.toml)."""

MIN_JAVA_VERSION = 17
"""Oldest Java that Spark 4 supports (Spark's documentation, "Downloading")."""

PYTHON_MEMORY_FACTOR = 8
"""How many times `local_bytes` the driver's Python may need (docs/install.md, "Memory, and the size of a batch")."""

MIN_FREE_BATCHES = 4
"""Free disk space below which a warning is given, in multiples of one batch's size."""

MIB = 2**20


@dataclass(frozen=True)
class Disk:
    """Free space of a folder that a run writes to."""

    subject: str
    """What the folder is for, as the output calls it: `warehouse`, `checkpoint`, `spool a`, `scratch`."""
    path: str
    free_bytes: int
    """Free space for this user."""
    free_inodes: int | None
    """None if the file system does not count inodes."""
    batch_bytes: int
    """Maximum size of what is written at once: of one batch, or of one file of a spool."""


@dataclass(frozen=True)
class CacheFacts:
    """The folder of key copies (`cache` of the configuration)."""

    path: str
    limit_bytes: int
    stored_bytes: int
    free_bytes: int
    error: str | None = None
    """Why the folder cannot be written; None if it can."""


@dataclass(frozen=True)
class MachineFacts:
    """The facts of this machine."""

    python_version: tuple[int, ...]
    java_home: str | None
    """The environment variable `JAVA_HOME`; None if it is not set."""
    java_path: str | None
    """Path of the program `java`, below `java_home` if that is set; None if it is not there."""
    java_version: int | None
    """Major version of Java; None if `java` is not installed or does not start."""
    java_error: str | None
    """The output of a `java` that does not start."""
    pyspark_version: str | None
    delta_version: str | None
    """Installed versions of pyspark and delta-spark; None for a missing package."""
    delta_jars: tuple[str, ...]
    s3_jars: tuple[str, ...]
    """Names of Delta's and of hadoop-aws' jars in Spark's folder."""
    needs_s3: bool
    """Whether the warehouse or the checkpoint is on `s3a://`, for which Spark needs the jars of hadoop-aws."""
    memory_bytes: int | None
    spark_memory_bytes: int
    max_local_batch_bytes: int
    """The setting `local_bytes`: the largest batch, in bytes of its decoded rows, that runs in the driver's Python."""
    disks: tuple[Disk, ...] = ()
    cache: CacheFacts | None = None


def check_machine(facts: MachineFacts) -> list[Finding]:
    """Return the findings about a machine."""
    return [
        _check_python(facts),
        _check_java(facts),
        *_check_spark(facts),
        _check_memory(facts),
        *check_disks(facts.disks),
        *([] if facts.cache is None else [_check_cache(facts.cache)]),
    ]


def _check_python(facts: MachineFacts) -> Finding:
    shown = ".".join(map(str, facts.python_version))
    if facts.python_version[:2] == TESTED_PYTHON:
        return ok("python", "python", shown)
    if TESTED_PYTHON < facts.python_version[:2] < FIRST_REFUSED_PYTHON:
        return warn(
            "python_version", "python", f"{shown}: every test runs with 3.11, few with this one", "use 3.11"
        )
    return fail(
        "python_version",
        "python",
        f"{shown} is not 3.11",
        "install the package for a Python 3.11 (in a clone: PYTHON=/path/to/python3.11 make setup)",
    )


def _check_java(facts: MachineFacts) -> Finding:
    advice = f"install Java {MIN_JAVA_VERSION}, or set JAVA_HOME to one"
    if facts.java_path is None:
        text = "there is no java on the PATH, and JAVA_HOME is not set"
        if facts.java_home is not None:
            text = f"JAVA_HOME is {facts.java_home}, which has no bin/java"
        return fail("java_missing", "java", text, advice)
    if facts.java_version is None:
        return fail("java_missing", "java", f"{facts.java_path} does not start: {facts.java_error}", advice)
    if facts.java_version < MIN_JAVA_VERSION:
        return fail("java_too_old", "java", f"{facts.java_path} is Java {facts.java_version}", advice)
    return ok("java", "java", f"{facts.java_version} ({facts.java_path})")


def _check_spark(facts: MachineFacts) -> Iterator[Finding]:
    if facts.pyspark_version is None or facts.delta_version is None:
        missing = [
            name
            for name, version in (("pyspark", facts.pyspark_version), ("delta-spark", facts.delta_version))
            if not version
        ]
        yield fail(
            "spark_missing",
            "spark",
            f"not installed: {', '.join(missing)}",
            "pip install pyspark delta-spark",
        )
        return
    yield ok("spark", "spark", facts.pyspark_version)
    jars = [jar for jar in facts.delta_jars if jar.startswith("delta-spark_")]
    if not jars:
        yield warn(
            "delta_jar_missing",
            "delta",
            "Spark's folder of jars has no delta-spark, so each start would download it with Ivy",
            "aggregator setup, or spark-submit --packages (docs/install.md)",
        )
    elif not any(jar.endswith(f"-{facts.delta_version}.jar") for jar in jars):
        text = f"delta-spark is {facts.delta_version} in Python and {', '.join(jars)} among Spark's jars"
        yield fail("delta_jar_version", "delta", text, "aggregator setup")
    else:
        yield ok("delta", "delta", facts.delta_version)
    if facts.needs_s3 and not any(jar.startswith("hadoop-aws-") for jar in facts.s3_jars):
        yield fail(
            "s3_jar_missing",
            "spark",
            "a path is on s3a://, and Spark has no hadoop-aws",
            "aggregator setup s3",
        )


def _check_memory(facts: MachineFacts) -> Finding:
    needed = PYTHON_MEMORY_FACTOR * facts.max_local_batch_bytes + facts.spark_memory_bytes
    text = (
        f"the driver may need {size_text(needed)}: {PYTHON_MEMORY_FACTOR} times local_bytes and "
        f"{size_text(facts.spark_memory_bytes)} of spark.driver.memory"
    )
    if facts.memory_bytes is None:
        return ok("memory", "memory", text)
    text = f"{size_text(facts.memory_bytes)}; {text}"
    if facts.memory_bytes < needed:
        return warn("memory_small", "memory", text, "a smaller local_bytes, or a smaller spark.driver.memory")
    return ok("memory", "memory", text)


def check_disks(disks: Sequence[Disk]) -> Iterator[Finding]:
    """Yield a finding for each disk: whether it has room for what is written at once."""
    for disk in disks:
        text = f"{size_text(disk.free_bytes)} free at {disk.path}"
        advice = "free disk space there, or name another folder"
        if disk.free_bytes < disk.batch_bytes:
            need = f"{text}, less than one batch may need ({size_text(disk.batch_bytes)})"
            yield fail("disk_full", disk.subject, need, advice)
        elif disk.free_inodes == 0:
            yield fail("disk_full", disk.subject, f"no inode is free at {disk.path}", advice)
        elif disk.free_bytes < MIN_FREE_BATCHES * disk.batch_bytes:
            yield warn(
                "disk_low", disk.subject, f"{text}, less than {MIN_FREE_BATCHES} batches may need", advice
            )
        else:
            yield ok("disk", disk.subject, text)


def _check_cache(cache: CacheFacts) -> Finding:
    room = max(0, cache.stored_bytes + cache.free_bytes - KEPT_FREE_BYTES)
    effect = "lookups read the data files, which takes longer"
    if cache.error is not None:
        text = f"the folder of key copies {cache.path} cannot be written ({cache.error}): {effect}"
        return warn(
            "cache_unwritable", "cache", text, "give the job the right to write there, or set cache.path"
        )
    text = f"{size_text(cache.stored_bytes)} of key copies, at most {size_text(cache.limit_bytes)}, in {cache.path}"
    if room < MIB:
        text = f"{text}: its disk has no room, so {effect}"
        return warn("cache_full", "cache", text, "free disk space there, or set cache.path to another disk")
    if room < cache.limit_bytes:
        text = f"{text}; its disk has room for {size_text(room)}"
    return ok("cache", "cache", text)


JAVA_TIMEOUT_SECONDS = 20.0

DEFAULT_DRIVER_MEMORY_BYTES = 2**30
"""Spark's default of `spark.driver.memory`."""

DEFAULT_SPARK_CONF = Path(__file__).resolve().parents[2] / "conf"
"""Spark's configuration folder if the variable `SPARK_CONF_DIR` is not set."""

_BYTES_BY_UNIT = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def gather_machine(config: Config | None, subscribe: Subscribe | None) -> MachineFacts:
    """Return the facts of this machine that matter for a configuration."""
    java_path = _java_program()
    java_version, java_error = (None, None) if java_path is None else _java_version(java_path)
    jars = tuple(path.name for path in sorted(_spark_home().glob("jars/*.jar")))
    locations = () if config is None else (config.warehouse, config.checkpoint)
    return MachineFacts(
        python_version=sys.version_info[:3],
        java_home=os.environ.get("JAVA_HOME") or None,
        java_path=java_path,
        java_version=java_version,
        java_error=java_error,
        pyspark_version=_package_version("pyspark"),
        delta_version=_package_version("delta-spark"),
        delta_jars=tuple(jar for jar in jars if jar.startswith("delta-")),
        s3_jars=tuple(jar for jar in jars if jar.startswith("hadoop-aws-")),
        needs_s3=any(location.startswith("s3a://") for location in locations),
        memory_bytes=_memory_bytes(),
        spark_memory_bytes=parse_spark_size(spark_settings().get("spark.driver.memory", ""))
        or DEFAULT_DRIVER_MEMORY_BYTES,
        max_local_batch_bytes=0 if config is None else config.local_bytes,
        disks=tuple(disks_of(config, subscribe)),
        cache=None if config is None else _cache_facts(config),
    )


def spark_settings() -> dict[str, str]:
    """Return the settings of `spark-defaults.conf` in Spark's configuration folder."""
    file = Path(os.environ.get("SPARK_CONF_DIR") or DEFAULT_SPARK_CONF) / "spark-defaults.conf"
    if not file.is_file():
        return {}
    words = (line.split(None, 1) for line in file.read_text().splitlines() if not line.startswith("#"))
    return {pair[0]: pair[1].strip() for pair in words if len(pair) == 2}


def parse_spark_size(text: str) -> int | None:
    """Return a size in Spark's notation (`3g`) in bytes; None if it is not a size."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    return None if match is None else int(match[1]) * _BYTES_BY_UNIT[match[2]]


def nearest_existing_folder(path: str | Path) -> Path:
    """Return the path if it exists, else its nearest parent folder that exists."""
    folder = Path(path).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _spark_home() -> Path:
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home)
    spec = find_spec("pyspark")
    return Path("/nonexistent") if spec is None or spec.origin is None else Path(spec.origin).parent


def _java_program() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / "java"
        return str(program) if program.exists() else None
    return shutil.which("java")


def _java_version(program: str) -> tuple[int | None, str | None]:
    """Return (Java's major version, None), or (None, the error) if the program does not print a version."""
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    output = done.stderr + done.stdout
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return (None, output.strip().partition("\n")[0]) if match is None else (int(match[1]), None)


def _memory_bytes() -> int | None:
    """Return the memory of this machine, or the limit of its container if that is smaller; None if unknown."""
    limits = []
    for file in _CGROUP_LIMITS:
        text = file.read_text().strip() if file.is_file() else ""
        if text.isdigit():
            limits.append(int(text))
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def disks_of(config: Config | None, subscribe: Subscribe | None) -> Iterator[Disk]:
    """Yield the free space of each local folder that a run or the daemon writes to."""
    if config is not None:
        for subject, location in (("warehouse", config.warehouse), ("checkpoint", config.checkpoint)):
            folder = local_folder(location)
            if folder is not None:
                # A checkpoint has only offsets, so one MiB is enough.
                yield _disk(
                    subject, folder, config.max_bytes_per_trigger if subject == "warehouse" else 2**20
                )
        scratch = os.environ.get("SPARK_LOCAL_DIRS") or spark_settings().get("spark.local.dir")
        for path in (scratch or tempfile.gettempdir()).split(","):
            yield _disk("scratch", Path(path), config.max_bytes_per_trigger)
    for replicaset in () if subscribe is None else subscribe.replicasets:
        yield _disk(f"spool {replicaset.name}", Path(replicaset.spool), subscribe.rotate if subscribe else 0)


def _cache_facts(config: Config) -> CacheFacts:
    folder = Path(config.cache.folder(config.checkpoint))
    existing = nearest_existing_folder(folder)
    error = None
    try:
        # A folder that is not there yet is made below the nearest one.
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".doctor-"):
            pass
    except OSError as caught:
        error = caught.strerror or str(caught)
    return CacheFacts(
        str(folder),
        config.cache.limit,
        stored_bytes(folder),
        free_bytes(existing),
        error,
    )


def _disk(subject: str, folder: Path, batch_bytes: int) -> Disk:
    stat = os.statvfs(nearest_existing_folder(folder))
    inodes = stat.f_favail if stat.f_files else None
    return Disk(subject, str(folder), stat.f_bavail * stat.f_frsize, inodes, batch_bytes)
