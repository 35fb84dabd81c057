"""What tests of every folder share: one Spark session, made as the jobs make theirs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if not hasattr(sys.modules["__main__"], "__file__"):
    # PySpark takes a main module without a file, as pytest-xdist's processes have, for a run of doctests, and exits.
    sys.modules["__main__"].__file__ = __file__

pytest_plugins = ("tests.live.fixtures",)

LOCAL_SPARK = "--master local[2] --conf spark.ui.enabled=false pyspark-shell"


class ModuleScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process whole modules, and those that use the Spark session to two: each Java costs seconds."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if not _uses_spark(self.config.rootpath / module):
            return module
        return "spark jobs" if module.startswith("tests/jobs/") else "spark"


@lru_cache
def _uses_spark(module: Path) -> bool:
    """Whether a module's tests run in the shared session."""
    text = module.read_text(encoding="utf-8")
    return "spark: SparkSession" in text or 'usefixtures("spark")' in text


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:  # noqa: ARG001
    """Return how many processes `-n auto` starts: one more than cores, since many tests wait for servers."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ModuleScheduling:
    """Tell pytest-xdist who does what."""
    return ModuleScheduling(config, log)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a session with Delta whose databases lie in a folder of this run."""
    from config.deployment import Config
    from jobs.runtime.session import spark_session

    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", LOCAL_SPARK)
    folder = tmp_path_factory.mktemp("spark")
    config = Config.model_validate(
        {
            "warehouse": str(folder / "warehouse"),
            "checkpoint": str(folder / "checkpoint"),
            "sources": [{"name": "none", "path": str(folder)}],
        }
    )
    session = spark_session(config, "tests")
    yield session
    session.stop()
