"""An epoch that the warehouse rolled back, its versions still there: rows restore subscribers, none restarts."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.live.server import Tarantool
from tests.pipeline.replication_out.world import World, vclock_of

pytestmark = pytest.mark.live


def opened(root: Path, table: str) -> DeltaTable:
    return DeltaTable(str(root / "warehouse" / "aggregator.db" / table))


def balance(subscriber: Tarantool, key: int) -> object:
    return subscriber.eval("local t = box.space.accounts:get(...) return t and t[3]", key)


@pytest.mark.parametrize("vectors", ["never", "always"])
def test_subscribers_are_led_back(two: World, binary: str, tmp_path: Path, vectors: str) -> None:
    two.deployment.settings["deletion_vectors"] = vectors
    before = two.deployment.table("accounts")
    with two.writing() as writer, two.serving() as relay:
        writer.advance()
        with two.subscriber(binary) as subscriber:
            two.await_epoch(subscriber, writer)
            snapshots = sorted(path.name for path in two.directory.glob("*.snap"))
            versions = {table: opened(tmp_path, table).version() for table in ("_epochs", "accounts")}
            two.eval("a", "box.space.accounts:delete(2) box.space.accounts:insert{500, 'new', 5}")
            two.eval("a", "box.space.accounts:update(3, {{'=', 3, 33}})")
            two.settle()
            writer.advance()
            two.await_epoch(subscriber, writer)
            assert (balance(subscriber, 3), balance(subscriber, 2), balance(subscriber, 500)) == (33, None, 5)
            vclock = vclock_of(subscriber)
            for table, version in versions.items():  # as the owner of the warehouse may do
                opened(tmp_path, table).restore(version)
            assert two.deployment.table("accounts") == before
            assert writer.advance()
            two.await_epoch(subscriber, writer)
            two.check(subscriber, "accounts")
            assert (balance(subscriber, 3), balance(subscriber, 2), balance(subscriber, 500)) == (3, 2, None)
            # The same stream, further on: what was settled before stays in the vclock.
            assert all(vclock_of(subscriber)[i] >= lsn for i, lsn in vclock.items())
            assert sorted(path.name for path in two.directory.glob("*.snap")) == snapshots
            assert sum(session.subscriber is not None for session in relay.sessions) == 1
