"""`aggregator prove` with real servers: equal tables pass, one changed byte is found, load causes no failure."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.prove import prove, servers_to_read
from observe.proof.space_proof import ProofLimits
from observe.report.facts import collect_facts
from schemas.errors import ConfigurationError
from tests.jobs.deployment import Deployment
from tests.live.server import Tarantool
from tests.soaked import partly_soaked
from warehouse.warehouse import Warehouse

pytestmark = pytest.mark.live

SECONDS = 120
CREATE = """
local s = box.schema.space.create('orders', {format = {{'id', 'unsigned'}, {'state', 'string'}, {'count', 'integer'}}})
s:create_index('pk')
local p = box.schema.space.create('pairs', {format = {{'x', 'number'}, {'y', 'string'}}})
p:create_index('pk', {parts = {{2, 'string'}, {1, 'number'}}})
"""
FILL = """
for i = 1, 3000 do box.space.orders:insert{i, 'state ' .. i, -i} end
for i = 1, 3000, 7 do box.space.orders:update(i, {{'+', 3, 70000}, {'=', 4, {i, 'more'}}}) end
for i = 1, 3000, 11 do box.space.orders:delete(i) end
for i = 1, 700 do box.space.pairs:replace{i / 2, 'y' .. i % 5, i} end
"""
CHANGE_A_BYTE = """
local ffi = require('ffi')
local id, to = ...
local tuple = box.space.orders:get(id)
local memory, name = ffi.cast('char *', tuple), tuple[2]
for at = 0, 200 do
    if ffi.string(memory + at, #name) == name then
        ffi.copy(memory + at, to, #to)
        return box.space.orders:get(id).state
    end
end
error('the name is not found')
"""
"""Changes a tuple in the server's memory: no log has it."""


def proven(
    deployment: Deployment,
    *servers: Tarantool,
    spaces: tuple[str, ...] = (),
    rate: float | None = None,
    by_checksums: bool = False,
) -> int:
    config = deployment.config()
    peers = servers_to_read(config, [f"unix/:{server.socket}" for server in servers])
    return prove(config, spaces, peers, ProofLimits(rate, 30, by_checksums), as_json=True)


def parsed_output(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return {one["table"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}


def test_equal_tables_are_proven(
    tmp_path: Path, tarantool: Tarantool, capsys: pytest.CaptureFixture[str]
) -> None:
    tarantool.eval(CREATE + FILL)
    deployment = Deployment(tmp_path, {"a1": tarantool.directory})
    deployment.write()
    assert proven(deployment, tarantool) == 0
    found = parsed_output(capsys)
    assert {table: one["rows"] for table, one in found.items()} == {"orders": 2727, "pairs": 700}
    assert all(one["holds"] and not one["looked_again"] for one in found.values())
    stored = deployment.rows("_validations", ["table", "holds", "rows", "unexpected"])
    assert sorted(row["rows"] for row in stored) == [700, 2727]
    assert all(row["holds"] and row["unexpected"] == 0 for row in stored)
    assert proven(deployment, tarantool, spaces=("pairs",)) == 0
    assert list(parsed_output(capsys)) == ["pairs"]
    assert proven(deployment, tarantool, by_checksums=True) == 0
    assert not any(one["looked_again"] for one in parsed_output(capsys).values())
    with pytest.raises(ConfigurationError, match="no table of nothing"):
        proven(deployment, tarantool, spaces=("nothing",))


@pytest.mark.parametrize(("rows", "skipped"), [(100, False), (3000, True)], ids=["one page", "many pages"])
def test_a_space_with_a_hash_index_is_compared_by_the_keys_of_the_tables(
    tmp_path: Path, tarantool: Tarantool, capsys: pytest.CaptureFixture[str], rows: int, skipped: bool
) -> None:
    tarantool.eval(
        f"""local s = box.schema.space.create('orders', {{format = {{{{'id', 'unsigned'}}, {{'state', 'string'}}}}}})
        s:create_index('pk', {{type = 'hash'}})
        for i = 1, {rows} do s:insert{{i, 'state ' .. i}} end"""
    )
    deployment = Deployment(tmp_path, {"a1": tarantool.directory})
    deployment.write()
    assert proven(deployment, tarantool) == 0
    found = parsed_output(capsys)["orders"]
    assert (found["rows"], found["error"], found["holds"]) == (rows, None, True)
    assert (found["skipped"] is not None) == skipped
    assert not skipped or "keys that only the server has" in found["skipped"]
    stored = deployment.rows("_validations", ["holds", "rows", "error"])
    assert stored == [{"holds": True, "rows": rows, "error": None}]
    assert tarantool.eval(CHANGE_A_BYTE, 12, "state 1Z")
    assert proven(deployment, tarantool) == 1
    assert [one["key"] for one in parsed_output(capsys)["orders"]["differences"]] == ["[12]"]


@pytest.mark.parametrize("by_checksums", [False, True])
def test_one_changed_byte_is_named_with_both_tuples(
    tmp_path: Path,
    tarantool: Tarantool,
    capsys: pytest.CaptureFixture[str],
    by_checksums: bool,
) -> None:
    tarantool.eval(CREATE + FILL)
    deployment = Deployment(tmp_path, {"a1": tarantool.directory})
    deployment.write()
    assert tarantool.eval(CHANGE_A_BYTE, 1234, "state 1284") == "state 1284"
    assert proven(deployment, tarantool, by_checksums=by_checksums) == 1
    found = parsed_output(capsys)
    assert found["pairs"]["holds"]
    assert not found["orders"]["holds"]
    assert found["orders"]["differences"] == [
        {
            "key": "[1234]",
            "server": "[1234, 'state 1284', -1234]",
            "tables": "[1234, 'state 1234', -1234]",
        }
    ]
    stored = {row["table"]: row for row in deployment.rows("_validations")}
    assert (stored["orders"]["holds"], stored["orders"]["unexpected"]) == (False, 1)
    assert "state 1284" in stored["orders"]["examples"]
    config = deployment.config()
    page = collect_facts(Warehouse(None, config.warehouse, config.database)).rows("validations")
    assert [(row["table"], row["holds"]) for row in page] == [("orders", False), ("pairs", True)]


def test_tables_that_are_behind_are_not_reported_as_different(
    tmp_path: Path, tarantool: Tarantool, capsys: pytest.CaptureFixture[str]
) -> None:
    tarantool.eval(CREATE + FILL)
    deployment = Deployment(tmp_path, {"a1": tarantool.directory})
    deployment.write()
    tarantool.eval(
        "box.space.orders:replace{5, 'later', 1} box.space.orders:delete{6} box.space.orders:insert{0, '', 0}"
    )
    config = deployment.config()
    peers = servers_to_read(config, [f"unix/:{tarantool.socket}"])
    assert prove(config, (), peers, ProofLimits(None, 1), as_json=True) == 1
    found = parsed_output(capsys)["orders"]
    assert found["differences"] == []
    assert found["looked_again"] == 3
    assert "do not reach the vclock" in found["error"]
    deployment.write()
    assert proven(deployment, tarantool) == 0


def test_each_replicaset_is_compared_with_its_own_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Tarantool(tmp_path / "a") as a, Tarantool(tmp_path / "b") as b:
        for server, sign in ((a, "a"), (b, "b")):
            server.eval(CREATE)
            server.eval(f"for i = 1, 300 do box.space.orders:insert{{i, '{sign}' .. i, i}} end")
        a.eval("for i = 1, 300, 3 do box.space.orders:replace{i, 'newer', i} end box.space.orders:delete{2}")
        b.eval("box.space.orders:delete{4} for i = 301, 320 do box.space.orders:insert{i, 'b', i} end")
        deployment = Deployment(tmp_path / "deployment", {"a1": a.directory, "b1": b.directory})
        deployment.write()
        assert proven(deployment, a, b) == 0
        rows = [one["rows"] for one in map(json.loads, capsys.readouterr().out.splitlines())]
        assert rows == [299, 0, 319, 0]
        b.eval(CHANGE_A_BYTE, 7, "c7")
        assert proven(deployment, a, b) == 1


@pytest.fixture
def running(tmp_path: Path, tarantool: Tarantool) -> Iterator[Deployment]:
    """Yield a deployment whose writer follows a server during the test."""
    tarantool.eval(CREATE + FILL)
    found = Deployment(tmp_path, {"a1": tarantool.directory})
    found.write()
    stopped = threading.Event()

    def follow() -> None:
        while not stopped.wait(0.5):
            found.write()

    thread = threading.Thread(target=follow)
    thread.start()
    yield found
    stopped.set()
    thread.join(SECONDS)
    assert not thread.is_alive()


LOAD = """
stop_load = false
require('fiber').create(function()
    local s, random = box.space.orders, math.random
    while not stop_load do
        for _ = 1, 20 do
            local id = random(4000)
            local what = random(3)
            if what == 1 then s:replace{id, 'load' .. random(1e6), random(1e6)}
            elseif what == 2 then s:update(id, {{'+', 3, 1}})
            else s:delete(id) end
        end
        require('fiber').sleep(0.02)
    end
end)
"""


@pytest.mark.parametrize("rounds", partly_soaked([1], [3]))
def test_under_load_only_a_changed_byte_is_found(
    running: Deployment, tarantool: Tarantool, capsys: pytest.CaptureFixture[str], rounds: int
) -> None:
    tarantool.eval("box.space.orders:replace{5001, 'calm', 1}")
    tarantool.eval(LOAD)
    for _ in range(rounds):
        assert proven(running, tarantool, rate=2000) == 0
        found = parsed_output(capsys)["orders"]
        assert found["differences"] == []
        assert found["rows"] > 1000
    assert found["looked_again"] > 0
    tarantool.eval(CHANGE_A_BYTE, 5001, "balm")
    assert proven(running, tarantool) == 1
    tarantool.eval("stop_load = true")
    assert [one["key"] for one in parsed_output(capsys)["orders"]["differences"]] == ["[5001]"]
