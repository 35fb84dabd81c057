"""What tests of the pipeline share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pipeline.batch import MakeDistributed
from pipeline.executors.distributed import DistributedExecutor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["local", pytest.param("distributed", marks=pytest.mark.soak)])
def executor(request: pytest.FixtureRequest) -> Iterator[MakeDistributed | None]:
    """Yield what makes the executor of a deployment: the local one, in soaks the distributed one too."""
    if request.param == "local":
        yield None
        return
    spark: SparkSession = request.getfixturevalue("spark")
    yield partial(DistributedExecutor, spark)
