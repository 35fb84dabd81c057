"""What tests of the node share: a server that can follow, and a world to follow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.server import find_servers, version_of
from tests.pipeline.replication_out.world import World, world
from udfs.operations.update_rules import release_of

OLDEST = (2, 11)


def subscribers() -> list[str]:
    """Return the servers here that can follow."""
    return [binary for binary in find_servers() if release_of(version_of(binary))[:2] >= OLDEST]


@pytest.fixture(params=subscribers() or [""], ids=lambda binary: Path(binary).name)
def binary(request: pytest.FixtureRequest) -> str:
    """Return a server that can follow."""
    if not request.param:
        pytest.skip("TARANTOOL names no server of 2.11 or newer")
    return str(request.param)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as found:
        found.eval("a", "for i = 1, 20 do box.space.accounts:insert{i, 'a' .. i, i} end")
        found.eval("b", "for i = 10, 30 do box.space.accounts:insert{i, 'b' .. i, i} end")
        found.settle()
        yield found
