"""Rebuilds a space's table under another policy: chooses again between the versions of all contended keys.

A row depends only on its key's versions, and these are all stored: in the table and in `_versions`. So no log is read,
and versions that lost under the old policy can win. The table changes in one commit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from config.deployment import Config
from config.policies import Policy
from pipeline.changelog.keyed_rows import KEY_ERRORS
from pipeline.commit.epoch import commit_epoch
from pipeline.encode.columns import TableEncoding, encoding_of
from pipeline.lookup.files import BaseFiles
from pipeline.lookup.key_search import KeySearch
from pipeline.lookup.lookup import find_versions
from pipeline.lookup.requests import BaseRequest
from pipeline.partition import PartitionResult, encode_result
from pipeline.plan.spaces.tables import TablePlan, current_table_plan, field_suggestion, unknown_fields
from pipeline.resolve.resolve import resolve_again
from pipeline.resolve.resolve_plan import build_resolve_plan, table_policy
from pipeline.state import State, TableWriters
from pipeline.write.changes import TableChanges, write_exact, write_masked
from pipeline.write.prepare import PreparedTables, commit_table_write, prepare_table, rewrite_masked
from pipeline.write.system_rows import append_table
from pipeline.write.vector_rule import NO_VECTORS
from schemas.errors import UnsupportedError
from schemas.names import table_of_exact_tuples
from udfs.keys.grouping import group
from warehouse.delta.commits import OpenTables
from warehouse.delta.table_files import TableFile, read_file

MAX_EXAMPLES = 10
"""The maximum number of changed keys that a rebuild lists."""
KEYS_AT_ONCE = 200_000
"""The number of keys that are resolved at a time; their versions are in memory."""

Example = tuple[bytes, bytes | None, bytes | None]
"""(key, tuple before, tuple after); a tuple is None if the table has no row of the key."""


@dataclass
class Rebuild:
    """The changes of a space's table if another policy decides."""

    encoding: TableEncoding
    results: list[PartitionResult] = field(default_factory=list)
    """The changes, of up to `KEYS_AT_ONCE` keys each."""
    changed_keys: int = 0
    examples: list[Example] = field(default_factory=list)
    """Up to `MAX_EXAMPLES` of these keys."""


def table_to_rebuild(state: State, config: Config, space: str, policy: Policy) -> TablePlan:
    """Return the plan of a space's table.

    Raises:
        UnsupportedError: As in `plan_rebuild`.
    """
    table = config.spaces.table(space)
    found = current_table_plan(state, config, table)
    if found is None or table not in state.versions:
        raise UnsupportedError(
            "the space has no table to rebuild",
            space=space,
            advice="look for it in _schema: table_name, state",
        )
    for name in unknown_fields(policy, found.definitions):
        raise UnsupportedError(
            f"the policy names the field {name}, which no replicaset has",
            space=space,
            advice=field_suggestion(name, found.definitions),
        )
    return found


def plan_rebuild(
    tables: OpenTables,
    state: State,
    config: Config,
    space: str,
    policy: Policy,
    among: pa.Array | None = None,
) -> Rebuild:
    """Return how a space's table changes if a policy decides between all versions; writes no table.

    Args:
        among: Only keys that are among these are resolved; by default all.

    Raises:
        UnsupportedError: The space has no table that can be written, or the policy names a field that no replicaset
            has.
    """
    found = table_to_rebuild(state, config, space, policy)
    table, encoding = found.name, encoding_of(found)
    stored = table_of_exact_tuples(state.versions, table)
    chosen = table_policy(found, policy, config.preferred_replicasets(policy))
    plan = build_resolve_plan(state, state.epoch + 1, (chosen,), (True,))
    files = BaseFiles(
        tables.location,
        {0: (stored, tables.files(stored))},
        tables.files("_versions"),
        (table,),
        frozenset({0} if encoding.quarantines_misfits else ()),
    )
    rebuild, search = Rebuild(encoding), KeySearch()
    for keys in _contended_keys(tables, table, among):
        versions = find_versions([BaseRequest(0, keys, {}, True, True)], files, search)
        again = resolve_again(versions.base_versions, plan, MAX_EXAMPLES - len(rebuild.examples))
        lost = KEY_ERRORS.empty_table()
        rebuild.results.append(encode_result(again.resolved, lost, versions.files, (encoding,), plan))
        rebuild.changed_keys += again.changed_keys
        rebuild.examples += again.examples
    return rebuild


def _contended_keys(tables: OpenTables, table: str, among: pa.Array | None) -> Iterator[pa.Array]:
    parts: list[pa.Array] = []
    for file in tables.files("_versions"):
        rows = read_file(tables.location, "_versions", file, ["space", "key"])
        keys = rows["key"].filter(pc.equal(rows["space"], table))
        parts += keys.chunks if among is None else keys.filter(pc.is_in(keys, value_set=among)).chunks
    whole = pa.concat_arrays(parts) if parts else pa.array([], pa.binary())
    distinct = whole.take(pa.array(group(np.zeros(len(whole), np.int32), whole).first_rows))
    ordered = distinct.take(pc.sort_indices(distinct))
    for begin in range(0, len(ordered), KEYS_AT_ONCE):
        yield ordered.slice(begin, KEYS_AT_ONCE)


def write_rebuild(tables: OpenTables, state: State, rebuild: Rebuild, query_id: str) -> State:
    """Write the changes with one commit per table, commit an epoch, and return the state after it."""
    if not rebuild.changed_keys:
        return state
    versions = _write_tables(tables, rebuild.encoding, rebuild.results)
    versions |= write_other_versions(tables, rebuild)
    return commit_epoch(tables, with_unfit_versions(state, rebuild), versions, (query_id, 0))


def write_other_versions(tables: OpenTables, rebuild: Rebuild) -> dict[str, int]:
    """Write what is not in the space's own table: versions that lose now, conflicts, misfits; return the versions."""
    found = {}
    for table in ("_versions", "_conflicts", "_quarantine") if rebuild.results else ():
        whole = pa.concat_tables([getattr(one, table.removeprefix("_")) for one in rebuild.results])
        found[table] = append_table(tables, table, whole)
    return found


def with_unfit_versions(state: State, rebuild: Rebuild) -> State:
    """Return the state after a rebuild: whether the table has unfit versions."""
    if not any(one.unfit_tables for one in rebuild.results):
        return state
    known = state.writers.get(rebuild.encoding.name, TableWriters())
    return replace(state, writers={**state.writers, rebuild.encoding.name: replace(known, has_unfit=True)})


def _write_tables(
    tables: OpenTables, encoding: TableEncoding, results: list[PartitionResult]
) -> dict[str, int]:
    """Write the exact table and, if the space is masked, the masked one; return their versions."""
    prepared = PreparedTables()
    prepare_table(tables, encoding, prepared)
    rows = new_rows(results)
    keys = [one.removed_keys[0] for one in results if 0 in one.removed_keys]
    changes = TableChanges(
        encoding,
        pa.concat_tables(rows, promote_options="default") if rows else None,
        removed_rows(results),
        pa.concat_arrays(keys) if keys else None,
        prepared.changes[encoding.exact_table],
    )
    masked = write_masked(tables.location, changes, tables.files(encoding.name), NO_VECTORS, KeySearch())
    for write in (write_exact(tables.location, changes, tables.files(encoding.exact_table)), masked):
        if write is not None:
            commit_table_write(tables, write)
    if encoding.name in prepared.masked_to_rewrite:
        rewrite_masked(tables, encoding)
    return {name: tables.version(name) for name in (encoding.exact_table, encoding.name)}


def new_rows(results: list[PartitionResult]) -> list[pa.Table]:
    """Return the new rows of the exact table."""
    return [one.rows_by_table[0] for one in results if 0 in one.rows_by_table]


def removed_rows(results: list[PartitionResult]) -> dict[TableFile, NDArray[np.int64]]:
    """Return the numbers of the rows that leave the exact table, by file."""
    found: dict[TableFile, list[NDArray[np.int64]]] = {}
    for one in results:
        for ref, rows in one.removed.items():
            found.setdefault(ref.file, []).append(rows)
    return {file: np.concatenate(parts) for file, parts in found.items()}
