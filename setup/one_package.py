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

FOLDERS_AND_LEFT_OUT = {
    "conf": ("*Dockerfile", "compose", "pipelines"),
    "docs": ("decisions", "pictures", "*.ipynb"),
}
"""Folders that the wheel has in `aggregator` too, with what needs the repository, or only tells about it."""


class BuildPackage(build_py):  # type: ignore[misc]
    """Copies the packages as setuptools does, then moves them below `aggregator`."""

    def run(self) -> None:
        """Build the folder from which the wheel is made."""
        super().run()
        if not self.editable_mode:
            gather(Path(self.build_lib))
            for folder, left_out in FOLDERS_AND_LEFT_OUT.items():
                target = Path(self.build_lib, PACKAGE, folder)
                shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*left_out), dirs_exist_ok=True)
