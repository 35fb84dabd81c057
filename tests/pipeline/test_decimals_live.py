"""Decimals that real servers computed and logged: each is exact, rounded and named, or a misfit, and none is silent."""

from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.live.server import Tarantool, find_servers
from tests.pipeline.deployment import Deployment
from tests.udfs.tuples.test_decimals import rounded

pytestmark = pytest.mark.live

MAKE = """
local rows = ...
local decimal = require('decimal')
math.randomseed(#_TARANTOOL + rows + tonumber((_TARANTOOL:gsub("%D", ""):sub(1, 6))))
local space = box.schema.space.create('money', {
    format = {{'id', 'unsigned'}, {'text', 'string'}, {'value', 'decimal'}}})
space:create_index('pk')
local function digits(count)
    local found = {tostring(math.random(1, 9))}
    for k = 2, count do found[k] = tostring(math.random(0, 9)) end
    return table.concat(found)
end
local function made(k)
    local one = decimal.new(math.random(1, 1000000000)) / decimal.new(10 ^ math.random(0, 9))
    local other, how = decimal.new(math.random(1, 1000000)), k % 8
    if how == 0 then return one end
    if how == 1 then return one / other end
    if how == 2 then return one * one * one / other end
    if how == 3 then return -one - one / other end
    if how == 4 then return decimal.new(digits(math.random(1, 38)) .. 'e-' .. math.random(0, 37)) end
    if how == 5 then return decimal.new('-0.' .. digits(math.random(1, 38))) end
    if how == 6 then return decimal.new(digits(math.random(1, 20)) .. '.' .. digits(17) .. '5') end
    return one * one / other * one
end
local done, k = 0, 0
while done < rows do
    box.begin()
    for _ = 1, 50 do
        k = k + 1
        local ok, value = pcall(made, k)
        if ok then
            done = done + 1
            space:insert{done, tostring(value), value}
        end
    end
    box.commit()
    require('fiber').yield()
end
return done
"""


def outcomes(folder: Path, binary: str, rows: int) -> Counter[str]:
    """Compare a server's decimals with the table's, and return how many are exact, rounded and misfits."""
    with Tarantool(folder / "a1", cfg={"memtx_memory": 1 << 30}, binary=binary) as server:
        made = server.eval(MAKE, rows)
        deployment = Deployment(folder, {"a1": server.directory})
        deployment.run()
    path = str(folder / "warehouse" / "aggregator.db" / "money")
    names = ["text", "value", "_inexact", "_misfits"]
    table = DeltaTable(path).to_pyarrow_table(columns=names)
    assert table.num_rows == made
    found: Counter[str] = Counter()
    columns = (table[name].to_pylist() for name in names)
    for text, value, inexact, misfits in zip(*columns, strict=True):
        exact = Decimal(text)
        expected = rounded(exact, 18)
        assert value == expected, text
        assert misfits == (["value"] if expected is None else None), text
        assert inexact == (None if expected in (None, exact) else "value"), text
        found["misfit" if expected is None else "exact" if expected == exact else "rounded"] += 1
    return found


@pytest.mark.parametrize("binary", find_servers()[:1], ids=lambda path: Path(path).name)
def test_no_decimal_of_a_server_is_silently_changed(tmp_path: Path, binary: str) -> None:
    found = outcomes(tmp_path, binary, 2000)
    assert min(found[one] for one in ("exact", "rounded", "misfit")) > 10


@pytest.mark.soak
@pytest.mark.parametrize("binary", find_servers(), ids=lambda path: Path(path).name)
def test_of_a_million_decimals_of_servers_none_is_silently_changed(tmp_path: Path, binary: str) -> None:
    found = outcomes(tmp_path, binary, 340_000)
    print(binary, dict(found))
    assert found.total() >= 340_000
