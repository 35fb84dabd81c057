"""Which space a row belongs to, how that space is laid out there, and which table it goes to.

Pure: spaces before, their changes in a batch, and the routing of the configuration, in; `Routes` out. A space is
found by (replicaset, space id) and the row's place in the log: an id can be dropped and given to another space.
Not here: reading system rows (`jobs.batch.control`), columns of tables (`jobs.batch.columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from jobs.batch.control import SpaceChange, SpaceRows
from jobs.batch.summary import FIRST, Order
from schemas.space import Space


@dataclass(frozen=True)
class Layout:
    """One definition of a space in one replicaset, and the table that its rows go to."""

    replicaset_id: int
    space: Space
    table: str


@dataclass(frozen=True)
class Route:
    """Rows of a space id from `since` up to `until` (not included) have this layout."""

    replicaset_id: int
    space_id: int
    layout: int
    since: Order
    until: Order | None = None


@dataclass(frozen=True)
class Wipe:
    """A replicaset's versions in a table ended here, by TRUNCATE or by a drop; `renewed`: those that come no more."""

    replicaset_id: int
    table: str
    order: Order
    replica_id: int | None = None
    lsn: int | None = None
    timestamp: datetime | None = None
    renewed: bool = False


@dataclass(frozen=True)
class Move:
    """A replicaset's versions in a table go on in another one, or under other keys: a rename, a changed key.

    What was there ends with a wipe; from `order` on, which is before any other row of the batch, each version
    stands again, by `layout`.
    """

    ends: Wipe
    layout: int
    order: Order


@dataclass(frozen=True)
class Refusal:
    """A space that is followed in `_changelog` only, and why."""

    replicaset_id: int
    space_id: int
    name: str
    reason: str


@dataclass(frozen=True)
class Routes:
    """Where the rows of a batch go.

    Parameters
    ----------
    layouts : tuple of Layout
        A row's layout is its number in here.
    routes : tuple of Route
    wipes : tuple of Wipe
    refusals : tuple of Refusal
    moves : tuple of Move
    current : dict of (int, int) to int
        (replicaset id, space id) to its layout at the end of the batch.

    """

    layouts: tuple[Layout, ...] = ()
    routes: tuple[Route, ...] = ()
    wipes: tuple[Wipe, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    moves: tuple[Move, ...] = ()
    current: Mapping[tuple[int, int], int] = field(default_factory=dict)


ENDS, BEGINS, STANDS = 3, 2, 1
"""How far in front of a move's place, where no other row is, versions end, begin anew, and stand as they were."""


def earlier(order: Order, rows: int) -> Order:
    """Return a place in front of another one, between it and the block before."""
    return order._replace(row=order.row - rows)


Router = Callable[[int, Space, bool], str | Refusal | None]
"""(replicaset id, space, whether a snapshot defines it of which only memtx rows are read) to the table's name, a
refusal, or None for a space that is left out by rule."""


def route_spaces(
    before: Mapping[int, Mapping[int, SpaceRows]],
    changes: Mapping[int, Iterable[SpaceChange]],
    router: Router,
    refused: Mapping[tuple[int, int], str] | None = None,
    snapshots: frozenset[int] = frozenset(),
    vinyl: Mapping[int, frozenset[int]] | None = None,
    first: frozenset[tuple[int, Order]] = frozenset(),
) -> Routes:
    """Return the routes of a batch.

    Parameters
    ----------
    before : mapping of replicaset id to (space id to SpaceRows)
        The spaces as they stood before the batch.
    changes : mapping of replicaset id to changes in log order
    router : Router
    refused : mapping of (replicaset id, space id) to str, optional
        Spaces of which rows are missing already: they stay refused until they are truncated or dropped.
    snapshots : frozenset of int
        Segments that are snapshots.
    vinyl : mapping of int to frozenset of int, optional
        Such a segment to the ids of the vinyl spaces whose rows are read with it.
    first : frozenset of (int, Order)
        (replicaset id, place) of definitions in front of which the replicaset has no row in this batch.

    """
    builder = _Builder(router, dict(refused or {}), snapshots, vinyl or {}, first)
    for replicaset_id, spaces in before.items():
        for space_id, rows in spaces.items():
            builder.define(replicaset_id, space_id, rows, FIRST)
    for replicaset_id, own in changes.items():
        for change in own:
            builder.change(replicaset_id, change)
    return builder.routes()


class _Builder:
    def __init__(
        self,
        router: Router,
        incomplete: dict[tuple[int, int], str],
        snapshots: frozenset[int],
        vinyl: Mapping[int, frozenset[int]],
        first: frozenset[tuple[int, Order]],
    ) -> None:
        self.router = router
        self.first = first
        self.moves: list[tuple[int, int, Order]] = []
        self.left_out: set[tuple[int, int]] = set()
        self.snapshots, self.vinyl = snapshots, vinyl
        self.incomplete = incomplete
        self.layouts: list[Layout] = []
        self.closed: list[Route] = []
        self.open: dict[tuple[int, int], Route] = {}
        self.wipes: list[tuple[int, SpaceChange]] = []
        self.refusals: dict[tuple[int, int], Refusal] = {}
        self.lives: dict[tuple[int, int], list[tuple[int, bool]]] = {}

    def define(self, replicaset_id: int, space_id: int, rows: SpaceRows, order: Order) -> None:
        key = (replicaset_id, space_id)
        space = rows.decoded()
        table = self._table(key, space, order)
        old = self.open.get(key)
        if old is not None and self.layouts[old.layout] == Layout(replicaset_id, space, str(table)):
            return
        if old is not None and isinstance(table, str):
            table = self._successor(key, self.layouts[old.layout], space, table, order)
        if old is not None:
            self._close(key, order)
        if isinstance(table, str) and key in self.left_out:
            table = Refusal(
                *key, space.name, "it was left out under another name, so its earlier rows are not here"
            )
        if table is None and space.primary_key:
            self.left_out.add(key)
        self.refusals.pop(key, None)
        if isinstance(table, Refusal):
            self.refusals[key] = table
            self.incomplete[key] = table.reason
        elif table is not None:
            self.layouts.append(Layout(replicaset_id, space, table))
            self.lives.setdefault(key, []).append((len(self.layouts) - 1, order == FIRST))
            self.open[key] = Route(replicaset_id, space_id, len(self.layouts) - 1, order)

    def _table(self, key: tuple[int, int], space: Space, order: Order) -> str | Refusal | None:
        unread = order.segment in self.snapshots and space.id not in self.vinyl.get(order.segment, ())
        table = self.router(key[0], space, unread)
        if key in self.incomplete and table is not None:
            return Refusal(*key, space.name, self.incomplete[key])
        return table

    def _successor(
        self, key: tuple[int, int], old: Layout, space: Space, table: str, order: Order
    ) -> str | Refusal:
        """Return where a space goes whose definition changed, if its rows can follow it."""
        rekeyed = key_places(old.space) != key_places(space)
        if (rekeyed or table != old.table) and (key[0], order) in self.first:
            # The wipe that it is about comes next (`change`).
            self.moves.append((len(self.wipes), len(self.layouts), order))
            self.lives.pop(key, None)
            return table
        if rekeyed:
            return Refusal(*key, space.name, f"its primary key was changed; the table {old.table} stops here")
        if table == old.table:
            return table
        if any(before for _, before in self.lives.get(key, ())):
            return Refusal(*key, space.name, f"it was renamed; the table {old.table} stops here")
        # All rows of the space are in this batch: they go to the table of its new name from the first on.
        for number, _ in self.lives[key]:
            self.layouts[number] = replace(self.layouts[number], table=table)
        return table

    def change(self, replicaset_id: int, change: SpaceChange) -> None:
        key = (replicaset_id, change.space_id)
        if change.kind != "defined":
            self.incomplete.pop(key, None)
            self.left_out.discard(key)
        route = self.open.get(key)
        if change.kind == "defined":
            moves = len(self.moves)
            self.define(replicaset_id, change.space_id, change.rows, change.order)
            if route is not None and len(self.moves) > moves:
                self.wipes.append((route.layout, replace(change, order=earlier(change.order, ENDS))))
            return
        if route is not None:
            self.wipes.append((route.layout, change))
        if change.kind == "dropped" or not change.rows.decoded().primary_key:
            # Without its primary index a space has no tuples: another one starts its life anew.
            self.refusals.pop(key, None)
            self.lives.pop(key, None)
            if route is not None:
                self._close(key, change.order)
        elif route is None:
            self.define(replicaset_id, change.space_id, change.rows, change.order)

    def _close(self, key: tuple[int, int], order: Order) -> None:
        route = self.open.pop(key)
        self.closed.append(Route(route.replicaset_id, route.space_id, route.layout, route.since, order))

    def routes(self) -> Routes:
        current = {key: route.layout for key, route in self.open.items()}
        everything = (*self.closed, *self.open.values())
        # Only now is it known which table a space that was renamed on the way goes to.
        wipes = tuple(_wipe(self.layouts[number], change) for number, change in self.wipes)
        moves = tuple(Move(wipes[wipe], layout, order) for wipe, layout, order in self.moves)
        refusals = tuple(self.refusals.values())
        return Routes(tuple(self.layouts), everything, wipes, refusals, moves, current)


def _wipe(layout: Layout, change: SpaceChange) -> Wipe:
    where = (layout.replicaset_id, layout.table, change.order)
    return Wipe(*where, change.replica_id, change.lsn, change.timestamp, change.kind == "renewed")


def key_places(space: Space) -> tuple[tuple[int, str, int | None], ...]:
    """Return what a canonical key is made of: (field, path, collation) of each part."""
    return tuple((part.field, part.path, part.collation) for part in space.primary_key)
