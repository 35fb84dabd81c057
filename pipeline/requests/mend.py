"""Mends a table of a space that is set aside: one that somebody else has changed, or that is lost.

The table is restored to the version that the newest epoch names, by a commit; a table that lacks this version is made
again. Rows that came while it was set aside are in `_changelog` alone: the space is read again from
snapshots, and later rows are applied again (`pipeline.requests.snapshots`).
"""

from collections.abc import Mapping
from dataclasses import replace

from config.deployment import Config
from pipeline.batch import BatchWriter
from pipeline.commit.batch import space_version
from pipeline.commit.epoch import commit_epoch
from pipeline.requests.snapshots import read_spaces_again, sources_with_spaces
from pipeline.state import ReplicasetState, State
from pipeline.write.system_rows import append_rows
from schemas.errors import SourceError, WarehouseError
from schemas.names import exact_table
from schemas.states import SET_ASIDE_PREFIX
from warehouse.delta.restoration import restore
from warehouse.system_tables import schema
from warehouse.system_tables.table_differences import TableState, compare_table
from warehouse.warehouse import Warehouse


def tables_to_mend(state: State, config: Config, space: str) -> list[str]:
    """Return the tables of a space that are set aside, or were until somebody has taken them back."""
    tables = {table for uuids in _spaces(state, space).values() for table in uuids.values()}
    tables |= {config.spaces.table(space)}
    return sorted(
        table for table in tables if table in state.set_aside or _replicasets_behind(state, space, table)
    )


def _spaces(state: State, space: str) -> Mapping[str, Mapping[int, str]]:
    """Return the table of each space with a name, by replicaset uuid and space id."""
    return {
        uuid: {
            i: one.tables[i]
            for i, rows in one.spaces.items()
            if rows.decoded().name == space and i in one.tables
        }
        for uuid, one in state.replicasets.items()
    }


def _replicasets_behind(state: State, space: str, table: str) -> list[str]:
    """Return the replicasets whose rows of a space came while its table was set aside."""
    return [
        uuid
        for uuid, tables in _spaces(state, space).items()
        for space_id, one in tables.items()
        if one == table and state.replicasets[uuid].refused.get(space_id, "").startswith(SET_ASIDE_PREFIX)
    ]


def mend_tables(
    config: Config, warehouse: Warehouse, writer: BatchWriter, space: str, query_id: str, cores: int = 1
) -> str:
    """Take the tables of a space back, read what they lack, and return a report.

    Raises:
        SourceError: A replicaset has no snapshot with the space; nothing is changed then.
    """
    reports = []
    for table in tables_to_mend(writer.state, config, space):
        names = [name for name in (table, exact_table(table)) if name in writer.state.versions]
        lost = [name for name in names if not _can_be_taken_back(warehouse, writer.state, name)]
        behind = _replicasets_behind(writer.state, space, table)
        if lost:
            behind = [
                uuid for uuid, tables in _spaces(writer.state, space).items() if table in tables.values()
            ]
        sources = sources_with_spaces(config, writer, [space], cores)
        missing = sorted(set(behind) - sources.keys())
        if missing:
            raise SourceError(
                f"no source of the replicasets {', '.join(missing)} has a snapshot with the space {space}; "
                "nothing was changed",
                advice="take one there: box.snapshot(), then ask again",
            )
        if lost:
            reports.append(_remove(warehouse, writer, space, table, names, query_id))
        elif names:
            reports.append(_take_back(warehouse, writer, names, query_id))
        state = writer.state
        writer.state = replace(state, set_aside={t: x for t, x in state.set_aside.items() if t != table})
        for uuid in behind:
            reports.append(
                read_spaces_again(config, warehouse, writer, [space], sources[uuid], query_id, cores)
            )
    return "; ".join(reports)


def _can_be_taken_back(warehouse: Warehouse, state: State, table: str) -> bool:
    found = compare_table(warehouse.location, table, state.versions[table])
    return found.state not in (TableState.LOST, TableState.OLDER)


def _take_back(warehouse: Warehouse, writer: BatchWriter, names: list[str], query_id: str) -> str:
    """Take some tables back to the version of the last epoch, and commit an epoch with their versions."""
    tables, state = warehouse.open_tables, writer.state
    versions = {}
    for name in names:
        opened = warehouse.location.open(name)
        if opened is None:
            raise WarehouseError("the table is not there", table=name)
        versions[name] = restore(tables, name, opened, state.versions[name], with_protocol=True)
    writer.state = commit_epoch(tables, state, versions, (query_id, 0))
    return ", ".join(f"{name} was taken back to version {state.versions[name]}" for name in names)


def _remove(
    warehouse: Warehouse, writer: BatchWriter, space: str, table: str, names: list[str], query_id: str
) -> str:
    """Commit an epoch without some tables, in which their spaces are refused, and remove what is left of them."""
    tables, state = warehouse.open_tables, writer.state
    reason = SET_ASIDE_PREFIX + state.set_aside.get(table, "it was lost")
    refused: dict[str, ReplicasetState] = {}
    rows: list[schema.SpaceVersion] = []
    for uuid, own in _spaces(state, space).items():
        one = state.replicasets[uuid]
        ids = [space_id for space_id, name in own.items() if name == table]
        refused[uuid] = replace(one, refused={**one.refused, **dict.fromkeys(ids, reason)})
        rows += [space_version(refused[uuid], space_id) for space_id in ids]
    version = append_rows(tables, schema.TABLE, schema.rows_of(rows, state.epoch + 1))
    kept = {name: version for name, version in state.versions.items() if name not in names}
    without = replace(state.with_replicasets(refused), versions=kept)
    writer.state = commit_epoch(tables, without, {schema.TABLE: version}, (query_id, 0))
    for name in names:
        warehouse.drop(name)
    return f"{', '.join(names)} will be made anew"
