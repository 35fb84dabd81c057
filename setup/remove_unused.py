"""Removes from the environment what nothing here uses: 190 MB of packages' own tests, of RocksDB and of a Scala shell.

    python setup/remove_unused.py

Only of the packages named here, whose folders `tests` are imported by their own tests alone. RocksDB is one of Spark's
two stores for the state of streams: the stream of this project keeps none in Spark, and Spark's default is the other.
`connect-repl` is the Scala shell of Spark Connect with its own jars, which only that shell reads.
"""

import shutil
import sysconfig
from pathlib import Path

PACKAGES_WITH_TESTS = ("numba", "numpy", "pandas", "pyarrow", "scipy")

UNUSED_FILES = ("pyspark/jars/rocksdbjni-*.jar", "pyspark/jars/connect-repl/*.jar")


def remove_unused(site_packages: Path) -> None:
    """Remove the folders `tests` of `PACKAGES_WITH_TESTS`, and `UNUSED_FILES`."""
    for package in PACKAGES_WITH_TESTS:
        for folder in [*(site_packages / package).rglob("tests")]:
            if folder.is_dir():
                shutil.rmtree(folder)
    for pattern in UNUSED_FILES:
        for file in site_packages.glob(pattern):
            file.unlink()


if __name__ == "__main__":
    remove_unused(Path(sysconfig.get_paths()["purelib"]))
