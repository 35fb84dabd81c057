"""The job follows a server that writes: rows appear, rotation is followed, a killed server continues."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.aggregate import aggregate
from tests.jobs.deployment import Deployment
from tests.live import Tarantool

pytestmark = [pytest.mark.spark, pytest.mark.live, pytest.mark.soak]

SECONDS = 120
CREATE = """
box.schema.space.create('orders', {format = {{'id', 'unsigned'}, {'state', 'string'}, {'count', 'integer'}}})
box.space.orders:create_index('pk')
"""


def become(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.1)


@pytest.fixture
def deployment(tmp_path: Path, spark: SparkSession, tarantool: Tarantool) -> Iterator[Deployment]:
    """Yield a deployment whose job follows a server during the test."""
    tarantool.eval(CREATE)
    found = Deployment(tmp_path, {"a1": tarantool.directory}, trigger="1 second")
    failures: list[BaseException] = []

    def work() -> None:
        try:
            aggregate(found.config())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    yield found
    become(lambda: bool(spark.streams.active) or bool(failures))
    for query in spark.streams.active:
        query.stop()
    thread.join(SECONDS)
    assert not failures
    assert not thread.is_alive()


def test_what_a_server_writes_appears(deployment: Deployment, tarantool: Tarantool) -> None:
    def same() -> bool:
        return bool(deployment.fields("orders") == tarantool.eval("return box.space.orders:select()"))

    tarantool.eval("for i = 1, 50 do box.space.orders:insert{i, 'new', 0} end")
    become(same)
    tarantool.eval("""
        for i = 1, 50, 3 do box.space.orders:delete(i) end
        for i = 2, 50, 3 do box.space.orders:update(i, {{'+', 3, i}, {'=', 2, 'paid'}}) end
        for i = 40, 60 do box.space.orders:upsert({i, 'upserted', 1}, {{'+', 3, 100}}) end
    """)
    become(same)
    tarantool.eval("box.snapshot(); box.space.orders:replace{1, 'after the checkpoint', -1}")
    become(same)
    tarantool.kill()
    tarantool.start()
    tarantool.eval("box.begin() for i = 100, 120 do box.space.orders:insert{i, 'again', 1} end box.commit()")
    become(same)
    assert not deployment.rows("_gaps")
    assert len(deployment.fields("orders")) > 50
