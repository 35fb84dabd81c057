"""Set-up's last step: puts jars where the Spark of this virtual environment looks, Delta's, or (`s3`) those of S3.

    python setup/spark_jars.py [s3]
    python setup/spark_jars.py sums delta|s3      write setup/jars-….sha256 again, after a new version

Ivy resolves the coordinates, once; of what it brings, the jars whose classes Spark does not have itself are copied
into Spark's own folder of jars. From then on neither spark-submit nor plain python needs the network, `--packages`,
or a path. A jar is taken only with the SHA-256 that `setup/jars-delta.sha256` or `setup/jars-s3.sha256` has of it. With
Delta's, `conf/` becomes Spark's configuration folder by a link.

Not here: the Python packages (`setup.sh`).
"""

from __future__ import annotations

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

SPARK = Path(pyspark.__file__).resolve().parent
JARS = SPARK / "jars"

AWS_SDK = "2.35.4"
"""The version that hadoop-aws was built with. Of its bundle of 655 MiB these modules are what `s3a` asks for."""

AWS_MODULES = ("s3", "s3-transfer-manager", "sts")


@dataclass(frozen=True)
class Group:
    """Jars that come together.

    Parameters
    ----------
    name : str
        What set-up calls them.
    coordinates : tuple of str
        Of Maven.
    left_out : str
        Coordinates without a version, of what they name and nobody needs.

    """

    name: str
    coordinates: tuple[str, ...]
    left_out: str = ""

    @property
    def copied(self) -> Path:
        """The file with the names of those that an earlier set-up copied: another version replaces them."""
        return JARS / f"copied-by-set-up{'' if self.name == 'delta' else f'-{self.name}'}.txt"

    @property
    def sums(self) -> Path:
        """The file with the SHA-256 of each jar, as `sha256sum` writes it."""
        return Path(__file__).resolve().parent / f"jars-{self.name}.sha256"


def group_of(name: str) -> Group:
    """Return what is to be resolved."""
    if name == "delta":
        return Group(name, (delta_coordinates(),))
    (client,) = JARS.glob("hadoop-client-api-*.jar")
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    modules = (f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in AWS_MODULES)
    coordinates = (f"org.apache.hadoop:hadoop-aws:{hadoop}", *modules)
    return Group(name, coordinates, left_out="software.amazon.awssdk:bundle")


def resolve(group: Group) -> list[Path]:
    """Return the jars that Ivy resolves for a group, asked by Spark's launcher with Spark's settings."""
    conf = SparkConf(loadDefaults=False).set("spark.jars.packages", ",".join(group.coordinates))
    if group.left_out:
        conf.set("spark.jars.excludes", group.left_out)
    with tempfile.TemporaryFile("w+") as log:
        try:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        except Exception:
            log.seek(0)
            sys.exit(f"{log.read()}\nset-up: the jars of {group.name} could not be resolved (see above)")
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
    """Copy the jars of which Spark has no class, each as a whole or not at all, and return their names."""
    earlier = set(group.copied.read_text().split()) if group.copied.exists() else set()
    own = [jar for jar in JARS.glob("*.jar") if jar.name not in earlier]
    known = set[str]().union(*(classes(jar) for jar in own))
    new = {file_name(jar): jar for jar in jars if known.isdisjoint(classes(jar))}
    check_sums(list(new.values()), group.sums)
    group.copied.write_text("\n".join(sorted(earlier | new.keys())))
    for name, jar in new.items():
        part = JARS / f"{name}.part"
        shutil.copyfile(jar, part)
        part.replace(JARS / name)
    for old in earlier - new.keys():
        (JARS / old).unlink(missing_ok=True)
    group.copied.write_text("\n".join(sorted(new)))
    return sorted(new)


def file_name(jar: Path) -> str:
    """Return the name of a jar; Ivy puts the organisation and `_` in front of it."""
    return jar.name.partition("_")[2]


def sum_of(jar: Path) -> str:
    """Return the SHA-256 of a file."""
    with jar.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_sums(jars: list[Path], sums: Path) -> None:
    """End set-up if a jar is not the one that was tested, by its name, or if the list of those is missing."""
    if not sums.exists():
        sys.exit(f"set-up: {sums.name} is missing, so no jar is known as the one that was tested")
    known = dict(line.split()[::-1] for line in sums.read_text().splitlines())
    wrong = [jar for jar in jars if known.get(file_name(jar)) != sum_of(jar)]
    if wrong:
        names = ", ".join(f"{file_name(jar)} ({sum_of(jar)})" for jar in wrong)
        sys.exit(
            f"set-up: not the jars of {sums.name}: {names}. Remove them from Ivy's folders (one is {wrong[0].parent}) "
            "and try again; where they are of a new version: python setup/spark_jars.py sums"
        )


def write_sums(group: Group) -> None:
    """Write the sums of what Ivy resolves now."""
    jars = {file_name(jar): sum_of(jar) for jar in resolve(group)}
    group.sums.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(jars.items())))


def link_configuration() -> None:
    """Make `conf/` the configuration folder of this Spark."""
    link = SPARK / "conf"
    target = os.path.relpath(CONF_FOLDER, SPARK)
    if link.is_symlink() and str(link.readlink()) != target:
        link.unlink()
    if not link.exists():
        link.symlink_to(target, target_is_directory=True)


def main(name: str = "delta", group_name: str = "delta") -> None:
    """Resolve, check, copy, link."""
    if name == "sums":
        write_sums(group_of(group_name))
        return
    group = group_of(name)
    print(f"set-up: jars of {name} ({', '.join(group.coordinates)})", flush=True)
    if not copy(resolve(group), group):
        sys.exit("set-up: Ivy brought nothing that Spark has not")
    if name == "delta":
        link_configuration()


if __name__ == "__main__":
    main(*sys.argv[1:])
