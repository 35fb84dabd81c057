"""Reads a spool with a real Tarantool: by its `xlog` module, or as the log from which a server recovers."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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


class SpoolContent(NamedTuple):
    """The number of rows in a spool's logs, texts about lsns out of order, and the tuples of the space `load`."""

    rows: int
    faults: list[str]
    tuples: list[Any]


def read_spool(server: Tarantool, spool: Path) -> SpoolContent:
    """Read a spool with `xlog.pairs`."""
    rows, faults, tuples = server.eval(READ, str(spool))
    return SpoolContent(int(rows), list(faults or []), list(tuples or []))


def tuples_of(server: Tarantool) -> list[Any]:
    """Return the tuples of a server's space `load`, in the order of their keys."""
    return list(server.eval("return {box.space.load:select()}")[0] or [])


@contextmanager
def recovered_server(spool: Path, directory: Path) -> Iterator[Tarantool]:
    """Run a server in a new directory with a copy of a spool, from which it recovers as from its own log."""
    directory.mkdir()
    for path in spool.glob("*.[sx]*"):
        shutil.copy(path, directory)
    with Tarantool(directory, cfg={"replication_anon": True, "read_only": True}) as server:
        yield server
