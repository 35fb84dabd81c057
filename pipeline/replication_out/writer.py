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

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.replication_out import bootstrap_rows, rows
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
from schemas.errors import WarehouseError
from schemas.iproto import SystemSpace
from schemas.system_tuples import fields_of
from warehouse.delta.table_files import TableFile
from warehouse.delta.version_files import files_at
from warehouse.warehouse import Warehouse

logger = logging.getLogger(__name__)

TRANSACTION_ROWS = 100_000
"""The maximum number of changes of one transaction: a server applies a transaction without a pause."""


class ReplicationWriter:
    """Keeps a stream at the newest epoch of a warehouse."""

    def __init__(
        self,
        warehouse: Warehouse,
        stream: Stream,
        readers: Sequence[SubscriberUser] = (),
        transaction_rows: int = TRANSACTION_ROWS,
    ) -> None:
        self.warehouse, self.stream = warehouse, stream
        self.newest: EpochRow | None = None
        self._readers, self._transaction_rows = readers, transaction_rows
        self._is_complete = False
        self._not_served: Mapping[str, str] = {}
        self._refused_tuples: dict[str, str] = {}

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why spaces (by table), instances (by uuid) and tuples that a policy made (by space) are not served."""
        tuples = {f"{name}: made tuples": reason for name, reason in self._refused_tuples.items()}
        return {**self._not_served, **tuples}

    @property
    def mark(self) -> EpochMark | None:
        """The epoch that subscribers have; None before the first one."""
        return None if self.stream.served is None else self.stream.served.mark

    def advance(self) -> bool:
        """Bring the stream closer to the newest epoch; return whether anything was written.

        Raises:
            WarehouseError: A table cannot be read.
            SpoolError: The stream cannot be written; it must be entered again.
        """
        newest = self.newest = newest_epoch(self.warehouse)
        if newest is None:
            return False
        served = self.stream.served
        if served is None:
            self._write_begin_snapshot(newest)
            return True
        if served.progress is not None:
            self._continue_epoch(served.progress)
        elif (newest.epoch, newest.committed_at) == (served.mark.epoch, served.mark.committed_at):
            return not self._is_complete and self._complete_epoch(newest)
        else:
            self._write_newest(newest)
        if self.stream.is_snapshot_due:
            self._write_newer_snapshot()
        return True

    def _write_begin_snapshot(self, row: EpochRow, vclock: Mapping[int, int] | None = None) -> None:
        """Write a snapshot with which subscribers begin, and a new log."""
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
        own = self.stream.aggregator_id
        start = {own: (vclock or {}).get(own, 0) + 1}
        for global_id in {*target.vclock, *(vclock or {})} - {own}:
            start[global_id] = max(target.vclock.get(global_id, 0), (vclock or {}).get(global_id, 0))
        self.stream.spool.replicaset_uuid = uuid
        tuples = self._all_tuples(target.mark, target.spaces)
        self.stream.snapshot(start, itertools.chain(system_tuples(known), tuples), _commit_timestamp(row))
        self.stream.begin_new_log(_commit_timestamp(row))
        self._is_complete = True

    def _write_newer_snapshot(self) -> None:
        """Write a newer snapshot, of the epoch that subscribers have, so that the logs before it can be removed."""
        served = self.stream.served_rows
        known = served.spaces
        spaces = {table: known[space_name(table)] for table in served.mark.tables}
        tuples = self._all_tuples(served.mark, spaces)
        timestamp = served.mark.committed_at / 1e6
        self.stream.snapshot(self.stream.vclock, itertools.chain(system_tuples(served), tuples), timestamp)

    def _is_accepted(self, space: ServedSpace, change: TupleChange) -> bool:
        """Return whether the tuple after a change fits its space; only tuples that a policy made may not fit."""
        reason = (
            misfit_reason(space, change.after) if change.is_policy_made and change.after is not None else None
        )
        if reason is not None and space.name not in self._refused_tuples:
            logger.warning("not served: %s: tuples that its policy has made: %s", space.name, reason)
            self._refused_tuples[space.name] = reason
        return reason is None

    def _all_tuples(self, mark: EpochMark, spaces: Mapping[str, ServedSpace]) -> Iterator[tuple[int, bytes]]:
        for table, version in sorted(mark.tables.items()):
            files = self._files_of_version(table, version)
            for change in changes_between(self.warehouse.location, table, frozenset(), files):
                if change.after is not None and self._is_accepted(spaces[table], change):
                    yield spaces[table].id, change.after

    def _files_of_version(self, table: str, version: TableVersion) -> frozenset[TableFile]:
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
        self.stream.set_signing_instance(target.aggregator.global_id or 0, target.aggregator.uuid or "")
        for name, reason in sorted(target.left_out.items() - self._not_served.items()):
            logger.warning("not served: %s: %s", name, reason)
        self._not_served = target.left_out
        return target

    def _write_newest(self, row: EpochRow) -> None:
        served = self.stream.served_rows
        is_continued = epoch_with_mark(self.warehouse, served.mark) is not None
        if not is_continued:
            logger.warning(
                "epoch %d was rolled back: subscribers get epoch %d instead", served.mark.epoch, row.epoch
            )
        self._write_epoch(row, self._target_of_epoch(row, is_continued=is_continued), 0)

    def _continue_epoch(self, progress: EpochProgress) -> None:
        """Write the rest of an epoch that takes several transactions and was interrupted."""
        row = epoch_with_mark(self.warehouse, progress.mark)
        if row is None:
            logger.warning("epoch %d was rolled back while subscribers got it", progress.mark.epoch)
            newest = newest_epoch(self.warehouse)
            if newest is not None:
                self._write_begin_snapshot(newest, self.stream.vclock)
            return
        self._write_epoch(row, self._target_of_epoch(row), progress.written_rows)

    def _write_epoch(self, row: EpochRow, target: Target, written_rows: int) -> None:
        served = self.stream.served_rows
        try:
            before = {
                table: self._files_of_version(table, version)
                for table, version in served.mark.tables.items()
                if table in target.mark.tables and target.mark.tables[table] != version
            }
        except WarehouseError as error:
            logger.warning("subscribers must begin again: %s", error)
            self._write_begin_snapshot(row, self.stream.vclock)
            return
        timestamp = _commit_timestamp(row)
        self._write_common_definitions(target, timestamp)
        self._write_tuples(target, before, written_rows, timestamp)
        self._complete_epoch(row, target)

    def _write_common_definitions(self, target: Target, timestamp: float) -> None:
        """Write definitions of spaces that allow the tuples before and after the epoch, and write `_cluster`."""
        stream, served = self.stream, self.stream.served_rows
        wanted = {space.name: (table, space) for table, space in target.spaces.items()}
        started = {} if served.progress is None else served.progress.mark.tables
        gone = []
        for name, space in served.spaces.items():
            table = wanted[name][0] if name in wanted else None
            has_data = table is not None and (table in served.mark.tables or table in started)
            if not has_data or not _has_same_primary_index(space, wanted[name][1]):
                gone.append(space)
        self._drop_spaces(gone, timestamp)
        known = served.spaces
        for name, (_, space) in sorted(wanted.items()):
            if name not in known:
                stream.put(SystemSpace.SPACE, pack(space.space_tuple()), timestamp)
                for index in space.indexes:
                    stream.put(SystemSpace.INDEX, pack(space.index_tuple(index)), timestamp)
            else:
                between = _definition_for_both(known[name], space)
                self._drop_indexes(known[name], between, timestamp)
                self._write_definition(known[name], between, timestamp)
        for global_id in sorted(served.cluster.items() - target.cluster.items()):
            stream.remove(SystemSpace.CLUSTER, pack([global_id[0]]), timestamp)
        for one in sorted(target.cluster.items() - served.cluster.items()):
            stream.put(SystemSpace.CLUSTER, pack(list(one)), timestamp)

    def _drop_spaces(self, spaces: Sequence[ServedSpace], timestamp: float) -> None:
        """Remove the spaces' tables from the row `aggregator_epoch` of `_schema`, then drop the spaces."""
        if not spaces:
            return
        served = self.stream.served_rows
        names = {space.name for space in spaces}
        rest = {
            table: version for table, version in served.mark.tables.items() if space_name(table) not in names
        }
        if rest != served.mark.tables:
            mark = replace(served.mark, tables=rest)
            self.stream.put(SystemSpace.SCHEMA, epoch_tuple(mark, served.progress), timestamp)
        for space in spaces:
            for index in reversed(space.indexes):
                self.stream.remove(SystemSpace.INDEX, pack([space.id, index.id]), timestamp)
            self.stream.remove(SystemSpace.SPACE, pack([space.id]), timestamp)

    def _drop_indexes(self, old: ServedSpace, new: ServedSpace, timestamp: float) -> None:
        kept = {pack(new.index_tuple(index)) for index in new.indexes}
        for index in reversed(old.indexes[1:]):
            if pack(old.index_tuple(index)) not in kept:
                self.stream.remove(SystemSpace.INDEX, pack([old.id, index.id]), timestamp)

    def _write_definition(self, old: ServedSpace, new: ServedSpace, timestamp: float) -> None:
        if pack(old.space_tuple()) != pack(new.space_tuple()):
            self.stream.put(SystemSpace.SPACE, pack(new.space_tuple()), timestamp)
        there = {pack(old.index_tuple(index)) for index in old.indexes}
        for index in new.indexes:
            if pack(new.index_tuple(index)) not in there:
                self.stream.put(SystemSpace.INDEX, pack(new.index_tuple(index)), timestamp)

    def _write_tuples(
        self, target: Target, before: Mapping[str, frozenset[TableFile]], written_rows: int, timestamp: float
    ) -> None:
        """Write the changed rows after the first `written_rows`, with the epoch in the last transaction."""
        stream, served = self.stream, self.stream.served_rows
        mark = served.mark
        changes = itertools.islice(self._changed_rows(target, mark, before), written_rows, None)
        epoch = epoch_tuple(mark, EpochProgress(target.mark, written_rows))
        parts = _transactions(
            changes,
            self._transaction_rows,
            stream.max_transaction_bytes - 2 * (len(epoch) + rows.HEADER_BYTES),
        )
        part = next(parts, [])
        for following in parts:
            written_rows += len(part)
            stream.write_with_epoch(
                part, epoch_tuple(mark, EpochProgress(target.mark, written_rows)), timestamp
            )
            part = following
        stream.write_with_epoch(part, epoch_tuple(target.mark), timestamp)

    def _changed_rows(
        self, target: Target, mark: EpochMark, before: Mapping[str, frozenset[TableFile]]
    ) -> Iterator[OutgoingRow]:
        """Yield the rows that change the tuples of `mark` to those of `target`, always in the same order."""
        for table, space in sorted(target.spaces.items()):
            version = target.mark.tables[table]
            if mark.tables.get(table) == version:
                continue
            files = self._files_of_version(table, version)
            old = before[table] if table in mark.tables else frozenset[TableFile]()
            for change in changes_between(self.warehouse.location, table, old, files):
                yield _outgoing_row(
                    space, change if self._is_accepted(space, change) else replace(change, after=None)
                )

    def _complete_epoch(self, row: EpochRow, target: Target | None = None) -> bool:
        """Write what comes after the tuples: formats, indexes, users, NOPs; return whether anything was written."""
        stream, served = self.stream, self.stream.served_rows
        timestamp, start = _commit_timestamp(row), dict(stream.vclock)
        target = target or self._target_of_epoch(row)
        known = served.spaces
        for space in target.spaces.values():
            if space.name in known:
                self._drop_indexes(known[space.name], space, timestamp)
                self._write_definition(known[space.name], space, timestamp)
        self._update_users(timestamp)
        stream.append_nops(target.vclock, timestamp)
        self._is_complete = True
        return dict(stream.vclock) != start

    def _update_users(self, timestamp: float) -> None:
        """Write the subscribers' users and privileges that have changed, and remove those not configured any more."""
        stream, served = self.stream, self.stream.served_rows
        ids = {str(fields_of(row, "a row of _user")[2]): id_ for id_, row in served.users.items()}
        wanted: dict[SystemSpace, dict[tuple[Any, ...], bytes]] = {SystemSpace.USER: {}, SystemSpace.PRIV: {}}
        for space, values in user_rows(self._readers, ids):
            wanted[space][primary_key_fields(space, values)] = pack(values)
        for space in (SystemSpace.PRIV, SystemSpace.USER):
            for key in served.rows[space].keys() - wanted[space].keys():
                if key[0] > bootstrap_rows.SUPER:
                    stream.remove(space, pack(list(key)), timestamp)
        for space in (SystemSpace.USER, SystemSpace.PRIV):
            for key, row in wanted[space].items():
                if served.rows[space].get(key) != row:
                    stream.put(space, row, timestamp)


def _transactions(
    changes: Iterator[OutgoingRow], max_rows: int, max_bytes: int
) -> Iterator[list[OutgoingRow]]:
    """Divide changes into transactions of up to `max_rows` rows and `max_bytes` bytes; a larger row is alone in one."""
    part: list[OutgoingRow] = []
    size = 0
    for one in changes:
        length = rows.HEADER_BYTES + len(one.body)
        if part and (len(part) == max_rows or size + length > max_bytes):
            yield part
            part, size = [], 0
        part.append(one)
        size += length
    if part:
        yield part


def _outgoing_row(space: ServedSpace, change: TupleChange) -> OutgoingRow:
    if change.after is not None:
        return rows.replace_row(space.id, change.after)
    parts = space.primary.parts
    if change.before is None or any(part.path for part in parts) or misfit_reason(space, change.before):
        return rows.delete_row(space.id, change.key)
    return rows.delete_row(space.id, rows.key_of(change.before, parts))


def _has_same_primary_index(one: ServedSpace, other: ServedSpace) -> bool:
    return pack(one.index_tuple(one.primary)) == pack(other.index_tuple(other.primary))


def _definition_for_both(old: ServedSpace, new: ServedSpace) -> ServedSpace:
    """Return a definition that the tuples of both given ones fit, with the indexes that are the same in both."""
    there = {pack(old.index_tuple(index)) for index in old.indexes}
    kept = there & {pack(new.index_tuple(index)) for index in new.indexes}
    count = new.field_count if old.field_count == new.field_count else 0
    fields = common_format([old.fields, new.fields])

    def with_those_that_stay(space: ServedSpace) -> ServedSpace:
        stay = [one for one in space.indexes if one.id == 0 or pack(space.index_tuple(one)) in kept]
        return replace(space, indexes=tuple(stay))

    # An index that goes says nothing of the new tuples, so it is gone before fields get the types of indexes.
    between = with_those_that_stay(old)
    return with_those_that_stay(with_consistent_types(replace(between, fields=fields, field_count=count)))


def _commit_timestamp(row: EpochRow) -> float:
    """Return the timestamp of an epoch's rows: its commit time in seconds, from which a subscriber computes its lag."""
    return row.committed_at / 1e6
