"""Real servers: sums in fields whose type the format and the indexes declare differently, tuple by tuple."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.server import Tarantool, find_servers
from tests.pipeline.deployment import Deployment

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not find_servers(), reason="no tarantool on PATH: apt-get install tarantool"),
]

FIELD_TYPES = ["any", "scalar", "number", "double", "integer", "unsigned", "decimal"]

WORK = """
    local seed, types = ...
    local ffi, decimal, msgpack = require('ffi'), require('decimal'), require('msgpack')
    math.randomseed(seed)
    local function one_of(list) return list[math.random(#list)] end
    local numbers = {
        1, 3, -2, 1.5, 0.1, -0.25, 16777217, 3e38, 1e300, 0, 2^53, ffi.new('float', 0.1), ffi.new('double', 2),
        ffi.new('float', 3), decimal.new('1.5'), decimal.new('2'), 18446744073709551615ULL, -9223372036854775807LL,
    }
    local function index_of(space, name)
        local part = {field = 2, type = one_of(types), is_nullable = true}
        if math.random(4) == 1 then
            part.field, part.path = 3, one_of{'a', '[1]', '[*]', '["a"]', '[*].a'}
        end
        pcall(space.create_index, space, name, {unique = false, parts = {part}})
    end
    local held = {}
    for number = 1, 30 do
        local engine = one_of{'memtx', 'memtx', 'vinyl'}
        local space = box.schema.space.create('s' .. number, {engine = engine, format = {
            {'id', 'unsigned'}, {'v', one_of(types), is_nullable = true}, {'w', 'any', is_nullable = true},
        }})
        space:create_index('p')
        for step = 1, 60 do
            local key, chance = math.random(5), math.random(20)
            if chance <= 2 then
                index_of(space, 'i' .. math.random(3))
            elseif chance == 3 then
                local index = space.index['i' .. math.random(3)]
                if index ~= nil then index:drop() end
            elseif chance <= 9 then
                local inner = one_of{{a = one_of(numbers)}, {one_of(numbers), one_of(numbers)}, {{a = one_of(numbers)}}}
                pcall(space.replace, space, {key, one_of(numbers), inner})
            else
                local operations = {{one_of{'+', '-'}, 2, one_of(numbers)}}
                if math.random(2) == 1 then
                    operations = {{one_of{'+', '-'}, one_of{'w.a', 'w[1]', 'w[2]', 'w[1].a'}, one_of(numbers)}}
                end
                -- Vinyl logs an UPSERT that does not fit the format; such a row is set aside.
                if engine == 'memtx' and math.random(3) == 1 then
                    pcall(space.upsert, space, {key, one_of(numbers), {one_of(numbers)}}, {operations[1]})
                else
                    pcall(space.update, space, key, operations)
                end
            end
        end
        local tuples = {}
        for _, tuple in space:pairs() do table.insert(tuples, (msgpack.encode(tuple):hex())) end
        held[space.name] = tuples
    end
    return held
"""


@pytest.fixture(params=find_servers(), ids=lambda path: Path(path).name)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tarantool]:
    with Tarantool(tmp_path / "a1", cfg={"checkpoint_interval": 0}, binary=request.param) as found:
        yield found


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 30))])
def test_the_tables_have_the_servers_tuples(server: Tarantool, tmp_path: Path, seed: int) -> None:
    held = server.eval(WORK, seed, FIELD_TYPES)
    deployment = Deployment(tmp_path, {"a1": server.directory})
    deployment.run()
    wrong = {}
    for space, tuples in held.items():
        found = sorted(one.hex() for one in deployment.tuples(space))
        if found != sorted(tuples):
            wrong[space] = (found, tuples)
    assert wrong == {}
