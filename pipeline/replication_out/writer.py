"""Writes the stream from epoch to epoch: definitions first, all tuples of an epoch in one transaction, then NOPs.

The writer compares what subscribers have with the newest epoch, and writes the difference. So each step may be
repeated, epochs may be skipped if the writer is late, and if the warehouse rolls back an epoch, the next rows undo it.
If the table versions that subscribers have cannot be read any more, a new snapshot is written, and subscribers must
begin with it.

The rows of an epoch, in order: removed spaces; new spaces, and formats that allow the tuples of both epochs, without
the indexes that change; `_cluster`; one transaction of all tuples, which ends with the row of `_schema` with the epoch;
the new formats and indexes; NOPs up to the epoch's vclock. So an application that sees an instance's lsn in the
subscriber's vclock also sees the effects of that row.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.replication_out import rows
from pipeline.replication_out.changes import TupleChange, changes_between, files_digest
from pipeline.replication_out.definitions import (
    ServedSpace,
    common_format,
    misfit_reason,
    with_consistent_types,
)
from pipeline.replication_out.rows import OutgoingRow, pack
from pipeline.replication_out.state import (
    EpochMark,
    EpochProgress,
    TableVersion,
    epoch_tuple,
    primary_key_fields,
)
from pipeline.replication_out.stream import Stream, first_system_rows, new_replicaset_uuid, system_tuples
from pipeline.replication_out.target import (
    EpochRow,
    Target,
    epoch_with_mark,
    newest_epoch,
    read_target,
    space_name,
)
from pipeline.replication_out.users import SubscriberUser, user_rows
from schemas import dictionary
from schemas.errors import WarehouseError
from schemas.iproto import SystemSpace
from schemas.system_tuples import fields_of
from warehouse.version_files import files_at
from warehouse.warehouse import Warehouse

logger = logging.getLogger(__name__)

TRANSACTION_ROWS = 100_000
"""An epoch with more changes takes several transactions: a server applies a transaction without a pause."""


class ReplicationWriter:
    """Keeps a stream at the newest epoch of a warehouse.

    Parameters
    ----------
    warehouse : Warehouse
        A warehouse without Spark.
    stream : Stream
        A stream whose context manager was entered: it is locked and open.
    readers : sequence of SubscriberUser
        The users of the subscribers.
    transaction_rows : int
        The maximum number of changes of one transaction.

    """

    def __init__(
        self,
        warehouse: Warehouse,
        stream: Stream,
        readers: Sequence[SubscriberUser] = (),
        transaction_rows: int = TRANSACTION_ROWS,
    ) -> None:
        self.warehouse, self.stream = warehouse, stream
        self.newest: EpochRow | None = None
        """The newest epoch of the warehouse."""
        self._readers, self._transaction_rows = readers, transaction_rows
        self._is_complete = False
        self._not_served: Mapping[str, str] = {}
        self._refused_tuples: dict[str, str] = {}

    @property
    def left_out(self) -> Mapping[str, str]:
        """The reasons why spaces (by table), instances (by uuid) and made tuples (by space) are not served."""
        tuples = {f"{name}: made tuples": reason for name, reason in self._refused_tuples.items()}
        return {**self._not_served, **tuples}

    @property
    def mark(self) -> EpochMark | None:
        """The epoch that subscribers have; None before the first one."""
        return None if self.stream.served is None else self.stream.served.mark

    def advance(self) -> bool:
        """Write the difference to the newest epoch; return whether anything was written.

        Raises
        ------
        WarehouseError
            A table cannot be read.
        SpoolError
            The stream cannot be written; it must be entered again.

        """
        newest = self.newest = newest_epoch(self.warehouse)
        if newest is None:
            return False
        served = self.stream.served
        if served is None:
            self._begin(newest)
            return True
        if served.progress is not None:
            self._continue_epoch(served.progress)
        elif (newest.epoch, newest.committed_at) == (served.mark.epoch, served.mark.committed_at):
            return not self._is_complete and self._complete_epoch(newest)
        else:
            self._write_newest(newest)
        if self.stream.wants_snapshot:
            self._snapshot_again()
        return True

    def _begin(self, row: EpochRow, vclock: Mapping[int, int] | None = None) -> None:
        """Write the first snapshot, or (with the stream's `vclock`) one with which subscribers must begin again."""
        served = self.stream.served
        target = self._target_of_epoch(row, is_continued=False)
        uuid = new_replicaset_uuid() if served is None else served.replicaset_uuid
        known = first_system_rows(uuid)
        for space in target.spaces.values():
            known.put(SystemSpace.SPACE, pack(space.space_tuple()))
            for index in space.indexes:
                known.put(SystemSpace.INDEX, pack(space.index_tuple(index)))
        for global_id, instance in target.cluster.items():
            known.put(SystemSpace.CLUSTER, pack([global_id, instance]))
        for space_id, tuple_ in user_rows(self._readers):
            known.put(space_id, pack(tuple_))
        known.put(SystemSpace.SCHEMA, epoch_tuple(target.mark))
        own = self.stream.own_id
        start = {own: (vclock or {}).get(own, 0) + 1}
        for global_id in {*target.vclock, *(vclock or {})} - {own}:
            start[global_id] = max(target.vclock.get(global_id, 0), (vclock or {}).get(global_id, 0))
        self.stream.spool.replicaset_uuid = uuid
        tuples = self._tuples(target.mark, target.spaces)
        self.stream.snapshot(start, itertools.chain(system_tuples(known), tuples), _seconds(row))
        self.stream.begin_anew(_seconds(row))
        self._is_complete = True

    def _snapshot_again(self) -> None:
        """Write a snapshot of the epoch that subscribers have, so that the logs before it can be removed."""
        served = self.stream.served
        if served is None:
            return
        known = served.spaces
        spaces = {table: known[space_name(table)] for table in served.mark.tables}
        tuples = self._tuples(served.mark, spaces)
        at = served.mark.committed_at / 1e6
        self.stream.snapshot(self.stream.vclock, itertools.chain(system_tuples(served), tuples), at)

    def _is_accepted(self, space: ServedSpace, change: TupleChange) -> bool:
        """Return whether subscribers accept a tuple; only one that a policy made may not fit its space."""
        reason = misfit_reason(space, change.after) if change.is_made and change.after is not None else None
        if reason is not None and space.name not in self._refused_tuples:
            logger.warning("not served: %s: tuples that its policy has made: %s", space.name, reason)
            self._refused_tuples[space.name] = reason
        return reason is None

    def _tuples(self, mark: EpochMark, spaces: Mapping[str, ServedSpace]) -> Iterator[tuple[int, bytes]]:
        for table, version in sorted(mark.tables.items()):
            files = self._files_of_version(table, version)
            for change in changes_between(self.warehouse.location, table, frozenset(), files):
                if change.after is not None and self._is_accepted(spaces[table], change):
                    yield spaces[table].id, change.after

    def _files_of_version(self, table: str, version: TableVersion) -> frozenset[str]:
        """Return the files of a table version.

        Raises
        ------
        WarehouseError
            The version does not exist any more, or has other files now.

        """
        files = files_at(self.warehouse.location, table, version.version)
        if files_digest(files) != version.digest:
            raise WarehouseError(
                f"version {version.version} has other files than subscribers have", table=table
            )
        return files

    def _target_of_epoch(self, row: EpochRow, *, is_continued: bool = True) -> Target:
        served = self.stream.served
        known = served.mark.tables if served is not None and is_continued else {}
        spaces = {} if served is None else served.spaces
        target = read_target(self.warehouse, row, spaces, known)
        self.stream.identify(target.own.global_id or 0, target.own.uuid or "")
        for name, reason in sorted(target.left_out.items() - self._not_served.items()):
            logger.warning("not served: %s: %s", name, reason)
        self._not_served = target.left_out
        return target

    def _write_newest(self, row: EpochRow) -> None:
        """Write the difference between the epoch that subscribers have and the newest one."""
        served = self.stream.served
        if served is None:
            return
        is_continued = epoch_with_mark(self.warehouse, served.mark) is not None
        if not is_continued:
            logger.warning(
                "epoch %d was rolled back: subscribers get epoch %d instead", served.mark.epoch, row.epoch
            )
        self._write_epoch(row, self._target_of_epoch(row, is_continued=is_continued), 0)

    def _continue_epoch(self, progress: EpochProgress) -> None:
        """Continue an epoch that takes several transactions."""
        row = epoch_with_mark(self.warehouse, progress.mark)
        if row is None:
            logger.warning("epoch %d was rolled back while subscribers got it", progress.mark.epoch)
            newest = newest_epoch(self.warehouse)
            if newest is not None:
                self._begin(newest, self.stream.vclock)
            return
        self._write_epoch(row, self._target_of_epoch(row), progress.rows)

    def _write_epoch(self, row: EpochRow, target: Target, done: int) -> None:
        served = self.stream.served
        if served is None:
            return
        try:
            before = {
                table: self._files_of_version(table, version)
                for table, version in served.mark.tables.items()
                if table in target.mark.tables and target.mark.tables[table] != version
            }
        except WarehouseError as error:
            logger.warning("subscribers must begin again: %s", error)
            self._begin(row, self.stream.vclock)
            return
        at = _seconds(row)
        self._write_common_definitions(target, at)
        self._write_tuples(target, before, done, at)
        self._complete_epoch(row, target)

    def _write_common_definitions(self, target: Target, at: float) -> None:
        """Write definitions that allow the tuples of both epochs."""
        stream, served = self.stream, self.stream.served
        if served is None:
            return
        wanted = {space.name: (table, space) for table, space in target.spaces.items()}
        started = {} if served.progress is None else served.progress.mark.tables
        gone = []
        for name, space in served.spaces.items():
            table = wanted[name][0] if name in wanted else None
            has_data = table is not None and (table in served.mark.tables or table in started)
            if not has_data or not _has_same_primary(space, wanted[name][1]):
                gone.append(space)
        self._drop_spaces(gone, at)
        known = served.spaces
        for name, (_, space) in sorted(wanted.items()):
            if name not in known:
                stream.put(SystemSpace.SPACE, pack(space.space_tuple()), at)
                for index in space.indexes:
                    stream.put(SystemSpace.INDEX, pack(space.index_tuple(index)), at)
            else:
                between = _definition_for_both(known[name], space)
                self._drop_indexes(known[name], between, at)
                self._write_definition(known[name], between, at)
        for global_id in sorted(served.cluster.items() - target.cluster.items()):
            stream.remove(SystemSpace.CLUSTER, pack([global_id[0]]), at)
        for one in sorted(target.cluster.items() - served.cluster.items()):
            stream.put(SystemSpace.CLUSTER, pack(list(one)), at)

    def _drop_spaces(self, spaces: Sequence[ServedSpace], at: float) -> None:
        """First remove the tables of spaces from `aggregator_epoch` in `_schema`, then drop the spaces."""
        served = self.stream.served
        if served is None or not spaces:
            return
        names = {space.name for space in spaces}
        rest = {
            table: version for table, version in served.mark.tables.items() if space_name(table) not in names
        }
        if rest != served.mark.tables:
            mark = replace(served.mark, tables=rest)
            self.stream.put(SystemSpace.SCHEMA, epoch_tuple(mark, served.progress), at)
        for space in spaces:
            for index in reversed(space.indexes):
                self.stream.remove(SystemSpace.INDEX, pack([space.id, index.id]), at)
            self.stream.remove(SystemSpace.SPACE, pack([space.id]), at)

    def _drop_indexes(self, known: ServedSpace, wanted: ServedSpace, at: float) -> None:
        kept = {pack(wanted.index_tuple(index)) for index in wanted.indexes}
        for index in reversed(known.indexes[1:]):
            if pack(known.index_tuple(index)) not in kept:
                self.stream.remove(SystemSpace.INDEX, pack([known.id, index.id]), at)

    def _write_definition(self, known: ServedSpace, wanted: ServedSpace, at: float) -> None:
        """Write a space's format and indexes if they differ from the wanted ones."""
        if pack(known.space_tuple()) != pack(wanted.space_tuple()):
            self.stream.put(SystemSpace.SPACE, pack(wanted.space_tuple()), at)
        there = {pack(known.index_tuple(index)) for index in known.indexes}
        for index in wanted.indexes:
            if pack(wanted.index_tuple(index)) not in there:
                self.stream.put(SystemSpace.INDEX, pack(wanted.index_tuple(index)), at)

    def _write_tuples(
        self, target: Target, before: Mapping[str, frozenset[str]], done: int, at: float
    ) -> None:
        """Write the tuples that differ, with the epoch in the last transaction; the first `done` rows are skipped."""
        stream, served = self.stream, self.stream.served
        if served is None:
            return
        mark = served.mark
        changes = itertools.islice(self._changes(target, mark, before), done, None)
        epoch = epoch_tuple(mark, EpochProgress(target.mark, done))
        parts = _transactions(
            changes, self._transaction_rows, stream.block_bytes - 2 * (len(epoch) + rows.ROW_BYTES)
        )
        part = next(parts, [])
        for following in parts:
            done += len(part)
            stream.write_with_epoch(part, epoch_tuple(mark, EpochProgress(target.mark, done)), at)
            part = following
        stream.write_with_epoch(part, epoch_tuple(target.mark), at)

    def _changes(
        self, target: Target, mark: EpochMark, before: Mapping[str, frozenset[str]]
    ) -> Iterator[OutgoingRow]:
        """Yield the rows that change one epoch to another; each call yields the same rows in the same order."""
        for table, space in sorted(target.spaces.items()):
            version = target.mark.tables[table]
            if mark.tables.get(table) == version:
                continue
            files = self._files_of_version(table, version)
            old = before[table] if table in mark.tables else frozenset[str]()
            for change in changes_between(self.warehouse.location, table, old, files):
                yield _outgoing_row(
                    space, change if self._is_accepted(space, change) else replace(change, after=None)
                )

    def _complete_epoch(self, row: EpochRow, target: Target | None = None) -> bool:
        """Write what follows the tuples: formats, indexes, users, NOPs; return whether anything was written."""
        stream, served = self.stream, self.stream.served
        if served is None:
            return False
        at, start = _seconds(row), dict(stream.vclock)
        target = target or self._target_of_epoch(row)
        known = served.spaces
        for space in target.spaces.values():
            if space.name in known:
                self._drop_indexes(known[space.name], space, at)
                self._write_definition(known[space.name], space, at)
        self._update_users(at)
        stream.append_nops(target.vclock, at)
        self._is_complete = True
        return dict(stream.vclock) != start

    def _update_users(self, at: float) -> None:
        """Write the users of subscribers and their privileges if they have changed, and remove others."""
        stream, served = self.stream, self.stream.served
        if served is None:
            return
        ids = {str(fields_of(row, "a row of _user")[2]): id_ for id_, row in served.users.items()}
        wanted: dict[SystemSpace, dict[tuple[Any, ...], bytes]] = {SystemSpace.USER: {}, SystemSpace.PRIV: {}}
        for space, values in user_rows(self._readers, ids):
            wanted[space][primary_key_fields(space, values)] = pack(values)
        for space in (SystemSpace.PRIV, SystemSpace.USER):
            for key in served.rows[space].keys() - wanted[space].keys():
                if key[0] > dictionary.SUPER:
                    stream.remove(space, pack(list(key)), at)
        for space in (SystemSpace.USER, SystemSpace.PRIV):
            for key, row in wanted[space].items():
                if served.rows[space].get(key) != row:
                    stream.put(space, row, at)


def _transactions(changes: Iterator[OutgoingRow], size: int, limit: int) -> Iterator[list[OutgoingRow]]:
    """Divide changes into lists of at most `size` changes and `limit` bytes; a larger change is a list of its own."""
    part: list[OutgoingRow] = []
    held = 0
    for one in changes:
        length = rows.ROW_BYTES + len(one.body)
        if part and (len(part) == size or held + length > limit):
            yield part
            part, held = [], 0
        part.append(one)
        held += length
    if part:
        yield part


def _outgoing_row(space: ServedSpace, change: TupleChange) -> OutgoingRow:
    """Return the row that replaces or deletes a key's tuple."""
    if change.after is not None:
        return rows.replace_row(space.id, change.after)
    parts = space.primary.parts
    if change.before is None or any(part.path for part in parts) or misfit_reason(space, change.before):
        return rows.delete_row(space.id, change.key)
    return rows.delete_row(space.id, rows.key_of(change.before, parts))


def _has_same_primary(one: ServedSpace, other: ServedSpace) -> bool:
    """Return whether two definitions have the same primary index, so that tuples can stay."""
    return pack(one.index_tuple(one.primary)) == pack(other.index_tuple(other.primary))


def _definition_for_both(known: ServedSpace, wanted: ServedSpace) -> ServedSpace:
    """Return a definition that the tuples of both fit, with the indexes that are the same in both."""
    there = {pack(known.index_tuple(index)) for index in known.indexes}
    kept = there & {pack(wanted.index_tuple(index)) for index in wanted.indexes}
    count = wanted.field_count if known.field_count == wanted.field_count else 0
    fields = common_format([known.fields, wanted.fields])

    def with_those_that_stay(space: ServedSpace) -> ServedSpace:
        stay = [one for one in space.indexes if one.id == 0 or pack(space.index_tuple(one)) in kept]
        return replace(space, indexes=tuple(stay))

    # An index that goes says nothing of the new tuples, so it is gone before fields get the types of indexes.
    between = with_those_that_stay(known)
    return with_those_that_stay(with_consistent_types(replace(between, fields=fields, field_count=count)))


def _seconds(row: EpochRow) -> float:
    """Return the timestamp of an epoch's rows: its commit time, from which a subscriber computes its lag."""
    return row.committed_at / 1e6
