"""Set-up's last step: puts Delta's jars and our `conf/` where the Spark of this virtual environment looks.

Ivy resolves the coordinates that `delta-spark` names, once; of what it brings, the jars whose classes Spark
does not have itself are copied into Spark's own folder of jars. From then on neither spark-submit nor plain
python needs the network, `--packages`, or a path. `conf/` becomes Spark's configuration folder by a link.

Not here: the Python packages (`setup.sh`).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

import pyspark
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from jobs.session import CONF_FOLDER, delta_coordinates

SPARK = Path(pyspark.__file__).resolve().parent
COPIED = SPARK / "jars" / "copied-by-set-up.txt"
"""Names of the jars that an earlier set-up copied: another version of Delta replaces them."""


def resolve() -> list[Path]:
    """Return the jars that Ivy resolves for Delta, asked by Spark's launcher with Spark's settings."""
    conf = SparkConf(loadDefaults=False).set("spark.jars.packages", delta_coordinates())
    with tempfile.TemporaryFile("w+") as log:
        try:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        except Exception:
            log.seek(0)
            sys.exit(f"{log.read()}\nset-up: Delta's jars could not be resolved (see above)")
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


def copy(jars: list[Path]) -> list[str]:
    """Copy the jars of which Spark has no class, each as a whole or not at all, and return their names."""
    folder = COPIED.parent
    earlier = set(COPIED.read_text().split()) if COPIED.exists() else set()
    own = [jar for jar in folder.glob("*.jar") if jar.name not in earlier]
    known = set[str]().union(*(classes(jar) for jar in own))
    new = {jar.name.partition("_")[2]: jar for jar in jars if known.isdisjoint(classes(jar))}
    COPIED.write_text("\n".join(sorted(earlier | new.keys())))
    for name, jar in new.items():  # Ivy puts the organisation and `_` in front of a name
        part = folder / f"{name}.part"
        shutil.copyfile(jar, part)
        part.replace(folder / name)
    for old in earlier - new.keys():
        (folder / old).unlink(missing_ok=True)
    COPIED.write_text("\n".join(sorted(new)))
    return sorted(new)


def link_configuration() -> None:
    """Make `conf/` the configuration folder of this Spark."""
    link = SPARK / "conf"
    target = os.path.relpath(CONF_FOLDER, SPARK)
    if link.is_symlink() and str(link.readlink()) != target:
        link.unlink()
    if not link.exists():
        link.symlink_to(target, target_is_directory=True)


def main() -> None:
    """Resolve, copy, link."""
    print(f"set-up: Delta's jars ({delta_coordinates()})", flush=True)
    if not copy(resolve()):
        sys.exit("set-up: Ivy brought nothing that Spark has not")
    link_configuration()


if __name__ == "__main__":
    main()
