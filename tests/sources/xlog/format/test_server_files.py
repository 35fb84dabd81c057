"""Every file that real servers leave, loaded by itself: logs, snapshots, vinyl's runs and indexes."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from tests.live.server import Tarantool, find_servers
from tests.sources.xlog import files, plain

pytestmark = pytest.mark.live

SERVERS = find_servers() or [""]
SUFFIXES = ("xlog", "snap", "vylog", "run", "index")
WORK = """
    local m = box.schema.space.create('m')
    m:create_index('pk')
    local v = box.schema.space.create('v', {engine = 'vinyl'})
    v:create_index('pk', {page_size = 1024})
    v:create_index('sk', {parts = {{2, 'string'}}})
    for round = 1, 3 do
        for i = 1, 200 do
            m:replace({i, string.rep('x', i)})
            v:replace({i, string.format('%d of %d', i, round)})
        end
        v:upsert({1, 'u'}, {{'=', 2, 'one'}})
        v:delete({round})
        box.begin() v:delete({100 + round}) v:delete({110 + round}) box.commit()
        m:update(7, {{'=', 2, 'seven'}})
        box.snapshot()
    end
"""


IDLE = """
local fiber = require("fiber")
while box.stat.vinyl().scheduler.tasks_inprogress > 0 do fiber.sleep(0.01) end
"""
"""Waits for the end of compactions: a server that is stopped during one leaves runs without their indexes."""


@pytest.fixture(params=SERVERS, ids=lambda path: Path(path).name)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """Return the files of a server that has worked, stopped, started and worked no more."""
    if not request.param:
        pytest.skip("no tarantool on PATH, and TARANTOOL names none")
    directory = tmp_path / "server"
    cfg = {"checkpoint_count": 3, "vinyl_cache": 0}
    with Tarantool(directory, binary=request.param, cfg=cfg) as server:
        version = server.eval("return box.info.version")
        server.eval(WORK)
        server.eval(IDLE)
    with Tarantool(directory, binary=request.param, cfg=cfg) as server:
        server.eval("box.space.m:replace({0, version})".replace("version", repr(str(version))))
        server.eval("box.snapshot()")
        server.eval(IDLE)
    found = [path for suffix in SUFFIXES for path in sorted(directory.rglob(f"*.{suffix}"))]
    assert {path.suffix for path in found} == {f".{suffix}" for suffix in SUFFIXES}, version
    return found


def test_each_file_each_glob_and_the_list_of_all_are_their_rows(left: list[Path]) -> None:
    for path in left:
        assert files.positions(files.batch(str(path))) == files.expected([path]), path
    everything = [str(path) for path in left]
    assert files.positions(files.batch(everything, mode="PERMISSIVE")) == files.expected(left)
    root = left[0].parent
    pattern = f"{root}/{{*,*/*/*}}"
    own = [path for path in left if path.parent == root or path.suffix in (".run", ".index")]
    assert own == left
    found = files.stream(pattern, {"replicasets": {}, "version": 1}, maxBytesPerTrigger="20k")[0]
    assert files.positions(found) == files.expected(left)


def test_the_rows_of_each_type_are_named(left: list[Path]) -> None:
    types = {
        suffix: Counter(row["type"] for row in files.batch([str(path) for path in group]))
        for suffix, group in ((s, [p for p in left if p.suffix == f".{s}"]) for s in SUFFIXES)
    }
    runs, indexes = (sum(path.suffix == f".{suffix}" for path in left) for suffix in ("run", "index"))
    assert types["index"]["RUNINFO"] == indexes == runs
    assert types["run"]["ROWINDEX"] == types["index"]["PAGEINFO"] > runs
    assert set(types["vylog"]) == {"INSERT"}
    assert {"INSERT"} <= set(types["snap"]) <= {"INSERT", "RAFT", "RAFT_PROMOTE"}
    assert not [name for name in itertools.chain(*types.values()) if name.startswith("TYPE_")]


def test_a_log_without_rows_and_a_truncated_log(left: list[Path], tmp_path: Path) -> None:
    logs = [path for path in left if path.suffix == ".xlog"]
    for number, path in enumerate(logs):
        data = path.read_bytes()
        first = next((position for position, _ in plain.blocks_of(data)), None)
        empty = tmp_path / f"{number:020}.xlog"
        empty.write_bytes(data[: data.index(b"\n\n") + 2])
        assert files.batch(str(empty)) == []
        if first is not None:
            empty.write_bytes(data[: first + 25])
            assert files.batch(str(empty)) == [], "not written yet"
