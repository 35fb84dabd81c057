"""Checks a spool with a real Tarantool: read by its `xlog` module, or recovered as the server's own log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live.server import Tarantool

READ = """
    local fio, xlog = require('fio'), require('xlog')
    local last, tuples, rows, faults = {}, {}, 0, {}
    local names = fio.glob(fio.pathjoin(..., '*.snap'))
    table.sort(names)
    local logs = fio.glob(fio.pathjoin(..., '*.xlog'))
    table.sort(logs)
    local function read(name, is_log)
        for _, row in xlog.pairs(name) do
            local h, b = row.HEADER, row.BODY
            if is_log then
                rows = rows + 1
                local before = last[h.replica_id]
                if before ~= nil and h.lsn ~= before + 1 then
                    table.insert(faults, string.format('%s: %d after %d of %d', name, h.lsn, before, h.replica_id))
                end
                last[h.replica_id] = h.lsn
            end
            if b ~= nil and b.space_id == 512 then
                if h.type == 'DELETE' then tuples[b.key[1]] = nil
                elseif h.type == 'INSERT' or h.type == 'REPLACE' then tuples[b.tuple[1]] = b.tuple
                else table.insert(faults, 'unexpected ' .. h.type) end
            end
        end
    end
    if #names > 0 then read(names[#names], false) end
    for _, name in ipairs(logs) do
        local first = #names > 0 and fio.basename(names[#names], '.snap') or ''
        if fio.basename(name, '.xlog') >= first then read(name, true) end
    end
    local result = {}
    for _, tuple in pairs(tuples) do table.insert(result, tuple) end
    table.sort(result, function(a, b) return a[1] < b[1] end)
    return {rows, faults, result}
"""


def read_spool(server: Tarantool, spool: Path) -> tuple[int, list[str], list[Any]]:
    """Return (rows of the logs, lsns out of their order, tuples of the space `load`) as `xlog.pairs` reads them."""
    rows, faults, tuples = server.eval(READ, str(spool))
    return int(rows), list(faults or []), list(tuples or [])


def tuples_of(server: Tarantool) -> list[Any]:
    """Return the tuples of the space `load`, by key."""
    return list(server.eval("return {box.space.load:select()}")[0] or [])


@contextmanager
def recovered(spool: Path, into: Path) -> Iterator[Tarantool]:
    """Run a server on a copy of a spool: it recovers from the files as from its own log."""
    into.mkdir()
    for path in spool.glob("*.[sx]*"):
        shutil.copy(path, into)
    with Tarantool(into, cfg={"replication_anon": True, "read_only": True}) as server:
        yield server
