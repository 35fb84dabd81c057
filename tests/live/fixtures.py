"""Fixtures with a real Tarantool; tests that need one are skipped if there is none."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.replicaset import Servers, two_masters
from tests.live.server import Tarantool, find_tarantool, release_here

REASON = "no tarantool on PATH (apt-get install tarantool)"
REASON_2_6 = "compares with rules of Tarantool 2.6"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `live` without a tarantool, and tests marked `of_2_6` with another version."""
    for item in items:
        if item.get_closest_marker("live") and find_tarantool() is None:
            item.add_marker(pytest.mark.skip(reason=REASON))
        if item.get_closest_marker("of_2_6") and release_here() != (2, 6):
            item.add_marker(pytest.mark.skip(reason=REASON_2_6))


@pytest.fixture
def tarantool(tmp_path: Path) -> Iterator[Tarantool]:
    """Yield a master for one test; its files are in `tarantool.directory`."""
    yield from _running_server(tmp_path / "tarantool")


@pytest.fixture(scope="session")
def tarantool_oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tarantool]:
    """Yield one master for all tests that do not change it."""
    yield from _running_server(tmp_path_factory.mktemp("oracle"))


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Yield two masters that replicate each other; their files are in `tmp_path / "servers"`."""
    if find_tarantool() is None:
        pytest.skip(REASON)
    with two_masters(tmp_path / "servers") as found:
        yield found


def _running_server(directory: Path) -> Iterator[Tarantool]:
    if find_tarantool() is None:
        pytest.skip(REASON)
    with Tarantool(directory) as server:
        yield server
