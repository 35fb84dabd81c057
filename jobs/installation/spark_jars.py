"""Copies jars into the `jars` folder of this environment's Spark: Delta's, or those for `s3a://`.

    python -m jobs.installation.spark_jars delta|s3      write jars-….sha256 again, after a new version

Ivy resolves the coordinates and downloads the jars; those with classes that Spark has already are left out. Afterwards
neither spark-submit nor plain python needs the network or `--packages`. Each jar must have its SHA-256 in
`jars-delta.sha256` or `jars-s3.sha256` next to this module. With Delta's jars, Spark's configuration folder becomes a
link to `conf/`, in a clone of the repository.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pyspark
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from jobs.runtime.session import CONF_FOLDER, delta_coordinates
from schemas.errors import ConfigurationError

SPARK = Path(pyspark.__file__).resolve().parent
JARS = SPARK / "jars"

AWS_SDK = "2.35.4"
"""The version that hadoop-aws was built with."""

AWS_MODULES = ("s3", "s3-transfer-manager", "sts")
"""The modules that `s3a` uses; the bundle of all modules has 655 MiB."""


@dataclass(frozen=True)
class Group:
    """Jars that are installed together."""

    name: str
    """`delta` or `s3`."""
    coordinates: tuple[str, ...]
    """Maven coordinates."""
    excluded: str = ""
    """Coordinates, without a version, of a dependency that is not needed."""

    @property
    def copied_list(self) -> Path:
        """The file with the names of the jars that set-up has copied; a new version replaces these jars."""
        return JARS / f"copied-by-set-up{'' if self.name == 'delta' else f'-{self.name}'}.txt"

    @property
    def sums_file(self) -> Path:
        """The file with the SHA-256 of each jar, in the form of `sha256sum`."""
        return Path(__file__).resolve().parent / f"jars-{self.name}.sha256"


def group_of(name: str) -> Group:
    """Return the group with a name, with the Maven coordinates that fit this Spark."""
    if name == "delta":
        return Group(name, (delta_coordinates(),))
    (client,) = JARS.glob("hadoop-client-api-*.jar")
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    modules = (f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in AWS_MODULES)
    coordinates = (f"org.apache.hadoop:hadoop-aws:{hadoop}", *modules)
    return Group(name, coordinates, excluded="software.amazon.awssdk:bundle")


def resolve(group: Group) -> list[Path]:
    """Return the jars that Ivy resolves for a group; Spark's launcher calls Ivy, as with `--packages`."""
    conf = SparkConf(loadDefaults=False).set("spark.jars.packages", ",".join(group.coordinates))
    if group.excluded:
        conf.set("spark.jars.excludes", group.excluded)
    with tempfile.TemporaryFile("w+") as log:
        try:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        except Exception:
            log.seek(0)
            raise ConfigurationError(
                f"the jars of {group.name} could not be resolved: {log.read().strip()}",
                advice="Ivy needs a Maven repository, or its own cache with these jars from another machine",
            ) from None
    jars = gateway.jvm.SparkConf(True).get("spark.jars")
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    return [Path(jar.removeprefix("file:").replace("//", "/")) for jar in jars.split(",")]


def classes(jar: Path) -> set[str]:
    """Return the names of a jar's classes."""
    with ZipFile(jar) as archive:
        names = archive.namelist()
    return {
        name for name in names if name.endswith(".class") and not name.startswith(("META-INF", "module-"))
    }


def copy(jars: list[Path], group: Group) -> list[str]:
    """Copy those jars that share no class with Spark's own, each atomically; return the names of the copied ones."""
    earlier = set(group.copied_list.read_text().split()) if group.copied_list.exists() else set()
    own = [jar for jar in JARS.glob("*.jar") if jar.name not in earlier]
    known = set[str]().union(*(classes(jar) for jar in own))
    new = {file_name(jar): jar for jar in jars if known.isdisjoint(classes(jar))}
    check_sums(list(new.values()), group.sums_file)
    group.copied_list.write_text("\n".join(sorted(earlier | new.keys())))
    for name, jar in new.items():
        part = JARS / f"{name}.part"
        shutil.copyfile(jar, part)
        part.replace(JARS / name)
    for old in earlier - new.keys():
        (JARS / old).unlink(missing_ok=True)
    group.copied_list.write_text("\n".join(sorted(new)))
    return sorted(new)


def file_name(jar: Path) -> str:
    """Return the name of a jar without the organisation and `_` that Ivy puts in front of it."""
    return jar.name.partition("_")[2]


def sum_of(jar: Path) -> str:
    """Return the SHA-256 of a file."""
    with jar.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_sums(jars: list[Path], sums_file: Path) -> None:
    """Raise ConfigurationError if jars do not have the SHA-256 that is listed for them."""
    if not sums_file.exists():
        raise ConfigurationError(
            f"{sums_file.name} is missing, so no jar is known as the one that was tested"
        )
    wrong = [jar for jar in jars if known_sums(sums_file).get(file_name(jar)) != sum_of(jar)]
    if wrong:
        names = ", ".join(f"{file_name(jar)} ({sum_of(jar)})" for jar in wrong)
        raise ConfigurationError(
            f"not the jars of {sums_file.name}: {names}",
            advice=f"remove them from Ivy's folders (one is {wrong[0].parent}) and try again; if they are a new "
            "version: python -m jobs.installation.spark_jars",
        )


def known_sums(sums_file: Path) -> dict[str, str]:
    """Return the SHA-256 of each jar that is listed, by its name."""
    return dict(line.split()[::-1] for line in sums_file.read_text().splitlines())


def write_sums(group: Group) -> None:
    """Write the sums of the jars that Ivy resolves now."""
    jars = {file_name(jar): sum_of(jar) for jar in resolve(group)}
    group.sums_file.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(jars.items())))


def link_configuration() -> None:
    """Make Spark's configuration folder a link to `conf/`."""
    link = SPARK / "conf"
    target = os.path.relpath(CONF_FOLDER, SPARK)
    if link.is_symlink() and str(link.readlink()) != target:
        link.unlink()
    if not link.exists():
        link.symlink_to(target, target_is_directory=True)


def is_installed(group: Group) -> bool:
    """Return whether the jars of a group are among Spark's, in the version that was tested."""
    names = group.copied_list.read_text().split() if group.copied_list.exists() else []
    sums = known_sums(group.sums_file)
    wanted = {
        f"{artifact}-{version}.jar" for _, artifact, version in (one.split(":") for one in group.coordinates)
    }
    return wanted <= {*names} and all(
        (JARS / name).is_file() and sum_of(JARS / name) == sums.get(name) for name in names
    )


def install_jars(name: str) -> None:
    """Install the jars of the group `name`, unless they are there: then without the network.

    Raises:
        ConfigurationError: If the jars cannot be had, or are others than those that were tested.
    """
    group = group_of(name)
    if not is_installed(group):
        try:
            copied = copy(resolve(group), group)
        except PermissionError as error:
            raise ConfigurationError(
                f"the jars of {name} cannot be stored: {error}",
                advice="run it as the owner of Spark's folder",
            ) from error
        if not copied:
            raise ConfigurationError("Spark has classes of every jar that Ivy resolved, so none was copied")
    if name == "delta" and CONF_FOLDER.is_dir():
        link_configuration()


if __name__ == "__main__":
    write_sums(group_of(sys.argv[1]))
