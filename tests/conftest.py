"""What tests of every folder share: one Spark session, made as the jobs make theirs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if not hasattr(sys.modules["__main__"], "__file__"):
    # PySpark takes a main module without a file, as pytest-xdist's processes have, for a run of doctests, and exits.
    sys.modules["__main__"].__file__ = __file__

pytest_plugins = ("tests.live.fixtures",)

LOCAL_SPARK = "--master local[2] --conf spark.ui.enabled=false pyspark-shell"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a session with Delta whose databases lie in a folder of this run."""
    from config.deployment import Config
    from jobs.session import spark_session

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
