"""What a space id of a replicaset means at each place of a batch: which definition, which table, which tuples are gone.

Pure: definitions before the batch, their changes in log order, and the routing of the configuration in; a `History`
out. The meaning of a row depends on its place in the log alone, so it does not matter where a log is cut into
batches.

A *lineage* is a space from its creation to its drop. Its versions are reduced under it, whatever it is called on the
way: a rename changes only the table in which they are at the end. A truncation, or the drop, ends all of its versions;
a changed primary key begins an *era*, in which the versions so far continue under new keys.

Not here: reading system rows (`pipeline.plan.control`), columns of tables (`pipeline.plan.tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pipeline.plan.control import SpaceChange, SpaceDefinition
from pipeline.plan.position import BEGINNING, LogPosition
from pipeline.plan.unknown import UnknownRange, UnknownRanges
from schemas.space import KeyParts, Space, key_parts
from schemas.states import SpaceEvent, is_held

NO_TABLE = -1
"""The schema version, or the lineage, of rows that go to no table."""

WAS_LEFT_OUT = "it was left out before, so its earlier rows are not here; `aggregator snapshot` reads them"
"""Why a space is refused that the configuration wants now, and did not want before."""
IN_SNAPSHOTS = ("memtx", "blackhole")
"""Engines whose rows a snapshot holds, or that hold none. Vinyl's are in files of its own, and others' may be."""

_OTHER_SPACE = -2
"""Stands for the lineage of a space without rows in the batch."""


@dataclass(frozen=True)
class SchemaVersion:
    """One definition of a space in one replicaset, and the table that its rows go to."""

    replicaset_id: int
    space: Space
    table: str


@dataclass(frozen=True)
class Meaning:
    """What a space id means from a place on.

    Parameters
    ----------
    since : LogPosition
    version : int
        Number of the schema version, `NO_TABLE` where rows go to no table.
    lineage : int
        Number of the lineage, `NO_TABLE` likewise.
    era : int
        Number of the key definition within the lineage.
    truncations : int
        How many events before this place have ended all versions of the lineage.
    is_early : bool
        Whether rows with it come before the definition of their space.

    """

    since: LogPosition
    version: int = NO_TABLE
    lineage: int = NO_TABLE
    era: int = 0
    truncations: int = 0
    is_early: bool = False


class Era(NamedTuple):
    """A part of a lineage with one primary key.

    Parameters
    ----------
    version : int
        The schema version that begins it.
    truncations : int
        How many events had ended all versions before it began.

    """

    version: int
    truncations: int = 0


@dataclass(frozen=True)
class Lineage:
    """A space from its creation, or the beginning of the batch, to its drop, or the end of the batch.

    Parameters
    ----------
    replicaset_id, space_id : int
    base_table : str or None
        The table where its versions are before the batch; None where it has none.
    table : str
        The table where they are at the end, or where they were when it ended.
    eras : tuple of Era
        At least one.
    truncations : int
        How many events ended all versions.
    ended : LogPosition or None
        Where it ended; None where it can have versions at the end.
    is_renewed : bool
        Whether a snapshot behind a hole says again what it holds.

    """

    replicaset_id: int
    space_id: int
    base_table: str | None
    table: str
    eras: tuple[Era, ...]
    truncations: int = 0
    ended: LogPosition | None = None
    is_renewed: bool = False

    @property
    def leaves_base(self) -> bool:
        """Whether the versions before the batch do not stay where they are."""
        return self.base_table is not None and self.table != self.base_table

    @property
    def changes_base(self) -> bool:
        """Whether versions change that no row of the batch names."""
        moved = self.leaves_base or len(self.eras) > 1
        return self.base_table is not None and (self.truncations > 0 or self.is_renewed or moved)

    def truncations_in(self, era: int) -> int:
        """Return how many events ended all versions within an era."""
        after = self.eras[era + 1].truncations if era + 1 < len(self.eras) else self.truncations
        return after - self.eras[era].truncations


@dataclass(frozen=True)
class Refusal:
    """A space that is followed in `_changelog` only, and why."""

    replicaset_id: int
    space_id: int
    name: str
    reason: str


@dataclass(frozen=True)
class History:
    """What the space ids of all replicasets of a batch mean.

    Parameters
    ----------
    versions : tuple of SchemaVersion
        A row's schema version is its number in here.
    lineages : tuple of Lineage
    meanings : mapping of (int, int) to tuple of Meaning
        (replicaset id, space id) to its meanings, in log order.
    refusals : tuple of Refusal
        Those at the end of the batch.
    tables : mapping of (int, int) to str
        (replicaset id, space id) to the table where its versions are at the end.
    current : mapping of (int, int) to int
        (replicaset id, space id) to its schema version at the end, of spaces that go to a table.
    primary_keys : mapping of (int, int) to frozenset
        (replicaset id, space id) to the primary keys that the space, as it is at the end, has had.
    tracked : frozenset of (int, int)
        Every (replicaset id, space id) with rows or events in the batch.

    """

    versions: tuple[SchemaVersion, ...] = ()
    lineages: tuple[Lineage, ...] = ()
    meanings: Mapping[tuple[int, int], tuple[Meaning, ...]] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    tables: Mapping[tuple[int, int], str] = field(default_factory=dict)
    current: Mapping[tuple[int, int], int] = field(default_factory=dict)
    primary_keys: Mapping[tuple[int, int], frozenset[KeyParts]] = field(default_factory=dict)
    tracked: frozenset[tuple[int, int]] = frozenset()


Router = Callable[[int, Space, Sequence[Space], bool], str | Refusal | None]
"""(replicaset id, definition, definitions before it, whether a snapshot defines it of which only memtx rows are read)
to the table's name, a refusal, or None for a space that is left out by rule."""


@dataclass(frozen=True)
class SpacesBefore:
    """The spaces of a replicaset before a batch.

    Parameters
    ----------
    spaces : mapping of int to SpaceDefinition
        By space id: those with rows or events in the batch.
    refused : mapping of int to str
        Space id to the reason why rows of it are missing already.
    tables : mapping of int to str
        Space id to the table where its versions are; of all spaces.
    primary_keys : mapping of int to frozenset
        Space id to the primary keys that the space has had.

    """

    spaces: Mapping[int, SpaceDefinition] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    tables: Mapping[int, str] = field(default_factory=dict)
    primary_keys: Mapping[int, frozenset[KeyParts]] = field(default_factory=dict)


def build_history(
    before: Mapping[int, SpacesBefore],
    changes: Mapping[int, Iterable[SpaceChange]],
    router: Router,
    snapshots: frozenset[int] = frozenset(),
    vinyl: Mapping[int, frozenset[int]] | None = None,
    unknown: Mapping[int, UnknownRanges] | None = None,
) -> History:
    """Return the history of a batch.

    Parameters
    ----------
    before : mapping of int to SpacesBefore
        By replicaset id.
    changes : mapping of int to iterable of SpaceChange
        By replicaset id, in log order.
    router : Router
    snapshots : frozenset of int
        Segments that are snapshots without the rows of vinyl spaces.
    vinyl : mapping of int to frozenset of int, optional
        Such a segment to the ids of the vinyl spaces whose rows are read with it all the same.
    unknown : mapping of int to mapping, optional
        By replicaset id: where spaces are unknown.

    """
    writer = _HistoryBuilder(router, snapshots, vinyl or {})
    for replicaset_id, own in before.items():
        writer.reserve_tables(replicaset_id, (t for i, t in own.tables.items() if i not in own.spaces))
        for space_id, rows in own.spaces.items():
            writer.add_space(replicaset_id, space_id, rows.decoded(), own)
    for replicaset_id, events in changes.items():
        for change in events:
            writer.apply_change(replicaset_id, change)
    for replicaset_id, spaces in (unknown or {}).items():
        for space_id, ranges in spaces.items():
            for one in ranges:
                writer.apply_early((replicaset_id, space_id), one)
    return writer.build()


@dataclass
class _SpaceTrack:
    """A space id while its events pass: its definitions so far, and the lineage or the reason that it has now."""

    definitions: list[Space] = field(default_factory=list)
    primary_keys: frozenset[KeyParts] = frozenset()
    lineage: int = NO_TABLE
    reason: str | None = None
    is_followed: bool = False
    is_left_out: bool = False


class _HistoryBuilder:
    def __init__(
        self, router: Router, snapshots: frozenset[int], vinyl: Mapping[int, frozenset[int]]
    ) -> None:
        self._router, self._snapshots, self._vinyl = router, snapshots, vinyl
        self._versions: list[SchemaVersion] = []
        self._lineages: list[Lineage] = []
        self._meanings: dict[tuple[int, int], list[Meaning]] = {}
        self._tracks: dict[tuple[int, int], _SpaceTrack] = {}
        self._owners: dict[tuple[int, str], int] = {}

    def reserve_tables(self, replicaset_id: int, tables: Iterable[str]) -> None:
        """Take tables that belong to spaces without rows in the batch."""
        self._owners.update({(replicaset_id, table): _OTHER_SPACE for table in tables})

    def add_space(self, replicaset_id: int, space_id: int, space: Space, known: SpacesBefore) -> None:
        """Take a space as it is before the batch."""
        key = (replicaset_id, space_id)
        base = known.tables.get(space_id)
        track = self._tracks[key] = _SpaceTrack(
            [space], known.primary_keys.get(space_id, _primary_keys(space))
        )
        table = self._router(replicaset_id, space, (), False)
        refused = known.refused.get(space_id)
        if table is not None and refused is not None:
            table = Refusal(*key, space.name, refused)
        if isinstance(table, str) and base is None:
            table = Refusal(*key, space.name, WAS_LEFT_OUT)
        if isinstance(table, str) and (replicaset_id, table) in self._owners:
            table = _refuse_taken_table(key, space, table)
        if isinstance(table, str):
            self._follow(key, track, space, table, BEGINNING, base=base)
        elif isinstance(table, Refusal):
            track.reason = table.reason
            self._freeze(key, track, space, base)
            if track.lineage != NO_TABLE and is_held(table.reason):
                # Rows that are held keep the name of their space.
                self._add_meaning(key, Meaning(BEGINNING, self._lineages[track.lineage].eras[0].version))
        else:
            track.is_left_out = bool(space.primary_key)

    def apply_change(self, replicaset_id: int, change: SpaceChange) -> None:
        """Take an event."""
        key = (replicaset_id, change.space_id)
        track = self._tracks.setdefault(key, _SpaceTrack())
        space = change.rows.decoded()
        if change.kind is SpaceEvent.DEFINED:
            self._define(key, track, space, change.position)
            return
        if change.kind is SpaceEvent.HELD:
            self._hold(key, track, change)
            return
        if change.kind is SpaceEvent.RENEWED and self._is_unread(space, change.position):
            return  # the definition that the snapshot repeats refuses it
        if change.kind is SpaceEvent.RENEWED and track.is_followed:
            lineage = self._lineages[track.lineage]
            self._lineages[track.lineage] = replace(lineage, is_renewed=True)
            return
        self._end_versions(key, track, change.position)
        if change.kind is SpaceEvent.DROPPED or not (space.primary_key or space.fault):
            # Without its primary index a space has no tuples; with the next one another lineage begins.
            self._stop(key, track, change.position, is_alive=False)
            self._tracks[key] = _SpaceTrack()
        elif not track.is_followed:
            # Rows of it were missing; now it has none, so it can be followed from here on.
            self._stop(key, track, change.position, is_alive=False)
            self._tracks[key] = _SpaceTrack()
            self._define(key, self._tracks[key], space, change.position)

    def _define(self, key: tuple[int, int], track: _SpaceTrack, space: Space, place: LogPosition) -> None:
        before = track.definitions[-1] if track.definitions else None
        is_known = before == space and (track.is_followed or track.reason or track.is_left_out)
        if is_known and not (track.is_followed and self._is_unread(space, place)):
            return
        table = self._route(key, track, space, place)
        track.definitions.append(space)
        track.primary_keys |= _primary_keys(space)
        if isinstance(table, str) and track.is_followed:
            self._redefine(key, track, before, space, table, place)
        elif isinstance(table, str):
            self._follow(key, track, space, table, place)
        elif isinstance(table, Refusal):
            renamed = before is not None and before.name != space.name and not track.is_followed
            if renamed:
                self._end_versions(key, track, place)
            self._stop(key, track, place, is_alive=not renamed)
            track.reason, track.is_left_out = table.reason, False
        else:
            # The space has left its table: it is called otherwise now, or is no space of the replicaset any more.
            self._end_versions(key, track, place)
            self._stop(key, track, place, is_alive=False)
            track.is_left_out, track.reason = bool(space.primary_key), None

    def _route(
        self, key: tuple[int, int], track: _SpaceTrack, space: Space, place: LogPosition
    ) -> str | Refusal | None:
        table = self._router(key[0], space, track.definitions, self._is_unread(space, place))
        if not isinstance(table, str):
            return table
        if track.reason is not None:
            return Refusal(*key, space.name, track.reason)
        if track.is_left_out:
            reason = "it was left out under another name, so its earlier rows are not here"
            return Refusal(*key, space.name, reason)
        if self._owners.get((key[0], table), track.lineage) != track.lineage:
            return _refuse_taken_table(key, space, table)
        return table

    def _is_unread(self, space: Space, place: LogPosition) -> bool:
        """Whether a snapshot defines a space whose rows are not read with it."""
        if place.segment not in self._snapshots or space.engine in IN_SNAPSHOTS:
            return False
        return space.id not in self._vinyl.get(place.segment, ())

    def _follow(
        self,
        key: tuple[int, int],
        track: _SpaceTrack,
        space: Space,
        table: str,
        place: LogPosition,
        base: str | None = None,
    ) -> None:
        """Begin a lineage."""
        self._versions.append(SchemaVersion(key[0], space, table))
        number = len(self._versions) - 1
        self._lineages.append(Lineage(*key, base, table, (Era(number),)))
        track.lineage, track.is_followed, track.is_left_out = len(self._lineages) - 1, True, False
        self._owners[key[0], table] = track.lineage
        self._add_meaning(key, Meaning(place, number, track.lineage))

    def _freeze(self, key: tuple[int, int], track: _SpaceTrack, space: Space, base: str | None) -> None:
        """Take a refused space whose versions stay in a table as they are."""
        if base is None:
            return
        self._versions.append(SchemaVersion(key[0], space, base))
        self._lineages.append(Lineage(*key, base, base, (Era(len(self._versions) - 1),)))
        track.lineage = len(self._lineages) - 1
        self._owners[key[0], base] = track.lineage

    def _redefine(
        self,
        key: tuple[int, int],
        track: _SpaceTrack,
        before: Space | None,
        space: Space,
        table: str,
        place: LogPosition,
    ) -> None:
        """Continue a lineage under another definition, which may have another table or another key."""
        lineage, last = self._lineages[track.lineage], self._meanings[key][-1]
        self._versions.append(SchemaVersion(key[0], space, table))
        number, era = len(self._versions) - 1, last.era
        if before is None or key_parts(before.primary_key) != key_parts(space.primary_key):
            era += 1
            lineage = replace(lineage, eras=(*lineage.eras, Era(number, last.truncations)))
        self._owners.pop((key[0], lineage.table), None)
        self._lineages[track.lineage] = replace(lineage, table=table)
        self._owners[key[0], table] = track.lineage
        self._add_meaning(key, Meaning(place, number, track.lineage, era, last.truncations))

    def _end_versions(self, key: tuple[int, int], track: _SpaceTrack, place: LogPosition) -> None:
        """End all versions of a lineage."""
        if track.lineage == NO_TABLE:
            return
        lineage = self._lineages[track.lineage]
        self._lineages[track.lineage] = replace(lineage, truncations=lineage.truncations + 1)
        if track.is_followed:
            last = self._meanings[key][-1]
            self._add_meaning(key, replace(last, since=place, truncations=last.truncations + 1))

    def _stop(self, key: tuple[int, int], track: _SpaceTrack, place: LogPosition, *, is_alive: bool) -> None:
        """Follow a lineage no longer; where it stays alive, its versions stay where they are."""
        if track.is_followed:
            self._add_meaning(key, Meaning(place))
        if track.lineage != NO_TABLE and not is_alive:
            lineage = self._lineages[track.lineage]
            self._lineages[track.lineage] = replace(lineage, ended=place)
            self._owners.pop((key[0], lineage.table), None)
            track.lineage = NO_TABLE
        track.is_followed = False

    def _hold(self, key: tuple[int, int], track: _SpaceTrack, change: SpaceChange) -> None:
        """Follow a space no longer from a row on; rows of it keep its name."""
        if not track.is_followed:
            return
        version = self._meanings[key][-1].version
        self._stop(key, track, change.position, is_alive=True)
        self._add_meaning(key, Meaning(change.position, version))
        track.reason = change.reason

    def _add_meaning(self, key: tuple[int, int], meaning: Meaning) -> None:
        meanings = self._meanings.setdefault(key, [])
        if meanings and meanings[-1].since == meaning.since:
            meanings.pop()
        meanings.append(meaning)

    def apply_early(self, key: tuple[int, int], unknown: UnknownRange) -> None:
        """Give rows that come before the definition of their space its first meaning."""
        meanings = self._meanings.get(key, [])
        places = [i for i, one in enumerate(meanings) if one.since == unknown.end and one.lineage != NO_TABLE]
        if unknown.outcome != "applied" or not places:
            return
        (place,) = places
        before = meanings[place - 1].since if place else None
        early = replace(meanings[place], since=unknown.begin, is_early=True)
        meanings[place - (before == unknown.begin) : place] = [early]

    def build(self) -> History:
        """Return the history."""
        followed = {key: track for key, track in self._tracks.items() if track.is_followed}
        tables = {
            key: self._lineages[track.lineage].table
            for key, track in self._tracks.items()
            if track.lineage != NO_TABLE
        }
        refusals = [
            Refusal(*key, track.definitions[-1].name, track.reason)
            for key, track in self._tracks.items()
            if track.reason is not None
        ]
        return History(
            tuple(self._versions),
            tuple(self._lineages),
            {key: tuple(meanings) for key, meanings in self._meanings.items()},
            tuple(refusals),
            tables,
            {key: self._meanings[key][-1].version for key in followed},
            {key: track.primary_keys for key, track in self._tracks.items()},
            frozenset(self._tracks),
        )


def _primary_keys(space: Space) -> frozenset[KeyParts]:
    return frozenset([key_parts(space.primary_key)] if space.primary_key else [])


def _refuse_taken_table(key: tuple[int, int], space: Space, table: str) -> Refusal:
    return Refusal(*key, space.name, f"another space of its replicaset goes to the table {table} already")
