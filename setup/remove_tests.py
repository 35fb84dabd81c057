"""Removes the test suites that installed packages bring along: 60 MB that nothing imports.

    python setup/remove_tests.py

Only of the packages named here, whose folders `tests` were seen to be imported by their own tests alone.
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

PACKAGES = ("numba", "numpy", "pandas", "pyarrow", "scipy")


def remove_tests(site_packages: Path) -> None:
    """Remove the folders `tests` of `PACKAGES`."""
    for package in PACKAGES:
        for folder in [*(site_packages / package).rglob("tests")]:
            if folder.is_dir():
                shutil.rmtree(folder)


if __name__ == "__main__":
    remove_tests(Path(sysconfig.get_paths()["purelib"]))
