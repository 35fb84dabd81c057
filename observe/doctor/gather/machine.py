"""Gathers facts of this machine: programs, packages, jars, memory, disk space. Runs `java -version`."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from config.deployment import Config
from config.subscribe import Subscribe
from observe.doctor.machine import CacheFacts, Disk, MachineFacts
from pipeline.lookup.copy_folder import free_bytes, stored_bytes
from warehouse.lock.lock import local_folder

JAVA_TIMEOUT_SECONDS = 20.0
"""Seconds to wait for the output of `java -version`."""

DEFAULT_DRIVER_MEMORY_BYTES = 2**30
"""Spark's default of `spark.driver.memory`."""

DEFAULT_SPARK_CONF = Path(__file__).resolve().parents[3] / "conf"
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
