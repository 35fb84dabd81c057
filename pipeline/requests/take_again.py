"""Reads single spaces again from a snapshot, while all other spaces and the stream continue.

This is for a space whose earlier rows are missing: one that `spaces.include` left out before, one that was refused
and can be followed now, or one whose definition is in no file that was read. The newest snapshot that the tables have
reached gives the space's rows; later rows are reapplied from `_changelog` (`pipeline.requests.generation`).
`pipeline.requests.heal` does this for a whole replicaset.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from config.deployment import Config
from pipeline.batch import BatchWriter
from pipeline.plan.history import WAS_LEFT_OUT, Refusal
from pipeline.plan.router import build_router
from pipeline.plan.tables import check_space
from pipeline.requests.generation import plan_healing
from pipeline.requests.heal import gap_texts, hashes_after, known_replicaset, read_snapshot
from pipeline.requests.read_again import follower_of
from pipeline.state import ReplicasetState, State
from schemas.errors import AggregatorError, SourceError, TupleError
from schemas.iproto import SystemSpace
from schemas.space import space_of
from schemas.system_tuples import fields_of
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import Listing, LogFile
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import not_beyond, shared
from sources.xlog.reader import reader
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)

CONTROL = frozenset(int(space) for space in (SystemSpace.SPACE, SystemSpace.INDEX, SystemSpace.CLUSTER))
"""System spaces that are read with a space."""


def read_spaces_again(
    config: Config,
    warehouse: Warehouse,
    writer: BatchWriter,
    spaces: Sequence[str],
    source: str | None,
    name: str,
    cores: int = 1,
) -> str:
    """Read some spaces from a snapshot, and return a report.

    Parameters
    ----------
    writer : BatchWriter
        The caller has acquired its lock `between`.
    spaces : sequence of str
        Names of spaces in Tarantool.
    source : str or None
        The source's name in the configuration; by default one source of each replicaset with such a space.
    name : str
        The query id of the batches in `_epochs`, without the replicaset's number.
    cores : int
        The number of tasks that read at a time.

    Raises
    ------
    ConfigurationError
        There is no such source.
    SourceError
        No snapshot has the spaces, or the tables have not reached any.
    UnsupportedError
        The snapshot cannot be used.

    """
    sources = [source] if source is not None else _sources(config, writer.state)
    done: dict[str, str] = {}
    reasons: list[AggregatorError] = []
    for one in sources:
        try:
            uuid, message = _read_source(
                config, warehouse, writer, spaces, one, (name, frozenset(done)), cores
            )
            done[uuid] = message or done.get(uuid, "")
        except SourceError as error:
            reasons.append(error)
    if not done:
        raise reasons[0]
    for reason in reasons:
        log.warning("%s", reason)
    return "; ".join(message for message in done.values() if message)


def _sources(config: Config, state: State) -> list[str]:
    """Return the names of the sources; those that the stream reads now come first."""
    leaders = {one.last_source for one in state.replicasets.values()}
    return sorted((one.name for one in config.sources), key=lambda name: name not in leaders)


def _read_source(
    config: Config,
    warehouse: Warehouse,
    writer: BatchWriter,
    spaces: Sequence[str],
    source: str,
    batch: tuple[str, frozenset[str]],
    cores: int,
) -> tuple[str, str | None]:
    """Read some spaces of one source; return its replicaset, and a report, None if the replicaset is in `batch[1]`."""
    name, done = batch
    follower = follower_of(config, writer, source, cores)
    directory = follower.directory(source)
    listing = directory.listing()
    known = known_replicaset(writer, directory, listing)
    if known is None:
        raise SourceError("its replicaset has no tables yet", source=source, advice="start the stream")
    if known.uuid in done:
        return known.uuid, None
    snapshot = newest_usable_snapshot(directory, listing, known, source)
    ids = space_ids(directory, snapshot, spaces)
    if not ids:
        raise SourceError(
            f"the snapshot has none of the spaces {', '.join(spaces)}",
            source=source,
            file=snapshot.name,
            advice="take a new one: box.snapshot()",
        )
    follower.options = replace(follower.options, spaces=CONTROL | ids.keys())
    healing = plan_healing(
        *(warehouse.open_tables, known, source, shared(snapshot.vclock)),
        lambda: hashes_after(directory, listing, snapshot, known.id_translations.get(source, {})),
        frozenset(ids),
    )
    rows = read_snapshot(writer, follower, source, snapshot, healing, f"{name} {known.id}")
    message = f"{source}: {', '.join(sorted(ids.values()))} read from {snapshot.name}: {rows} rows, "
    message += f"and {sum(healing.counts.values())} later rows applied again"
    now = writer.state.replicasets[known.uuid].refused
    for space_id in ids.keys() & now.keys():
        message += f"; {ids[space_id]} is refused: {now[space_id]}"
    if healing.left_open:
        message += f"; its replicaset still diverges, see --heal: {gap_texts(healing.left_open)}"
    return known.uuid, message


def newest_usable_snapshot(
    directory: Directory, listing: Listing, known: ReplicasetState, source: str
) -> LogFile:
    """Return the newest complete snapshot that the tables have reached.

    Raises
    ------
    SourceError
        There is no such snapshot.

    """
    ids = known.id_translations.get(source, {})
    for file in reversed(directory.complete_snapshots(listing.snapshots)):
        vclock = {ids.get(i, i): lsn for i, lsn in shared(file.vclock).items()}
        if not_beyond(vclock, known.settled):
            return file
    raise SourceError(
        f"there is no complete snapshot that the tables, at {dict(known.settled)}, have reached",
        source=source,
        advice="wait until the stream has reached the newest one, or take one: box.snapshot(); then ask again",
    )


def space_ids(directory: Directory, snapshot: LogFile, spaces: Sequence[str]) -> dict[int, str]:
    """Return the names of those spaces that a snapshot has, by space id."""
    found = {}
    wanted = Selection(spaces=frozenset({int(SystemSpace.SPACE)}))
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
    """Return the spaces that the configuration includes now and excluded before, by replicaset uuid."""
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
