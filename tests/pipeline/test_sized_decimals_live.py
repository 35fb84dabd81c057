"""Real servers of 3.9: fields and keys of the types `decimal32` to `decimal256`, tuple by tuple."""

from pathlib import Path

import pytest

from tests.live.server import Tarantool, find_servers, version_of
from tests.pipeline.deployment import Deployment

SERVERS = [path for path in find_servers() if tuple(map(int, version_of(path).split(".")[:2])) >= (3, 9)]

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not SERVERS, reason="no tarantool of 3.9 or later in TARANTOOL"),
]

WORK = """
    local decimal, msgpack, held = require('decimal'), require('msgpack'), {}
    for _, engine in ipairs{'memtx', 'vinyl'} do
        for _, kind in ipairs{'decimal32', 'decimal64', 'decimal128', 'decimal256'} do
            local name = engine .. '_' .. kind
            local space = box.schema.space.create(name, {engine = engine, format = {
                {name = 'id', type = kind, scale = 2}, {name = 'v', type = kind, scale = 2, is_nullable = true},
            }})
            space:create_index('pk', {parts = {{'id'}}})
            for k = 1, 6 do
                space:replace{decimal.new(k) / 4 * 2, decimal.new('12.25')}
                space:update(decimal.new(k) / 2, {{'+', 2, decimal.new('0.5')}})
                pcall(space.upsert, space, {decimal.new(k) / 2}, {{'+', 2, decimal.new('0.125')}})
                pcall(space.upsert, space, {decimal.new(k) / 2}, {{'=', 2, decimal.new('1234567890')}})
                pcall(space.upsert, space, {decimal.new(k) / 2}, {{'+', 2, 1}})
            end
            space:delete{decimal.new('1.50')}
            local tuples = {}
            for _, tuple in space:pairs() do table.insert(tuples, (msgpack.encode(tuple):hex())) end
            held[name] = tuples
        end
    end
    return held
"""


@pytest.mark.parametrize("binary", SERVERS, ids=lambda path: Path(path).name)
@pytest.mark.parametrize("start", ["logs", "snapshot"])
def test_sized_decimals_are_decimals(tmp_path: Path, binary: str, start: str) -> None:
    with Tarantool(tmp_path / "a1", cfg={"checkpoint_interval": 0}, binary=binary) as server:
        held = server.eval(WORK)
        if start == "snapshot":
            server.eval("box.snapshot()")
        deployment = Deployment(tmp_path, {"a1": server.directory}, start=start)
        deployment.run()
    assert {space: [one.hex() for one in deployment.tuples(space)] for space in held} == {
        space: sorted(tuples) for space, tuples in held.items()
    }
    assert deployment.rows("_quarantine") == []
