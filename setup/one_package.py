"""Builds a wheel in which all code is below the package `aggregator`; `pyproject.toml` gives it to setuptools.

`setup/import_name.py` says what is changed. An installation that links to the repository (`pip install -e`) stays as
the repository is.
"""

import shutil
import sys
from pathlib import Path

from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))  # pip builds without this folder on the path

from import_name import PACKAGE, gather

SPARK_SETTINGS = ("spark-defaults.conf", "log4j2.properties")
"""Files of `conf/` with which the commands start Spark; the wheel has them in `aggregator/conf`."""


class BuildPackage(build_py):  # type: ignore[misc]
    """Copies the packages as setuptools does, then moves them below `aggregator`."""

    def run(self) -> None:
        """Build the folder from which the wheel is made."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, PACKAGE)
            gather(Path(self.build_lib))
            (target / "conf").mkdir(exist_ok=True)
            for name in SPARK_SETTINGS:
                shutil.copy(Path("conf", name), target / "conf")
