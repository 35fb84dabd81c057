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

# A JVM of a test lives for a minute: the second compiler's work takes half of its processor time and never pays.
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_options, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


class ModuleScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process whole modules, and all that share the Spark session to one: a second Java costs seconds."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return "spark" if _uses_spark(self.config.rootpath / module) else module


@lru_cache
def _uses_spark(module: Path) -> bool:
    """Whether a module's tests run in the shared session."""
    text = module.read_text(encoding="utf-8")
    return "spark: SparkSession" in text or 'usefixtures("spark")' in text


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
