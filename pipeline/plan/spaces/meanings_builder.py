"""Builds the history of a batch: what each space id means at each position.

Pure: definitions before the batch, their changes in log order, and a router in; a `History` out.
`pipeline.plan.spaces.system_rows` decodes the system rows, `pipeline.plan.spaces.tables` chooses the columns of tables.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge

from config.spaces import OnDdl
from pipeline.plan.rows.position import BEGINNING, LogPosition
from pipeline.plan.spaces.meanings import (
    NO_TABLE,
    Era,
    History,
    Lineage,
    Meaning,
    Refusal,
    SchemaVersion,
    SpaceKey,
)
from pipeline.plan.spaces.router import Router, TableOwner, TableOwners
from pipeline.plan.spaces.system_rows import SpaceChange
from pipeline.plan.spaces.undefined import UnknownRange, UnknownRanges
from pipeline.state import SpaceDefinition
from schemas.errors import UnsupportedError
from schemas.space import KeyParts, Space, key_parts
from schemas.states import HELD_PREFIX, SpaceEvent, is_held

WAS_LEFT_OUT = "it was left out before, so its earlier rows are not here; `aggregator snapshot` reads them"
"""The reason to refuse a space that the configuration includes now, and excluded before."""

ENGINES_IN_SNAPSHOTS = ("memtx", "blackhole")
"""Engines whose rows are all in the snapshot file, or that store no rows (blackhole). The rows of vinyl are in other
files, and those of an engine that is not known here may be."""


@dataclass(frozen=True)
class SpacesBefore:
    """The spaces of a replicaset before a batch."""

    spaces: Mapping[int, SpaceDefinition] = field(default_factory=dict)
    """By space id, the spaces with rows or events in the batch."""
    refusal_reasons: Mapping[int, str] = field(default_factory=dict)
    tables: Mapping[int, str] = field(default_factory=dict)
    """For each space of the replicaset, the table that has its versions."""
    primary_keys: Mapping[int, frozenset[KeyParts]] = field(default_factory=dict)
    """For each space, all primary keys that it has had so far."""
    applied_definitions: Mapping[int, Space] = field(default_factory=dict)
    """For each refused space that has rows in its table, the definition by which they were applied."""


def build_history(
    before: Mapping[int, SpacesBefore],
    changes: Mapping[int, Iterable[SpaceChange]],
    router: Router,
    snapshot_segments: frozenset[int] = frozenset(),
    vinyl_spaces: Mapping[int, frozenset[int]] | None = None,
    undefined_ranges: Mapping[int, UnknownRanges] | None = None,
    owners: TableOwners | None = None,
    on_ddl: Callable[[str], OnDdl] = lambda _name: "evolve",
) -> History:
    """Return what each space id means at each position of a batch.

    Args:
        snapshot_segments: Segments that are snapshots without the rows of vinyl spaces.
        vinyl_spaces: For each of these segments, ids of the vinyl spaces whose rows are read with it, from other files.
        owners: The spaces that have rows in tables, but neither rows nor events in the batch.
        on_ddl: What a DROP or TRUNCATE of the space with this name does.

    Raises:
        UnsupportedError: There is one, and the configuration refuses it.
    """
    owners = owners or TableOwners()
    builder = _HistoryBuilder(router, snapshot_segments, vinyl_spaces or {}, owners, on_ddl)
    for replicaset_id, known in before.items():
        for space_id in known.tables.keys() - known.spaces.keys():
            owners.reserve(replicaset_id, known.tables[space_id], space_id)
        for space_id, rows in known.spaces.items():
            builder.add_space(replicaset_id, space_id, rows.decoded(), known)
    events = ([(number, change) for change in own] for number, own in changes.items())
    for replicaset_id, change in merge(*events, key=lambda event: event[1].position):
        builder.apply_change(replicaset_id, change)
    for replicaset_id, spaces in (undefined_ranges or {}).items():
        for space_id, ranges in spaces.items():
            for one in ranges:
                builder.apply_early_rows((replicaset_id, space_id), one)
    return builder.build()


@dataclass
class _SpaceTrack:
    """The state of a space id between two events."""

    definitions: list[Space] = field(default_factory=list)
    primary_keys: frozenset[KeyParts] = frozenset()
    lineage: int = NO_TABLE
    """The lineage's number; `NO_TABLE` if no table has versions of the space."""
    refusal_reason: str | None = None
    """Why the space is refused; None if it is not."""
    is_applied: bool = False
    """Whether the space's rows change its table."""
    is_left_out: bool = False


def _ddl_text(change: SpaceChange) -> str:
    what = "DROP" if change.kind is SpaceEvent.DROPPED else "TRUNCATE, or DROP of the primary index"
    return f"{what} (replica id {change.replica_id}, lsn {change.lsn})"


class _HistoryBuilder:
    def __init__(
        self,
        router: Router,
        snapshots: frozenset[int],
        vinyl: Mapping[int, frozenset[int]],
        owners: TableOwners,
        on_ddl: Callable[[str], OnDdl],
    ) -> None:
        self._on_ddl = on_ddl
        self._router, self._snapshots, self._vinyl, self._owners = router, snapshots, vinyl, owners
        self._versions: list[SchemaVersion] = []
        self._lineages: list[Lineage] = []
        self._meanings: dict[SpaceKey, list[Meaning]] = {}
        self._tracks: dict[SpaceKey, _SpaceTrack] = {}

    def add_space(self, replicaset_id: int, space_id: int, space: Space, known: SpacesBefore) -> None:
        """Add a space with its definition before the batch."""
        key = (replicaset_id, space_id)
        base = known.tables.get(space_id)
        keys = known.primary_keys.get(space_id, _primary_keys(space))
        track = self._tracks[key] = _SpaceTrack([space], keys)
        table = self._router(replicaset_id, space, (), False)
        refused = known.refusal_reasons.get(space_id)
        if table is not None and refused is not None:
            table = Refusal(*key, space.name, refused)
        if isinstance(table, str) and base is None:
            table = Refusal(*key, space.name, WAS_LEFT_OUT)
        if isinstance(table, str) and self._owners.is_taken(replicaset_id, table, space_id):
            table = _refuse_taken_table(key, space, table)
        if isinstance(table, str):
            self._begin_lineage(key, track, space, table, BEGINNING, base=base)
        elif isinstance(table, Refusal):
            track.refusal_reason = table.reason
            self._add_frozen_lineage(key, track, known.applied_definitions.get(space_id, space), base)
            if track.lineage != NO_TABLE and is_held(table.reason):
                # Rows that are not applied still show the name of their space in `_changelog`.
                self._add_meaning(key, Meaning(BEGINNING, self._lineages[track.lineage].eras[0].version))
        else:
            track.is_left_out = bool(space.primary_key)

    def apply_change(self, replicaset_id: int, change: SpaceChange) -> None:
        """Apply an event of a space."""
        key = (replicaset_id, change.space_id)
        track = self._tracks.setdefault(key, _SpaceTrack())
        space = change.definition.decoded()
        if change.kind is SpaceEvent.DEFINED:
            self._define_space(key, track, space, change.position)
            return
        if change.kind is SpaceEvent.HELD:
            self._hold_space(key, track, change)
            return
        if change.kind is SpaceEvent.RENEWED and self._has_unread_rows(space, change.position):
            return  # the snapshot's own definition of the space refuses it
        if change.kind is SpaceEvent.RENEWED and track.is_applied:
            lineage = self._lineages[track.lineage]
            self._lineages[track.lineage] = replace(lineage, is_renewed=True)
            return
        if self._is_held_at(track, change):
            reason = f"{HELD_PREFIX}: {_ddl_text(change)}, and on_ddl is hold"
            self._hold_space(key, track, replace(change, reason=reason))
            return
        self._end_versions(key, track, change.position)
        if change.kind is SpaceEvent.DROPPED or not (space.primary_key or space.fault):
            # Without its primary index a space has no tuples; with the next one another lineage begins.
            self._stop_lineage(key, track, change.position, is_alive=False)
            self._tracks[key] = _SpaceTrack()
        elif not track.is_applied:
            # Earlier rows of the space are missing, but now it is empty: its rows can be applied from here on.
            self._stop_lineage(key, track, change.position, is_alive=False)
            self._tracks[key] = _SpaceTrack()
            self._define_space(key, self._tracks[key], space, change.position)

    def _is_held_at(self, track: _SpaceTrack, change: SpaceChange) -> bool:
        """Return whether a DROP or TRUNCATE holds a space, or the space is held already by an earlier one."""
        is_ddl = change.kind in (SpaceEvent.DROPPED, SpaceEvent.TRUNCATED)
        if not is_ddl or not track.definitions:
            return False
        name = track.definitions[-1].name
        setting = self._on_ddl(name)
        if setting == "refuse" and track.is_applied:
            raise UnsupportedError(
                f"{_ddl_text(change)}, and on_ddl is refuse",
                space=name,
                advice="set on_ddl to evolve (the table follows) or hold (it stays as it is), and start again",
            )
        if setting == "evolve":
            return False
        return track.is_applied or is_held(track.refusal_reason or "")

    def _define_space(self, key: SpaceKey, track: _SpaceTrack, space: Space, position: LogPosition) -> None:
        before = track.definitions[-1] if track.definitions else None
        is_known = before == space and (track.is_applied or track.refusal_reason or track.is_left_out)
        if is_known and not (track.is_applied and self._has_unread_rows(space, position)):
            return
        table = self._choose_table(key, track, space, position)
        track.definitions.append(space)
        track.primary_keys |= _primary_keys(space)
        if isinstance(table, str) and track.is_applied:
            self._redefine_space(key, track, before, space, table, position)
        elif isinstance(table, str):
            self._begin_lineage(key, track, space, table, position)
        elif isinstance(table, Refusal):
            renamed = before is not None and before.name != space.name and not track.is_applied
            if renamed:
                self._end_versions(key, track, position)
            self._stop_lineage(key, track, position, is_alive=not renamed)
            track.refusal_reason, track.is_left_out = table.reason, False
        else:
            # The space has left its table: it was renamed to an excluded name, or has become local or temporary.
            self._end_versions(key, track, position)
            self._stop_lineage(key, track, position, is_alive=False)
            track.is_left_out, track.refusal_reason = bool(space.primary_key), None

    def _choose_table(
        self, key: SpaceKey, track: _SpaceTrack, space: Space, position: LogPosition
    ) -> str | Refusal | None:
        table = self._router(key[0], space, track.definitions, self._has_unread_rows(space, position))
        if not isinstance(table, str):
            return table
        if track.refusal_reason is not None:
            return Refusal(*key, space.name, track.refusal_reason)
        if track.is_left_out:
            reason = "it was left out under another name, so its earlier rows are not here"
            return Refusal(*key, space.name, reason)
        if self._owners.is_taken(key[0], table, key[1]):
            return _refuse_taken_table(key, space, table)
        owner = TableOwner(key[1], space, track.primary_keys | _primary_keys(space))
        contradiction = self._owners.contradiction(key[0], table, owner)
        return table if contradiction is None else Refusal(*key, space.name, contradiction)

    def _has_unread_rows(self, space: Space, position: LogPosition) -> bool:
        """Return whether a snapshot defines a space, but the space's rows are not read with it."""
        if position.segment not in self._snapshots or space.engine in ENGINES_IN_SNAPSHOTS:
            return False
        return space.id not in self._vinyl.get(position.segment, ())

    def _begin_lineage(
        self,
        key: SpaceKey,
        track: _SpaceTrack,
        space: Space,
        table: str,
        position: LogPosition,
        base: str | None = None,
    ) -> None:
        """Begin a lineage; `base` is the table with its versions from before the batch, None if it has none."""
        self._versions.append(SchemaVersion(key[0], space, table))
        number = len(self._versions) - 1
        self._lineages.append(Lineage(*key, base, table, (Era(number),)))
        track.lineage, track.is_applied, track.is_left_out = len(self._lineages) - 1, True, False
        self._owners.claim(key[0], table, TableOwner(key[1], space, track.primary_keys))
        self._add_meaning(key, Meaning(position, number, track.lineage))

    def _add_frozen_lineage(self, key: SpaceKey, track: _SpaceTrack, space: Space, base: str | None) -> None:
        """Add the lineage of a refused space, whose versions stay unchanged in the table `base` (None: it has none)."""
        if base is None:
            return
        self._versions.append(SchemaVersion(key[0], space, base))
        self._lineages.append(Lineage(*key, base, base, (Era(len(self._versions) - 1),)))
        track.lineage = len(self._lineages) - 1
        self._owners.claim(key[0], base, TableOwner(key[1], space))

    def _redefine_space(
        self,
        key: SpaceKey,
        track: _SpaceTrack,
        before: Space | None,
        space: Space,
        table: str,
        position: LogPosition,
    ) -> None:
        lineage, last = self._lineages[track.lineage], self._meanings[key][-1]
        self._versions.append(SchemaVersion(key[0], space, table))
        number, era = len(self._versions) - 1, last.era
        if before is None or key_parts(before.primary_key) != key_parts(space.primary_key):
            era += 1
            lineage = replace(lineage, eras=(*lineage.eras, Era(number, last.truncations)))
        self._owners.release(key[0], lineage.table)
        self._lineages[track.lineage] = replace(lineage, table=table)
        self._owners.claim(key[0], table, TableOwner(key[1], space, track.primary_keys))
        self._add_meaning(key, Meaning(position, number, track.lineage, era, last.truncations))

    def _end_versions(self, key: SpaceKey, track: _SpaceTrack, position: LogPosition) -> None:
        """Record a truncation: it ends all versions of a lineage."""
        if track.lineage == NO_TABLE:
            return
        lineage = self._lineages[track.lineage]
        self._lineages[track.lineage] = replace(lineage, truncations=lineage.truncations + 1)
        if track.is_applied:
            last = self._meanings[key][-1]
            self._add_meaning(key, replace(last, since=position, truncations=last.truncations + 1))

    def _stop_lineage(
        self, key: SpaceKey, track: _SpaceTrack, position: LogPosition, *, is_alive: bool
    ) -> None:
        """Stop updating a lineage's table. With `is_alive` the versions stay in it; else the lineage ends."""
        if track.is_applied:
            self._add_meaning(key, Meaning(position))
        if track.lineage != NO_TABLE:
            lineage = self._lineages[track.lineage]
            if is_alive:
                self._owners.freeze(key[0], lineage.table)
            else:
                self._lineages[track.lineage] = replace(lineage, ended=position)
                self._owners.release(key[0], lineage.table)
                track.lineage = NO_TABLE
        track.is_applied = False

    def _hold_space(self, key: SpaceKey, track: _SpaceTrack, change: SpaceChange) -> None:
        """Refuse a space from the first row that cannot be applied; `_changelog` still names it in later rows."""
        if not track.is_applied:
            return
        version = self._meanings[key][-1].version
        self._stop_lineage(key, track, change.position, is_alive=True)
        self._add_meaning(key, Meaning(change.position, version))
        track.refusal_reason = change.reason

    def _add_meaning(self, key: SpaceKey, meaning: Meaning) -> None:
        meanings = self._meanings.setdefault(key, [])
        if meanings and meanings[-1].since == meaning.since:
            meanings.pop()
        meanings.append(meaning)

    def apply_early_rows(self, key: SpaceKey, undefined_range: UnknownRange) -> None:
        """Give rows that come before their space's definition the meaning that the space has from there on."""
        meanings = self._meanings.get(key, [])
        indices = [
            i
            for i, one in enumerate(meanings)
            if one.since == undefined_range.end and one.lineage != NO_TABLE
        ]
        if undefined_range.outcome != "applied" or not indices:
            return
        (index,) = indices
        before = meanings[index - 1].since if index else None
        early = replace(meanings[index], since=undefined_range.begin, is_early=True)
        meanings[index - (before == undefined_range.begin) : index] = [early]

    def build(self) -> History:
        """Return the history of all spaces added so far."""
        applied = [key for key, track in self._tracks.items() if track.is_applied]
        lineages = {k: track.lineage for k, track in self._tracks.items() if track.lineage != NO_TABLE}
        tables = {key: self._lineages[lineage].table for key, lineage in lineages.items()}
        refusals = [
            Refusal(*key, track.definitions[-1].name, track.refusal_reason)
            for key, track in self._tracks.items()
            if track.refusal_reason is not None
        ]
        return History(
            tuple(self._versions),
            tuple(self._lineages),
            {key: tuple(meanings) for key, meanings in self._meanings.items()},
            tuple(refusals),
            tables,
            {key: self._meanings[key][-1].version for key in applied},
            {key: track.primary_keys for key, track in self._tracks.items()},
            frozenset(self._tracks),
        )


def _primary_keys(space: Space) -> frozenset[KeyParts]:
    return frozenset([key_parts(space.primary_key)] if space.primary_key else [])


def _refuse_taken_table(key: SpaceKey, space: Space, table: str) -> Refusal:
    return Refusal(*key, space.name, f"another space of its replicaset goes to the table {table} already")
