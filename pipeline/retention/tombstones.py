"""Deleted keys of `_versions` that are older than their lifetime and that no later row can need.

A deletion takes part in the choice against versions of other replicasets (`deletes: all`), now or under a policy that
somebody tries later. So a key goes as a whole, and only where

- no replicaset has a tuple of it, nor one that is not known;
- every replicaset was read beyond the deletion by the lifetime of tombstones, so that no row that may come is older, or
  nearly as old that clocks could hide it;
- its policy lets the later of two versions win, or does not ask deletions at all. Under others a deletion may win
  against any later row, and stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from config.deployment import Config
from config.policies import Policy
from pipeline.plan.tables import current_plan
from pipeline.reduce.base import BaseRequest
from pipeline.reduce.versions import MERGED, NAMES, times_of
from pipeline.retention.removal import Removal, columns_of, removal_of
from pipeline.state import State
from pipeline.write.lookup import VERSIONS, BaseFiles, FileCache, find_versions
from schemas.errors import UnsupportedError
from schemas.names import table_of_exact_tuples
from schemas.policies import LAST_WRITE_WINS
from udfs.buffers import as_array
from udfs.keys.grouping import group
from udfs.versions.kernels.lives import DELETED, NO_TIME, NONE, PRESENT, UNFIT
from warehouse.commits import OpenTables, TableFile
from warehouse.data_files import opened, read_groups

KEYS_AT_ONCE = 200_000
"""So many keys are looked up at a time."""

_COLUMNS = ("space", "key", "state", "timestamp", "epoch")


@dataclass(frozen=True)
class TombstoneLimits:
    """Up to which epoch, and before which time of the log, a deletion must lie to go."""

    epoch: int
    time: datetime


def tombstone_removal(
    tables: OpenTables, state: State, config: Config, limits: TombstoneLimits
) -> tuple[Removal, list[str]]:
    """Return which entries of `_versions` go, and what stays although its time is over.

    Parameters
    ----------
    tables : OpenTables
    state : State
    config : Config
        With the policies that are in force.
    limits : TombstoneLimits

    """
    files = tables.files(VERSIONS)
    gone = [
        np.zeros(file.rows if file.rows is not None else _count(tables, file), np.bool_) for file in files
    ]
    held, cache = [], FileCache()
    for space in _spaces(tables, files):
        entries = _entries_of(tables, files, space)
        dead = _dead(tables, state, files, space, entries, limits, cache)
        if dead.any() and not _may_forget(state, config, space):
            held.append(f"deleted keys of {space} stay: its policy may prefer a deletion to any later row")
            continue
        numbers, places = entries["file"].to_numpy()[dead], entries["place"].to_numpy()[dead]
        for number in np.unique(numbers):
            gone[number][places[numbers == number]] = True
    return removal_of(VERSIONS, zip(files, (pa.array(one) for one in gone), strict=True)), held


def _count(tables: OpenTables, file: TableFile) -> int:
    with opened(tables.place, VERSIONS, file.path) as parquet:
        return int(parquet.metadata.num_rows)


def _spaces(tables: OpenTables, files: Sequence[TableFile]) -> list[str]:
    """Return the spaces whose `_versions` entries include deletions."""
    found: set[str] = set()
    for file in files:
        rows = columns_of(tables, VERSIONS, file, ["space", "state"])
        absent = pc.is_in(rows["state"], pa.array([NAMES[DELETED], NAMES[NONE]]))
        found.update(pc.unique(rows["space"].filter(absent)).to_pylist())
    return sorted(found)


def _entries_of(tables: OpenTables, files: Sequence[TableFile], space: str) -> pa.Table:
    """Return the entries of a space, each with the number of its file and its place there."""
    parts = [part for number, file in enumerate(files) for part in _entries_in(tables, file, number, space)]
    return pa.concat_tables(parts).combine_chunks()


def _entries_in(tables: OpenTables, file: TableFile, number: int, space: str) -> Iterator[pa.Table]:
    with opened(tables.place, VERSIONS, file.path) as parquet:
        column, start = parquet.metadata.schema.names.index("space"), 0
        for place in range(parquet.num_row_groups):
            about = parquet.metadata.row_group(place)
            known = about.column(column).statistics
            if known is None or not known.has_min_max or known.min <= space <= known.max:
                rows = read_groups(parquet, [place], _COLUMNS)
                own = pc.indices_nonzero(pc.equal(rows["space"], space)).cast(pa.int64())
                found = rows.take(own).drop_columns(["space"])
                found = found.append_column("file", pa.repeat(pa.scalar(number, pa.int32()), len(own)))
                yield found.append_column("place", pc.add(own, start))
            start += about.num_rows


def _dead(
    tables: OpenTables,
    state: State,
    files: Sequence[TableFile],
    space: str,
    entries: pa.Table,
    limits: TombstoneLimits,
    cache: FileCache,
) -> NDArray[np.bool_]:
    """Return which entries are of keys that are deleted everywhere, long enough ago."""
    keys = as_array(entries["key"])
    groups = group(np.zeros(len(keys), np.int32), keys)
    codes = as_array(entries["state"]).dictionary_encode()
    names = codes.dictionary.to_pylist()
    numbers = codes.indices.to_numpy(zero_copy_only=False)
    is_deleted = np.array([name == NAMES[DELETED] for name in names], np.bool_)[numbers]
    is_absent = is_deleted | np.array([name == NAMES[NONE] for name in names], np.bool_)[numbers]
    times = times_of(entries["timestamp"])
    before = int(limits.time.timestamp() * 1_000_000)
    is_young = entries["epoch"].to_numpy() > limits.epoch
    is_young |= is_deleted & ((times >= before) | (times == NO_TIME))
    may_go = np.zeros(len(groups), np.bool_)
    may_go[groups.ids[is_absent]] = True
    may_go[groups.ids[is_young]] = False
    chosen = np.flatnonzero(may_go)
    name = table_of_exact_tuples(state.versions, space)
    own = (name, tables.files(name)) if name in state.versions else ("", ())
    base = BaseFiles(tables.place, {0: own}, files, (space,))
    for begin in range(0, len(chosen), KEYS_AT_ONCE):
        some = keys.take(pa.array(groups.firsts[chosen[begin : begin + KEYS_AT_ONCE]]))
        found = find_versions([BaseRequest(0, some, {}, False, True)], base, cache).entries
        lives = np.isin(found["state"].to_numpy(), (PRESENT, UNFIT, MERGED))
        alive = groups.find(np.zeros(found.num_rows, np.int32), as_array(found["key"]))
        may_go[alive[lives & (alive >= 0)]] = False
    return may_go[groups.ids]


def _may_forget(state: State, config: Config, table: str) -> bool:
    """Whether no policy of a table's spaces may prefer a deletion to a row that is later."""
    try:
        plan = current_plan(state, config, table)
    except UnsupportedError:
        plan = None
    policies = config.policies
    if plan is not None:
        return _lets_later_win(plan.policy)
    # No replicaset defines it any more: it may come back as any of the spaces.
    return all(map(_lets_later_win, (policies.default, *map(policies.of, policies.spaces))))


def _lets_later_win(policy: Policy) -> bool:
    by_time = policy.policy == LAST_WRITE_WINS and not policy.sequence
    return policy.deletes == "own" or by_time
