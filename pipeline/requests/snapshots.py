"""Reads a source's newest snapshot over the existing tables: to heal a divergence, or for single spaces.

Only the operator knows which member of a diverged replicaset is right, and names its source: `heal` makes the tables
equal to that member. `read_spaces_again` is for a space whose earlier rows are missing: one that `spaces.include` left
out before, one that was refused and can be followed now, or one whose definition is in no file that was read. All other
spaces and the stream continue.

The snapshot is a generation; rows that are later than it are applied again from `_changelog`
(`pipeline.requests.healing` plans this).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from config.deployment import Config
from pipeline.batch import BatchWriter
from pipeline.changelog.divergence import LSN_HASHES
from pipeline.commit.batch import BatchName
from pipeline.plan.healing import Healing
from pipeline.plan.spaces.meanings import Refusal
from pipeline.plan.spaces.meanings_builder import WAS_LEFT_OUT
from pipeline.plan.spaces.router import build_router
from pipeline.plan.spaces.tables import check_space
from pipeline.requests.healing import plan_healing
from pipeline.requests.read_again import source_log_stream
from pipeline.state import ReplicasetState, State
from schemas.errors import AggregatorError, SourceError, TupleError, UnsupportedError
from schemas.iproto import SystemSpace
from schemas.space import space_of
from schemas.system_tuples import fields_of
from sources.spool.acks import ask_for_snapshot, is_spool
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import Listing, LogFile, newest_index_at_most
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import is_at_most, without_local
from sources.xlog.reader import reader
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.failover import entry_at
from sources.xlog.stream.identity import replicaset_uuid_of
from sources.xlog.stream.log_stream import LogStream
from udfs.keys.row_hash import row_hashes
from warehouse.lock.lock import local_folder
from warehouse.system_tables.gaps import gap_of
from warehouse.warehouse import Warehouse

ALWAYS_READ_SPACES = frozenset(
    int(space) for space in (SystemSpace.SPACE, SystemSpace.INDEX, SystemSpace.CLUSTER)
)
"""System spaces that are read from a snapshot in addition to single spaces."""


def heal(
    config: Config, warehouse: Warehouse, writer: BatchWriter, source: str, query_id: str, cores: int = 1
) -> str:
    """Make the tables equal to a source's newest snapshot and the rows since, and return a report.

    Raises:
        ConfigurationError: There is no such source.
        SourceError: The source has no complete snapshot, or its replicaset is not known yet.
        UnsupportedError: The snapshot cannot be used.
    """
    log_stream = source_log_stream(config, writer, source, cores)
    directory = log_stream.directory(source)
    listing = directory.listing()
    known = known_replicaset(writer, directory, listing)
    snapshot = directory.newest_complete(listing.snapshots)
    if known is None or snapshot is None:
        reason = "its replicaset has no tables yet" if known is None else "there is no complete snapshot"
        raise SourceError(reason, source=source, advice="it cannot heal anything")
    healing = plan_healing(
        *(warehouse.open_tables, known, source, without_local(snapshot.vclock)),
        lambda: row_hashes_after(directory, listing, snapshot, known.id_translations.get(source, {})),
    )
    rows = read_snapshot(writer, log_stream, source, snapshot, healing, query_id)
    reapplied = sum(healing.reapplied_counts.values())
    report = gap_texts(healing.healed) or "no known divergence"
    left = gap_texts([*healing.left_open, *healing.newly_open])
    if left:
        report += f"; STILL OPEN, as the snapshot is older: {left}: box.snapshot(), and heal again"
    return f"{snapshot.name}: {rows} rows, and {reapplied} later rows applied again; healed: {report}"


def known_replicaset(writer: BatchWriter, directory: Directory, listing: Listing) -> ReplicasetState | None:
    """Return the state of a source's replicaset, None if the tables do not have it."""
    return writer.state.replicasets.get(replicaset_uuid_of(directory, listing, None))


def read_snapshot(
    writer: BatchWriter,
    log_stream: LogStream,
    source: str,
    snapshot: LogFile,
    healing: Healing,
    query_id: str,
) -> int:
    """Process a snapshot as a batch that heals, and return the number of rows read."""
    begin = entry_at(source, snapshot)
    end = entry_at(source, snapshot, log_stream.directory(source).ends.end_of(snapshot, closed=True).position)
    segments = segments_between(log_stream, {healing.replicaset_uuid: begin}, {healing.replicaset_uuid: end})
    rows, _ = writer.process(segments, BatchName(query_id, 0), healing, log_stream)
    return rows


def row_hashes_after(
    directory: Directory, listing: Listing, snapshot: LogFile, id_translation: Mapping[int, int]
) -> pa.Table:
    """Return the replica ids, lsns and hashes (`LSN_HASHES`) of the rows in a source's logs after a snapshot."""
    first = newest_index_at_most(listing.logs, snapshot.vclock, with_local=True)
    wanted = Selection(from_vclock=snapshot.vclock)
    parts: list[pa.Table] = []
    for file in listing.logs[first or 0 :]:
        end = directory.ends.end_of(file, closed=False).position
        rows = reader.read_rows(
            *directory.locate(file.name),
            file.header_bytes,
            end,
            wanted,
            directory.mode,
            limits=directory.limits,
        )
        for batch in rows:
            own = [id_translation.get(i, i) for i in batch.column("replica_id").to_pylist()]
            columns = [pa.array(own, pa.int32()), batch.column("lsn"), row_hashes(batch)]
            found = pa.Table.from_arrays(columns, names=LSN_HASHES.names)
            parts.append(found.filter(pa.array([i is not None for i in own])).cast(LSN_HASHES))
    return pa.concat_tables(parts) if parts else LSN_HASHES.empty_table()


def gap_texts(gaps: Iterable[Mapping[str, Any]]) -> str:
    """Return a text for messages that describes rows of `_gaps`."""
    return "; ".join(str(gap_of(row)) for row in gaps)


def read_spaces_again(
    config: Config,
    warehouse: Warehouse,
    writer: BatchWriter,
    spaces: Sequence[str],
    source: str | None,
    query_id: str,
    cores: int = 1,
) -> str:
    """Read some spaces again from snapshots, and return a report: which sources had the spaces, and which had not.

    By default one source of each replicaset with such a space is read. To `query_id` the replicaset id is appended.

    Raises:
        SourceError: No snapshot has one of the spaces, or the tables have not reached it; nothing was read.
    """
    sources = [source] if source is not None else _sources_leaders_first(config, writer.state)
    found, reasons = _find_snapshots(config, writer, spaces, sources, cores)
    missing = [space for space in spaces if not any(space in one.space_names.values() for one in found)]
    if missing:
        raise _missing_spaces_error(missing, found, reasons)
    texts = []
    for one in found:
        try:
            texts.append(_read_spaces(warehouse, writer, one, f"{query_id} {one.replicaset.id}"))
        except UnsupportedError as error:
            raise _with_daemon_asked(config, one.source, error) from error
    for one in found:
        lacking = [space for space in spaces if space not in one.space_names.values()]
        if lacking:
            texts.append(f"{one.source}: {one.snapshot.name} has no space {', '.join(lacking)}")
    return "; ".join([*texts, *(_not_read_text(reason) for reason in reasons)])


@dataclass(frozen=True)
class SpacesInSnapshot:
    """The snapshot of a source that has some of the spaces."""

    source: str
    log_stream: LogStream
    """Of this source alone."""
    listing: Listing
    replicaset: ReplicasetState
    snapshot: LogFile
    space_names: Mapping[int, str]
    """By space id, the names of those spaces that the snapshot has; never empty."""


def sources_with_spaces(
    config: Config, writer: BatchWriter, spaces: Sequence[str], cores: int = 1
) -> dict[str, str]:
    """Return, by replicaset uuid, a source whose newest snapshot has some of the spaces."""
    names = _sources_leaders_first(config, writer.state)
    found, _ = _find_snapshots(config, writer, spaces, names, cores)
    return {one.replicaset.uuid: one.source for one in found}


def _sources_leaders_first(config: Config, state: State) -> list[str]:
    leaders = {one.last_source for one in state.replicasets.values()}
    return sorted((one.name for one in config.sources), key=lambda name: name not in leaders)


def _find_snapshots(
    config: Config, writer: BatchWriter, spaces: Sequence[str], sources: Sequence[str], cores: int
) -> tuple[list[SpacesInSnapshot], list[SourceError]]:
    """Return for each replicaset the source whose snapshot has most of the spaces, and why others are not used."""
    found: dict[str, SpacesInSnapshot] = {}
    reasons: list[SourceError] = []
    for source in sources:
        try:
            log_stream = source_log_stream(config, writer, source, cores)
            directory = log_stream.directory(source)
            listing = directory.listing()
            known = known_replicaset(writer, directory, listing)
            if known is None:
                raise SourceError(
                    "its replicaset has no tables yet", source=source, advice="start the stream"
                )
            best = len(found[known.uuid].space_names) if known.uuid in found else 0
            if best == len(set(spaces)):
                continue
            snapshot = newest_usable_snapshot(directory, listing, known, source)
            ids = space_names_by_id(directory, snapshot, spaces)
            if not ids:
                raise _no_spaces_error(spaces, source, snapshot)
        except SourceError as error:
            reasons.append(_with_daemon_asked(config, source, error))
            continue
        if len(ids) > best:
            found[known.uuid] = SpacesInSnapshot(source, log_stream, listing, known, snapshot, ids)
    return list(found.values()), reasons


def _with_daemon_asked(config: Config, source: str, error: AggregatorError) -> SourceError:
    """Return an error about a source's snapshot; if the source is a spool, ask its daemon for a new one."""
    folder = next((local_folder(one.path) for one in config.sources if one.name == source), None)
    fields = {**error.fields, "source": source}
    if folder is not None and is_spool(folder):
        ask_for_snapshot(folder)
        fields["advice"] = "the daemon was asked for a new snapshot; ask again when it is in the spool"
    return SourceError(error.reason, **fields)


def _no_spaces_error(spaces: Sequence[str], source: str, snapshot: LogFile) -> SourceError:
    return SourceError(
        f"the snapshot has none of the spaces {', '.join(spaces)}",
        source=source,
        file=snapshot.name,
        advice="take a new one: box.snapshot()",
    )


def _missing_spaces_error(
    missing: Sequence[str], found: Sequence[SpacesInSnapshot], reasons: Sequence[SourceError]
) -> SourceError:
    if not found and len(reasons) == 1:
        return reasons[0]
    looked = [
        f"{one.source}: {one.snapshot.name} has only {', '.join(one.space_names.values())}" for one in found
    ]
    return SourceError(
        f"no snapshot has the space {', '.join(missing)}; nothing was read: "
        + "; ".join([*looked, *(_not_read_text(reason) for reason in reasons)]),
        advice="is the name right? Else take a new one: box.snapshot()",
    )


def _not_read_text(reason: SourceError) -> str:
    file = reason.fields.get("file")
    return f"{reason.fields.get('source')}: not read: {reason.reason}" + (f" ({file})" if file else "")


def _read_spaces(warehouse: Warehouse, writer: BatchWriter, found: SpacesInSnapshot, query_id: str) -> str:
    source, log_stream, snapshot, ids = found.source, found.log_stream, found.snapshot, found.space_names
    directory, known = log_stream.directory(source), writer.state.replicasets[found.replicaset.uuid]
    log_stream.options = replace(log_stream.options, space_ids=ALWAYS_READ_SPACES | ids.keys())
    healing = plan_healing(
        *(warehouse.open_tables, known, source, without_local(snapshot.vclock)),
        lambda: row_hashes_after(directory, found.listing, snapshot, known.id_translations.get(source, {})),
        frozenset(ids),
    )
    rows = read_snapshot(writer, log_stream, source, snapshot, healing, query_id)
    message = f"{source}: {', '.join(sorted(ids.values()))} read from {snapshot.name}: {rows} rows, "
    message += f"and {sum(healing.reapplied_counts.values())} later rows applied again"
    now = writer.state.replicasets[known.uuid].refused
    for space_id in ids.keys() & now.keys():
        message += f"; {ids[space_id]} is refused: {now[space_id]}"
    if healing.left_open:
        message += f"; its replicaset still diverges, see --heal: {gap_texts(healing.left_open)}"
    return message


def newest_usable_snapshot(
    directory: Directory, listing: Listing, replicaset: ReplicasetState, source: str
) -> LogFile:
    """Return the newest complete snapshot whose vclock the tables have reached; raise SourceError if none is there."""
    ids = replicaset.id_translations.get(source, {})
    for file in reversed(directory.complete_snapshots(listing.snapshots)):
        vclock = {ids.get(i, i): lsn for i, lsn in without_local(file.vclock).items()}
        if is_at_most(vclock, replicaset.settled):
            return file
    raise SourceError(
        f"there is no complete snapshot that the tables, at {dict(replicaset.settled)}, have reached",
        source=source,
        advice="wait until the stream has reached the newest one, or take one: box.snapshot(); then ask again",
    )


def space_names_by_id(directory: Directory, snapshot: LogFile, spaces: Sequence[str]) -> dict[int, str]:
    """Return by space id the names of the given spaces, only of those that a snapshot has."""
    found = {}
    wanted = Selection(space_ids=frozenset({int(SystemSpace.SPACE)}))
    for batch in reader.read_rows(
        *directory.locate(snapshot.name), selection=wanted, limits=directory.limits
    ):
        for packed in batch.column("tuple").to_pylist():
            try:
                space = space_of(fields_of(packed, "a row of _space"), None)
            except TupleError:
                continue  # malformed; no server writes such a row
            if space.name in spaces:
                found[space.id] = space.name
    return found


def newly_included_spaces(config: Config, state: State) -> dict[str, list[str]]:
    """Return the names of spaces that the configuration now includes and before excluded, by replicaset uuid."""
    route = build_router(config.spaces, check_space)
    found: dict[str, list[str]] = {}
    for uuid, one in state.replicasets.items():
        for space_id, rows in one.spaces.items():
            refused = one.refused.get(space_id)
            if space_id in one.tables or (refused is not None and refused != WAS_LEFT_OUT):
                continue
            space = rows.decoded()
            table = route(one.id, space, (), False)
            if table is not None and not isinstance(table, Refusal):
                found.setdefault(uuid, []).append(space.name)
    return found
