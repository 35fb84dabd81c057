"""The spaces of replicasets after a batch: their tables, refusals, primary keys, and the definitions of their rows.

Pure. A refused space keeps its rows as they were, so the last definition by which they were followed is kept with it:
the space's own, newer definitions say nothing of these rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline.plan.history import NO_TABLE, History, Lineage
from pipeline.state import ReplicasetState, State
from schemas.space import Space


def with_history(one: ReplicasetState, before: ReplicasetState, history: History) -> ReplicasetState:
    """Return a replicaset's state with the tables, refusals, keys and definitions of its spaces after the batch.

    Parameters
    ----------
    one : ReplicasetState
        After the batch, but for what is returned.
    before : ReplicasetState
    history : History

    """
    seen = {space_id for replicaset_id, space_id in history.tracked if replicaset_id == one.id}
    tables = {i: table for i, table in before.tables.items() if i not in seen and i in one.spaces}
    refused = {i: reason for i, reason in before.refused.items() if i not in seen and i in one.spaces}
    tables |= {i: table for (r, i), table in history.tables.items() if r == one.id}
    refused |= {r.space_id: r.reason for r in history.refusals if r.replicaset_id == one.id}
    new = history.primary_keys
    keys = {
        i: parts for i, parts in before.primary_keys.items() if i in one.spaces and (one.id, i) not in new
    }
    keys |= {i: parts for (r, i), parts in new.items() if r == one.id and parts}
    known = {**before.followed, **_last_followed(one.id, history)}
    followed = {i: space for i, space in known.items() if i in refused and i in tables}
    return replace(one, tables=tables, refused=refused, primary_keys=keys, followed=followed)


def _last_followed(replicaset_id: int, history: History) -> dict[int, Space]:
    """Return the last definition by which a batch follows each of a replicaset's spaces."""
    return {
        key[1]: history.versions[one.version].space
        for key, meanings in history.meanings.items()
        if key[0] == replicaset_id
        for one in meanings
        if one.lineage != NO_TABLE
    }


def with_refused_tables(before: State, after: State, history: History, refused: Mapping[str, str]) -> State:
    """Return the state with the spaces of unwritable tables refused, also spaces that the batch moves out of one.

    The batch changes nothing of their versions: these are where they were, and have the definition that they had.

    Parameters
    ----------
    before, after : State
        The states before and after the batch.
    history : History
    refused : mapping of str to str
        For each table that cannot be written, the reason.

    """
    stopped: dict[int, list[tuple[Lineage, str]]] = {}
    for lineage in history.lineages:
        tables = (lineage.base_table, lineage.table)
        reasons = [refused[table] for table in tables if table is not None and table in refused]
        if reasons and lineage.ended is None:
            stopped.setdefault(lineage.replicaset_id, []).append((lineage, reasons[-1]))
    return after.with_replicasets(
        {
            uuid: _with_stopped(one, before.replicasets.get(uuid), history, stopped[one.id])
            for uuid, one in after.replicasets.items()
            if one.id in stopped
        }
    )


def _with_stopped(
    one: ReplicasetState,
    before: ReplicasetState | None,
    history: History,
    lineages: list[tuple[Lineage, str]],
) -> ReplicasetState:
    """Return a replicaset's state with the spaces of some lineages as they were before the batch, and refused."""
    tables, refused, followed = dict(one.tables), dict(one.refused), dict(one.followed)
    for lineage, reason in lineages:
        space_id, base = lineage.space_id, lineage.base_table
        if (one.id, space_id) in history.current:
            refused[space_id] = reason
        if base is not None and base not in tables.values():
            tables[space_id] = base
        space = None if before is None else before.definition(space_id)
        if space is not None:
            followed[space_id] = space
        else:
            followed.pop(space_id, None)
    return replace(one, tables=tables, refused=refused, followed=followed)
