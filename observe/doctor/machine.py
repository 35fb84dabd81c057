"""Checks the machine: Java, Spark with Delta's jars, Python, memory and free disk space. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from observe.doctor.findings import Finding, fail, ok, warn

JAVA = 17
"""Oldest Java that Spark 4 supports (Spark's documentation, "Downloading")."""

COPIES = 8
"""Memory of the driver's Python in units of `local_bytes` (docs/operation.md, "Memory, and the size of a batch")."""

AMPLE = 4
"""Free disk space that is enough, in multiples of one batch's size."""

MIB = 2**20


@dataclass(frozen=True)
class Disk:
    """A folder that is written.

    Parameters
    ----------
    subject : str
        `warehouse`, `checkpoint`, `spool a`, `scratch`.
    path : str
    free_bytes : int
        For this user.
    free_inodes : int or None
        None if the file system does not count them.
    batch_bytes : int
        Largest size of one batch, or of one file of a spool.

    """

    subject: str
    path: str
    free_bytes: int
    free_inodes: int | None
    batch_bytes: int


@dataclass(frozen=True)
class Machine:
    """The facts of this machine.

    Parameters
    ----------
    python : tuple of int
        Version of Python.
    java : str or None
        Path of the program; None if there is none.
    java_version : int or None
        The major version; None if it does not start.
    java_error : str or None
        Its output in that case.
    pyspark, delta : str or None
        Installed versions; None for a missing package.
    delta_jars, s3_jars : tuple of str
        Names of jars in Spark's folder.
    needs_s3 : bool
        Whether Spark itself reads an S3 address.
    memory_bytes : int or None
        Of this machine or container; None if unknown.
    spark_memory_bytes : int
        `spark.driver.memory`.
    local_bytes : int
        From the configuration.
    disks : tuple of Disk

    """

    python: tuple[int, ...]
    java: str | None
    java_version: int | None
    java_error: str | None
    pyspark: str | None
    delta: str | None
    delta_jars: tuple[str, ...]
    s3_jars: tuple[str, ...]
    needs_s3: bool
    memory_bytes: int | None
    spark_memory_bytes: int
    local_bytes: int
    disks: tuple[Disk, ...] = ()


def check_machine(found: Machine) -> list[Finding]:
    """Return the findings about a machine."""
    return [_python(found), _java(found), *_spark(found), _memory(found), *_disks(found.disks)]


def _python(found: Machine) -> Finding:
    shown = ".".join(map(str, found.python))
    if found.python[:2] != (3, 11):
        return fail(
            "python_version",
            "python",
            f"{shown} is not 3.11",
            "make setup with PYTHON=/path/to/python3.11",
        )
    return ok("python", "python", shown)


def _java(found: Machine) -> Finding:
    advice = f"install Java {JAVA}, or set JAVA_HOME to one"
    if found.java is None:
        return fail("java_missing", "java", "there is no java on the PATH, and JAVA_HOME names none", advice)
    if found.java_version is None:
        return fail("java_missing", "java", f"{found.java} does not start: {found.java_error}", advice)
    if found.java_version < JAVA:
        return fail("java_too_old", "java", f"{found.java} is Java {found.java_version}", advice)
    return ok("java", "java", f"{found.java_version} ({found.java})")


def _spark(found: Machine) -> Iterator[Finding]:
    if found.pyspark is None or found.delta is None:
        missing = [
            name
            for name, version in (("pyspark", found.pyspark), ("delta-spark", found.delta))
            if not version
        ]
        yield fail("spark_missing", "spark", f"not installed: {', '.join(missing)}", "make setup")
        return
    yield ok("spark", "spark", found.pyspark)
    own = [jar for jar in found.delta_jars if jar.startswith("delta-spark_")]
    if not own:
        yield fail(
            "delta_jar_missing",
            "delta",
            "Spark's folder of jars has no delta-spark: a start asks Ivy for it, over the network",
            "make setup, or spark-submit --packages (docs/operation.md, Set-up)",
        )
    elif not any(jar.endswith(f"-{found.delta}.jar") for jar in own):
        text = f"delta-spark is {found.delta} in Python and {', '.join(own)} among Spark's jars"
        yield fail("delta_jar_version", "delta", text, "make setup")
    else:
        yield ok("delta", "delta", found.delta)
    if found.needs_s3 and not any(jar.startswith("hadoop-aws-") for jar in found.s3_jars):
        yield fail(
            "s3_jar_missing",
            "spark",
            "a path is on s3a://, and Spark has no hadoop-aws",
            "setup/setup.sh with-s3",
        )


def _memory(found: Machine) -> Finding:
    needed = COPIES * found.local_bytes + found.spark_memory_bytes
    text = (
        f"the driver may take {size(needed)}: {COPIES} times local_bytes and {size(found.spark_memory_bytes)} of "
        "spark.driver.memory"
    )
    if found.memory_bytes is None:
        return ok("memory", "memory", text)
    text = f"{size(found.memory_bytes)}; {text}"
    if found.memory_bytes < needed:
        return warn("memory_small", "memory", text, "a smaller local_bytes, or a smaller spark.driver.memory")
    return ok("memory", "memory", text)


def _disks(disks: Sequence[Disk]) -> Iterator[Finding]:
    for disk in disks:
        text = f"{size(disk.free_bytes)} free at {disk.path}"
        advice = "make room there, or move it"
        if disk.free_bytes < disk.batch_bytes:
            need = f"{text}, less than one batch may take ({size(disk.batch_bytes)})"
            yield fail("disk_full", disk.subject, need, advice)
        elif disk.free_inodes == 0:
            yield fail("disk_full", disk.subject, f"no inode is free at {disk.path}", advice)
        elif disk.free_bytes < AMPLE * disk.batch_bytes:
            yield warn("disk_low", disk.subject, f"{text}, less than {AMPLE} batches may take", advice)
        else:
            yield ok("disk", disk.subject, text)


def size(count: int) -> str:
    """Return a number of bytes for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / MIB:.0f} MiB"
