"""An epoch that the warehouse has taken back, its versions still there: rows lead followers back, none begins again."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.live.server import Tarantool
from tests.pipeline.node.world import World, vclock_of

pytestmark = pytest.mark.live


def restore(root: Path, table: str, version: int) -> None:
    """Restore a table of the warehouse to an older version, as its owner may."""
    DeltaTable(str(root / "warehouse" / "aggregator.db" / table)).restore(version)


def balance(follower: Tarantool, key: int) -> object:
    return follower.eval("local t = box.space.accounts:get(...) return t and t[3]", key)


def test_followers_are_led_back(two: World, binary: str, tmp_path: Path) -> None:
    before = two.deployment.table("accounts")
    with two.writing() as writer, two.serving() as relay:
        writer.advance()
        with two.follower(binary) as follower:
            two.await_epoch(follower, writer)
            snapshots = sorted(path.name for path in two.directory.glob("*.snap"))
            two.eval("a", "box.space.accounts:delete(2) box.space.accounts:insert{500, 'new', 5}")
            two.eval("a", "box.space.accounts:update(3, {{'=', 3, 33}})")
            two.settle()
            writer.advance()
            two.await_epoch(follower, writer)
            assert (balance(follower, 3), balance(follower, 2), balance(follower, 500)) == (33, None, 5)
            vclock = vclock_of(follower)
            restore(tmp_path, "_epochs", 1)
            restore(tmp_path, "accounts", 1)
            assert two.deployment.table("accounts") == before
            assert writer.advance()
            two.await_epoch(follower, writer)
            two.check(follower, "accounts")
            assert (balance(follower, 3), balance(follower, 2), balance(follower, 500)) == (3, 2, None)
            # The same stream, further on: what was settled before stays in the vclock.
            assert all(vclock_of(follower)[i] >= lsn for i, lsn in vclock.items())
            assert sorted(path.name for path in two.directory.glob("*.snap")) == snapshots
            assert sum(session.subscriber is not None for session in relay.sessions) == 1
