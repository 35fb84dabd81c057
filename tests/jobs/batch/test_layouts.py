"""Where a row goes: layouts by space id and place, wipes, and spaces that are refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from jobs.batch.control import SpaceRows, follow
from jobs.batch.layouts import Move, Refusal, Router, Routes, route_spaces
from jobs.batch.route import router_of
from jobs.batch.summary import FIRST, Order
from config.spaces import Spaces
from schemas.errors import UnsupportedError
from schemas.space import Space
from tests.jobs.batch import logs
from tests.jobs.batch.logs import Row, control_row, define, drop, drop_index, index, truncate
from tests.jobs.batch.pure import ROUTER, everything

OTHER_KEY = [{"field": 1, "type": "string"}]
KNOWN = {600: logs.space_rows(600, "s")}


def rename(space_id: int, name: str) -> Row:
    return logs.change("UPDATE", 280, key=[space_id], ops=[["=", 2, name]])


def rekey(space_id: int) -> Row:
    return logs.change("REPLACE", 288, tuple_=logs.index_tuple(space_id, OTHER_KEY))


def routed(
    *rows: Row,
    first: Order | None = None,
    router: Router = ROUTER,
    spaces: Mapping[int, SpaceRows] | None = None,
    refused: Mapping[tuple[int, int], str] | None = None,
    snapshots: frozenset[int] = frozenset(),
) -> Routes:
    told = [control_row(row, 10 * (i + 1)) for i, row in enumerate(rows)]
    control = follow(spaces or {}, {}, told, snapshots)
    places = frozenset() if first is None else frozenset({(1, first)})
    before = {1: spaces or {}}
    return route_spaces(before, {1: control.changes}, router, refused, snapshots, first=places)


def tables(routes: Routes) -> list[tuple[str, int, int | None]]:
    """Return (table, since, until) of each route in order, places as the row's position; 0 from the start."""
    found = [
        (
            routes.layouts[one.layout].table,
            0 if one.since == FIRST else one.since.position,
            None if one.until is None else one.until.position,
        )
        for one in routes.routes
    ]
    return sorted(found, key=lambda one: one[1])


def wipes(routes: Routes) -> list[tuple[str, int]]:
    return [(wipe.table, wipe.order.position) for wipe in routes.wipes]


def test_a_known_space_is_routed_from_the_start() -> None:
    routes = routed(spaces=KNOWN)
    assert tables(routes) == [("s", 0, None)]
    assert routes.current == {(1, 600): 0}
    assert routes.layouts[0].space == KNOWN[600].decoded()


def test_a_new_space_is_routed_from_its_primary_index_on() -> None:
    assert tables(routed(define(600, "s"), index(600))) == [("s", 20, None)]
    assert routed(define(600, "s"), index(600, index_id=1)) == Routes()


def test_an_id_that_another_space_gets_goes_to_its_table() -> None:
    rows = [drop_index(600), drop(600), define(600, "t"), index(600), logs.truncate(600)]
    routes = routed(*rows, spaces=KNOWN)
    assert tables(routes) == [("s", 0, 10), ("t", 40, None)]
    assert wipes(routes) == [("s", 10), ("t", 50)]
    assert [routes.layouts[i].table for i in routes.current.values()] == ["t"]


def test_a_drop_without_its_index_wipes_too() -> None:
    routes = routed(drop(600), spaces=KNOWN)
    assert (tables(routes), wipes(routes), routes.current) == ([("s", 0, 10)], [("s", 10)], {})


def test_a_wipe_names_the_row_that_says_so() -> None:
    (wipe,) = routed(truncate(600), spaces=KNOWN).wipes
    assert (wipe.replicaset_id, wipe.replica_id, wipe.lsn, wipe.order) == (1, 1, 10, Order(0, 10, 0))


def test_a_space_that_was_made_twice_in_one_batch_keeps_its_table() -> None:
    rows = [define(600, "s"), index(600), drop_index(600), drop(600), define(600, "s"), index(600, OTHER_KEY)]
    routes = routed(*rows)
    assert tables(routes) == [("s", 20, 30), ("s", 60, None)]
    assert (wipes(routes), routes.refusals) == ([("s", 30)], ())


def test_a_new_format_is_a_new_layout_of_the_same_table() -> None:
    fields = [*logs.FIELDS, {"name": "more", "type": "any", "is_nullable": True}]
    row = logs.change("UPDATE", 280, key=[600], ops=[["=", 6, fields]])
    routes = routed(row, spaces=KNOWN)
    assert tables(routes) == [("s", 0, 10), ("s", 10, None)]
    assert [len(layout.space.fields) for layout in routes.layouts] == [2, 3]
    assert routes.current == {(1, 600): 1}


def test_a_definition_that_changes_nothing_opens_nothing() -> None:
    row = logs.change("REPLACE", 280, tuple_=logs.space_tuple(600, "s"))
    assert tables(routed(row, spaces=KNOWN)) == [("s", 0, None)]


def test_a_rename_within_the_first_batch_is_followed_from_the_first_row() -> None:
    routes = routed(define(600, "s"), index(600), truncate(600), rename(600, "t"), truncate(600))
    assert tables(routes) == [("t", 20, 40), ("t", 40, None)]
    assert wipes(routes) == [("t", 30), ("t", 50)]
    assert routes.refusals == ()


def test_a_rename_leaves_an_earlier_space_of_the_id_where_it_was() -> None:
    life = [define(600, "s"), index(600)]
    routes = routed(*life, drop(600), *life, rename(600, "t"))
    assert tables(routes) == [("s", 20, 30), ("t", 50, 60), ("t", 60, None)]
    assert wipes(routes) == [("s", 30)]


def test_a_later_rename_stops_the_table_by_name() -> None:
    routes = routed(rename(600, "t"), spaces=KNOWN)
    assert tables(routes) == [("s", 0, 10)]
    assert routes.refusals == (Refusal(1, 600, "t", "it was renamed; the table s stops here"),)
    assert routes.current == {}


def test_a_changed_key_is_refused_by_name() -> None:
    routes = routed(rekey(600), spaces=KNOWN)
    assert tables(routes) == [("s", 0, 10)]
    (refusal,) = routes.refusals
    assert refusal.name == "s"
    assert refusal.reason == "its primary key was changed; the table s stops here"


@pytest.mark.parametrize(("row", "table"), [(rename(600, "t"), "t"), (rekey(600), "s")])
def test_in_front_of_all_rows_a_space_moves(row: Row, table: str) -> None:
    """Its versions end in front of the move, and all that follows goes by the new definition."""
    routes = routed(row, truncate(600), spaces=KNOWN, first=Order(0, 10, 0))
    assert tables(routes) == [("s", 0, 10), (table, 10, None)]
    assert routes.moves == (Move(routes.wipes[0], 1, Order(0, 10, 0)),)
    assert [(wipe.table, wipe.order) for wipe in routes.wipes] == [
        ("s", Order(0, 10, -3)),
        (table, Order(0, 20, 0)),
    ]
    assert routes.refusals == ()


def test_a_space_that_was_left_out_under_another_name_is_refused_until_it_is_emptied() -> None:
    router = router_of(Spaces(exclude=("s",)), everything)
    routes = routed(rename(600, "t"), spaces=KNOWN, router=router, first=Order(0, 10, 0))
    assert routes.routes == ()
    assert [one.reason[:40] for one in routes.refusals] == ["it was left out under another name, so i"]
    emptied = routed(rename(600, "t"), truncate(600), spaces=KNOWN, router=router)
    assert (tables(emptied), emptied.refusals) == ([("t", 20, None)], ())
    made = routed(define(601, "t"), index(601), router=router)
    assert (tables(made), made.refusals) == ([("t", 20, None)], ())


def test_a_key_made_anew_over_no_tuples_is_no_change() -> None:
    routes = routed(drop_index(600), index(600, OTHER_KEY), spaces=KNOWN)
    assert tables(routes) == [("s", 0, 10), ("s", 20, None)]
    assert (wipes(routes), routes.refusals) == ([("s", 10)], ())
    parts = routes.layouts[routes.current[1, 600]].space.primary_key
    assert [part.field for part in parts] == [1]


@pytest.mark.parametrize(("collation", "same"), [(None, True), (2, False)])
def test_a_collation_is_part_of_the_key_and_a_type_is_not(collation: int | None, same: bool) -> None:
    part = {"field": 0, "type": "scalar", "collation": collation}
    row = logs.change("REPLACE", 288, tuple_=logs.index_tuple(600, [part]))
    assert (routed(row, spaces=KNOWN).refusals == ()) is same


def test_a_refusal_sticks_until_the_space_is_emptied() -> None:
    missing = {(1, 600): "rows are missing"}
    fields = logs.change("UPDATE", 280, key=[600], ops=[["=", 6, logs.FIELDS[:1]]])
    stays = routed(fields, spaces=KNOWN, refused=missing)
    assert (stays.routes, stays.refusals) == ((), (Refusal(1, 600, "s", "rows are missing"),))
    emptied = routed(truncate(600), spaces=KNOWN, refused=missing)
    assert (tables(emptied), emptied.refusals) == ([("s", 10, None)], ())
    made_anew = routed(drop(600), define(600, "s"), index(600), spaces=KNOWN, refused=missing)
    assert (tables(made_anew), made_anew.refusals) == ([("s", 30, None)], ())


def test_a_dropped_space_is_refused_no_more() -> None:
    assert routed(drop(600), spaces=KNOWN, refused={(1, 600): "x"}) == Routes()


def test_a_refusal_holds_within_the_batch_that_finds_it() -> None:
    back = logs.change("REPLACE", 288, tuple_=logs.index_tuple(600))
    routes = routed(rekey(600), back, spaces=KNOWN)
    assert tables(routes) == [("s", 0, 10)]
    assert [one.reason for one in routes.refusals] == ["its primary key was changed; the table s stops here"]


def test_vinyl_of_a_snapshot_is_refused_until_it_is_emptied() -> None:
    rows = [define(600, "v", engine="vinyl"), index(600)]
    in_snapshot = routed(*rows, snapshots=frozenset({0}))
    assert in_snapshot.routes == ()
    assert ".run files" in in_snapshot.refusals[0].reason
    assert tables(routed(*rows)) == [("v", 20, None)]
    spaces = {600: logs.space_rows(600, "v", engine="vinyl")}
    assert routed(spaces=spaces, refused={(1, 600): "runs"}).routes == ()
    assert tables(routed(truncate(600), spaces=spaces, refused={(1, 600): "runs"})) == [("v", 10, None)]


def test_vinyl_of_a_snapshot_is_followed_where_its_runs_are_read() -> None:
    told = [
        control_row(row, 10 * (i + 1)) for i, row in enumerate([define(600, "v", engine="vinyl"), index(600)])
    ]
    snapshots = frozenset({0})
    changes = {1: follow({}, {}, told, snapshots).changes}
    with_runs = route_spaces({}, changes, ROUTER, {}, snapshots, {0: frozenset({600})})
    assert tables(with_runs) == [("v", 20, None)]
    others = route_spaces({}, changes, ROUTER, {}, snapshots, {0: frozenset({601})})
    assert [one.name for one in others.refusals] == ["v"]


def test_replicasets_have_layouts_of_their_own() -> None:
    routes = route_spaces({1: KNOWN, 2: {777: logs.space_rows(777, "s")}}, {}, ROUTER)
    found = [(one.replicaset_id, one.space_id, routes.layouts[one.layout].table) for one in routes.routes]
    assert found == [(1, 600, "s"), (2, 777, "s")]


def space(name: str = "s", parts: list[dict[str, object]] | None = None, **options: object) -> Space:
    return logs.space_rows(600, name, logs.ID_PARTS if parts is None else parts, **options).decoded()


@pytest.mark.parametrize("one", [space(parts=[]), space(group_id=1), space(temporary=True), space(view=True)])
def test_what_no_table_can_hold_is_left_out(one: Space) -> None:
    assert ROUTER(1, one, False) is None


def test_names_are_taken_by_the_configuration() -> None:
    route = router_of(Spaces(include=("a*", "b"), exclude=("ab*",), rename={"aa": "other"}), everything)
    names = {name: route(1, space(name), False) for name in ("aa", "ax", "abc", "b", "c")}
    assert names == {"aa": "other", "ax": "ax", "abc": None, "b": "b", "c": None}


def test_what_cannot_be_carried_is_refused_with_its_reason() -> None:
    def check(_: Space) -> None:
        raise UnsupportedError("no such type")

    assert router_of(Spaces(), check)(3, space(), False) == Refusal(3, 600, "s", "no such type")
    assert router_of(Spaces(exclude=("s",)), check)(3, space(), False) is None


def test_spaces_that_are_not_merged_have_a_table_a_replicaset() -> None:
    route = router_of(Spaces(per_replicaset=("s*",), rename={"s": "other"}), everything)
    assert (route(1, space(), False), route(2, space(), False)) == ("other__r1", "other__r2")
    assert route(1, space("a"), False) == "a"
