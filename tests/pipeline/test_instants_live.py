"""Recovery points that real servers make while they are written to: what each epoch at one holds."""

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgpack
import pytest
from deltalake import DeltaTable

from sources.subscribe.options import FeedMode
from tests.live.server import Tarantool, find_servers
from tests.pipeline.deployment import Deployment
from tests.sources.subscribe.following import await_until, following, has, options
from udfs.operations.update_rules import release_of

pytestmark = pytest.mark.live

CREATE = (
    "box.schema.space.create('accounts'):create_index('p') box.schema.space.create('noise'):create_index('p')"
)
FILL = "for i = 1, 5 do box.space.accounts:insert{... * 100 + i, 100} end"
BURST = """
    local label, from = ...
    local fiber = require('fiber')
    local fibers = {}
    local function start(f)
        local one = fiber.new(f)
        one:set_joinable(true)
        table.insert(fibers, one)
    end
    for i = 1, 20 do start(function() box.space.noise:replace{from + i} end) end
    start(function()
        box.backup.recovery_point.create({label = label})
    end)
    for i = 21, 40 do start(function() box.space.noise:replace{from + i} end) end
    for _, one in ipairs(fibers) do one:join() end
"""
"""Rows in front of a point and behind it that one write brings to the disk: they share a block of the log."""


def binary() -> str:
    for one in find_servers():
        said = subprocess.run([one, "--version"], capture_output=True, text=True, check=True).stdout
        if release_of(said.split()[1]) >= (3, 8, 0):
            return one
    pytest.skip("TARANTOOL names no server of 3.8 or later, which has recovery points")


LABELS = [f"p{number}" for number in range(1, 6)]


def transfer(servers: Sequence[Tarantool], dice: random.Random) -> None:
    """Move money from one server to the other, a few times."""
    for _ in range(dice.randrange(1, 6)):
        amount = dice.randrange(50)
        for number, sign in ((1, -amount), (2, amount)):
            key = 100 * number + dice.randrange(1, 6)
            servers[number - 1].eval("box.space.accounts:update(..., {{'+', 2, select(2, ...)}})", key, sign)


def fill(servers: Sequence[Tarantool]) -> None:
    for number, server in enumerate(servers, start=1):
        server.eval(CREATE)
        server.eval(FILL, number)


def check(deployment: Deployment) -> None:
    """Compare the tables at each label with what was in front of the point."""
    rows = sorted(deployment.rows("_epochs"), key=lambda row: int(row["epoch"]))
    versions = {row["instant"]: dict(row["versions"]) for row in rows if row["instant"] is not None}
    assert list(versions) == LABELS
    for index, label in enumerate(LABELS, start=1):
        root = deployment.folder / "warehouse" / "aggregator.db"
        tables = {
            name: DeltaTable(str(root / name), version=versions[label][name])
            .to_pyarrow_table()["_tuple"]
            .to_pylist()
            for name in ("accounts", "noise")
        }
        assert sum(msgpack.unpackb(row)[1] for row in tables["accounts"]) == 1000
        # Both servers have each key, of which one version is the row.
        noise = {msgpack.unpackb(row)[0] - 1000 * index for row in tables["noise"]}
        assert {number for number in noise if number > 0} == set(range(1, 21))


@pytest.mark.parametrize("budget", [None, 1, 2000])
def test_epochs_at_recovery_points(tmp_path: Path, budget: int | None) -> None:
    program, dice = binary(), random.Random(1)
    paths = {name: tmp_path / name for name in ("a1", "b1")}
    with (
        Tarantool(paths["a1"], binary=program) as one,
        Tarantool(paths["b1"], binary=program) as other,
    ):
        servers = (one, other)
        fill(servers)
        for index, label in enumerate(LABELS, start=1):
            transfer(servers, dice)
            for server in servers:
                server.eval(BURST, label, 1000 * index)
    deployment = Deployment(tmp_path, paths, instants={})
    deployment.run(budget)
    check(deployment)


@pytest.mark.parametrize("feed", [FeedMode.OWN_PEER, FeedMode.LEADER])
def test_epochs_at_recovery_points_of_spools(tmp_path: Path, feed: FeedMode) -> None:
    """Daemons follow the servers, and batches follow the spools, while the points are made."""
    program, dice = binary(), random.Random(2)
    sockets = {name: tmp_path / f"{name}.sock" for name in ("a1", "b1")}
    spools = {name: tmp_path / "spools" / name for name in sockets}
    with (
        Tarantool(tmp_path / "a1", socket=str(sockets["a1"]), binary=program) as one,
        Tarantool(tmp_path / "b1", socket=str(sockets["b1"]), binary=program) as other,
        following(options(spools["a1"], f"unix/:{sockets['a1']}", feed=feed)) as first,
        following(options(spools["b1"], f"unix/:{sockets['b1']}", feed=feed)) as second,
    ):
        servers = (one, other)
        fill(servers)
        for replicaset, server in ((first, one), (second, other)):
            await_until(has(replicaset, [server]), "the first rows")
        deployment = Deployment(tmp_path, spools, instants={}, start="snapshot")
        for index, label in enumerate(LABELS, start=1):
            transfer(servers, dice)
            for server in dice.sample(servers, 2):
                server.eval(BURST, label, 1000 * index)
                deployment.run(dice.choice((None, 500)))
        for replicaset, server in ((first, one), (second, other)):
            await_until(has(replicaset, [server]), "all rows")
    deployment.run()
    check(deployment)
