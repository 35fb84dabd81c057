"""What a space id means at each position in the log: tables, lineages, the ends of versions, and refused spaces."""

from collections.abc import Mapping

import pytest

from config.spaces import Spaces
from pipeline.plan.rows.position import BEGINNING, LogPosition
from pipeline.plan.spaces.meanings import NO_TABLE, History, Refusal
from pipeline.plan.spaces.meanings_builder import SpacesBefore, build_history
from pipeline.plan.spaces.router import Router, build_router
from pipeline.plan.spaces.system_rows import apply_control_rows
from pipeline.state import SpaceDefinition
from schemas.errors import UnsupportedError
from schemas.space import Space
from tests.pipeline import logs
from tests.pipeline.logs import Row, control_row, define, drop, drop_index, index, truncate
from tests.pipeline.plan.planner import ROUTER, everything

OTHER_KEY = [{"field": 1, "type": "string"}]
KNOWN = {600: logs.space_rows(600, "s")}


def rename(space_id: int, name: str) -> Row:
    return logs.change("UPDATE", 280, key=[space_id], ops=[["=", 2, name]])


def rekey(space_id: int) -> Row:
    return logs.change("REPLACE", 288, tuple_=logs.index_tuple(space_id, OTHER_KEY))


def history(
    *rows: Row,
    router: Router = ROUTER,
    spaces: Mapping[int, SpaceDefinition] | None = None,
    refused: Mapping[int, str] | None = None,
    snapshots: frozenset[int] = frozenset(),
    vinyl: Mapping[int, frozenset[int]] | None = None,
    tables: Mapping[int, str] | None = None,
) -> History:
    """Return the history of replicaset 1, whose events are at positions 10, 20 and so on."""
    control = apply_control_rows(
        spaces or {}, {}, [control_row(row, 10 * (i + 1)) for i, row in enumerate(rows)], snapshots
    )
    names = {i: one.decoded().name for i, one in (spaces or {}).items()} if tables is None else tables
    before = SpacesBefore(spaces or {}, refused or {}, names)
    return build_history({1: before}, {1: control.changes}, router, snapshots, vinyl)


def tables(found: History) -> list[tuple[str, int, int | None]]:
    """Return (table, since, until) of each schema version in the order of the log; 0 is the beginning of the batch."""
    result = []
    for meanings in found.meanings.values():
        spans: list[list[int]] = []
        for one in meanings:
            index = 0 if one.since == BEGINNING else one.since.position
            if spans and spans[-1][0] == one.version:
                continue
            spans.append([one.version, index])
        ends = [*(index for _, index in spans[1:]), None]
        result += [
            (found.versions[number].table, index, end)
            for (number, index), end in zip(spans, ends, strict=True)
            if number != NO_TABLE
        ]
    return sorted(result, key=lambda one: one[1])


def truncated(found: History) -> list[tuple[str, int]]:
    """Return the table and the position of each event that ends all versions of a followed space."""
    result = []
    for meanings in found.meanings.values():
        seen: dict[int, int] = {}
        for one in meanings:
            if one.lineage != NO_TABLE and one.truncations > seen.get(one.lineage, 0):
                result.append((found.versions[one.version].table, one.since.position))
            seen[one.lineage] = one.truncations
    for lineage in found.lineages:
        if lineage.ended is not None:
            result.append((lineage.table, lineage.ended.position))
    return sorted(result, key=lambda one: one[1])


def test_a_known_space_is_followed_from_the_start() -> None:
    found = history(spaces=KNOWN)
    assert tables(found) == [("s", 0, None)]
    assert (found.current_versions, found.tables) == ({(1, 600): 0}, {(1, 600): "s"})
    assert found.versions[0].space == KNOWN[600].decoded()
    assert not found.lineages[0].changes_keys_without_rows


def test_a_new_space_is_followed_from_its_primary_index_on() -> None:
    found = history(define(600, "s"), index(600))
    assert tables(found) == [("s", 20, None)]
    assert found.lineages[0].base_table is None
    assert history(define(600, "s"), index(600, index_id=1)).lineages == ()


def test_an_id_that_another_space_gets_goes_to_its_table() -> None:
    rows = [drop_index(600), drop(600), define(600, "t"), index(600), truncate(600)]
    found = history(*rows, spaces=KNOWN)
    assert tables(found) == [("s", 0, 10), ("t", 40, None)]
    assert truncated(found) == [("s", 10), ("t", 50)]
    assert [found.versions[i].table for i in found.current_versions.values()] == ["t"]
    assert [(one.base_table, one.table, one.truncations) for one in found.lineages] == [
        ("s", "s", 1),
        (None, "t", 1),
    ]


def test_a_drop_without_its_index_ends_all_versions_too() -> None:
    found = history(drop(600), spaces=KNOWN)
    assert (tables(found), truncated(found), found.current_versions) == ([("s", 0, 10)], [("s", 10)], {})
    assert found.lineages[0].changes_keys_without_rows


def test_a_space_that_was_made_twice_in_one_batch_keeps_its_table() -> None:
    rows = [define(600, "s"), index(600), drop_index(600), drop(600), define(600, "s"), index(600, OTHER_KEY)]
    found = history(*rows)
    assert tables(found) == [("s", 20, 30), ("s", 60, None)]
    assert (truncated(found), found.refusals, len(found.lineages)) == ([("s", 30)], (), 2)


def test_a_new_format_is_a_new_version_of_the_same_lineage() -> None:
    fields = [*logs.FIELDS, {"name": "more", "type": "any", "is_nullable": True}]
    row = logs.change("UPDATE", 280, key=[600], ops=[["=", 6, fields]])
    found = history(row, spaces=KNOWN)
    assert tables(found) == [("s", 0, 10), ("s", 10, None)]
    assert [len(version.space.fields) for version in found.versions] == [2, 3]
    assert (found.current_versions, len(found.lineages)) == ({(1, 600): 1}, 1)


def test_a_definition_that_changes_nothing_is_no_version() -> None:
    row = logs.change("REPLACE", 280, tuple_=logs.space_tuple(600, "s"))
    assert tables(history(row, spaces=KNOWN)) == [("s", 0, None)]


def test_a_rename_takes_the_lineage_to_another_table() -> None:
    found = history(rename(600, "t"), truncate(600), spaces=KNOWN)
    assert tables(found) == [("s", 0, 10), ("t", 10, None)]
    (lineage,) = found.lineages
    assert (lineage.base_table, lineage.table, lineage.truncations) == ("s", "t", 1)
    assert lineage.leaves_base_table
    assert found.refusals == ()


def test_a_rename_leaves_an_earlier_space_of_the_id_where_it_was() -> None:
    life = [define(600, "s"), index(600)]
    found = history(*life, drop(600), *life, rename(600, "t"))
    assert tables(found) == [("s", 20, 30), ("s", 50, 60), ("t", 60, None)]
    assert [(one.table, one.ended) for one in found.lineages] == [("s", LogPosition(0, 30, 0)), ("t", None)]


def test_two_names_are_swapped() -> None:
    spaces = {600: logs.space_rows(600, "s"), 601: logs.space_rows(601, "t")}
    found = history(rename(600, "tmp"), rename(601, "s"), rename(600, "t"), spaces=spaces)
    assert found.refusals == ()
    assert {(one.base_table, one.table) for one in found.lineages} == {("s", "t"), ("t", "s")}


def test_two_spaces_cannot_be_in_one_table_at_once() -> None:
    spaces = {600: logs.space_rows(600, "s")}
    router = build_router(Spaces(rename={"other": "s"}), everything)
    found = history(define(601, "other"), index(601), spaces=spaces, router=router)
    (refusal,) = found.refusals
    assert (refusal.space_id, refusal.name) == (601, "other")
    assert refusal.reason == "another space of its replicaset goes to the table s already"


def test_a_table_that_a_space_has_left_is_free_again() -> None:
    found = history(rename(600, "old"), define(601, "s"), index(601), spaces=KNOWN)
    assert found.refusals == ()
    assert found.tables == {(1, 600): "old", (1, 601): "s"}


def test_a_table_of_a_space_without_rows_in_the_batch_is_taken() -> None:
    found = history(define(601, "s"), index(601), tables={600: "s"})
    assert [one.space_id for one in found.refusals] == [601]


def test_a_changed_key_begins_an_era() -> None:
    found = history(truncate(600), rekey(600), truncate(600), truncate(600), spaces=KNOWN)
    assert tables(found) == [("s", 0, 20), ("s", 20, None)]
    (lineage,) = found.lineages
    assert [(era.version, era.truncations_before) for era in lineage.eras] == [(0, 0), (1, 1)]
    assert [lineage.truncations_in(era) for era in (0, 1)] == [1, 2]
    assert found.refusals == ()
    assert len(found.primary_keys[1, 600]) == 2


def test_a_space_that_was_left_out_under_another_name_is_refused_until_it_is_emptied() -> None:
    router = build_router(Spaces(exclude=("s",)), everything)
    found = history(rename(600, "t"), spaces=KNOWN, router=router, tables={})
    assert found.lineages == ()
    assert [one.reason[:40] for one in found.refusals] == ["it was left out under another name, so i"]
    emptied = history(rename(600, "t"), truncate(600), spaces=KNOWN, router=router, tables={})
    assert (tables(emptied), emptied.refusals) == ([("t", 20, None)], ())
    made = history(define(601, "t"), index(601), router=router)
    assert (tables(made), made.refusals) == ([("t", 20, None)], ())


def test_a_space_that_leaves_what_is_wanted_leaves_its_table() -> None:
    router = build_router(Spaces(exclude=("hidden",)), everything)
    found = history(rename(600, "hidden"), spaces=KNOWN, router=router)
    assert (tables(found), truncated(found), found.refusals) == ([("s", 0, 10)], [("s", 10)], ())


def test_a_key_made_anew_over_no_tuples_is_another_lineage() -> None:
    found = history(drop_index(600), index(600, OTHER_KEY), spaces=KNOWN)
    assert tables(found) == [("s", 0, 10), ("s", 20, None)]
    assert (truncated(found), found.refusals) == ([("s", 10)], ())
    parts = found.versions[found.current_versions[1, 600]].space.primary_key
    assert [part.field for part in parts] == [1]


@pytest.mark.parametrize(("collation", "same"), [(None, True), (2, False)])
def test_a_collation_is_part_of_the_key_and_a_type_is_not(collation: int | None, same: bool) -> None:
    part = {"field": 0, "type": "scalar", "collation": collation}
    row = logs.change("REPLACE", 288, tuple_=logs.index_tuple(600, [part]))
    (lineage,) = history(row, spaces=KNOWN).lineages
    assert (len(lineage.eras) == 1) is same


def test_a_refusal_lasts_until_the_space_is_emptied() -> None:
    missing = {600: "rows are missing"}
    fields = logs.change("UPDATE", 280, key=[600], ops=[["=", 6, logs.FIELDS[:1]]])
    stays = history(fields, spaces=KNOWN, refused=missing)
    assert (stays.meanings, stays.refusals) == ({}, (Refusal(1, 600, "s", "rows are missing"),))
    assert stays.tables == {(1, 600): "s"}, "its versions stay where they are"
    emptied = history(truncate(600), spaces=KNOWN, refused=missing)
    assert (tables(emptied), emptied.refusals) == ([("s", 10, None)], ())
    assert [(one.base_table, one.truncations) for one in emptied.lineages] == [("s", 1), (None, 0)]
    made_anew = history(drop(600), define(600, "s"), index(600), spaces=KNOWN, refused=missing)
    assert (tables(made_anew), made_anew.refusals) == ([("s", 30, None)], ())


def test_a_dropped_space_is_refused_no_more() -> None:
    found = history(drop(600), spaces=KNOWN, refused={600: "x"})
    assert (found.refusals, found.tables, found.current_versions) == ((), {}, {})
    assert [(one.base_table, one.truncations) for one in found.lineages] == [("s", 1)]


def test_vinyl_of_a_snapshot_is_refused_until_it_is_emptied() -> None:
    rows = [define(600, "v", engine="vinyl"), index(600)]
    in_snapshot = history(*rows, snapshots=frozenset({0}))
    assert in_snapshot.lineages == ()
    assert ".run files" in in_snapshot.refusals[0].reason
    assert tables(history(*rows)) == [("v", 20, None)]
    spaces = {600: logs.space_rows(600, "v", engine="vinyl")}
    assert history(spaces=spaces, refused={600: "runs"}).meanings == {}
    assert tables(history(truncate(600), spaces=spaces, refused={600: "runs"})) == [("v", 10, None)]


def test_vinyl_of_a_snapshot_is_followed_where_its_runs_are_read() -> None:
    rows, snapshots = [define(600, "v", engine="vinyl"), index(600)], frozenset({0})
    with_runs = history(*rows, snapshots=snapshots, vinyl={0: frozenset({600})})
    assert tables(with_runs) == [("v", 20, None)]
    others = history(*rows, snapshots=snapshots, vinyl={0: frozenset({601})})
    assert [one.name for one in others.refusals] == ["v"]


def test_replicasets_have_versions_of_their_own() -> None:
    before = {
        1: SpacesBefore(KNOWN, tables={600: "s"}),
        2: SpacesBefore({777: logs.space_rows(777, "s")}, tables={777: "s"}),
    }
    found = build_history(before, {}, ROUTER)
    assert [(one.replicaset_id, one.space.id, one.table) for one in found.versions] == [
        (1, 600, "s"),
        (2, 777, "s"),
    ]
    assert found.refusals == ()


def space(name: str = "s", parts: list[dict[str, object]] | None = None, **options: object) -> Space:
    return logs.space_rows(600, name, logs.ID_PARTS if parts is None else parts, **options).decoded()


@pytest.mark.parametrize("one", [space(parts=[]), space(group_id=1), space(temporary=True), space(view=True)])
def test_what_no_table_can_hold_is_left_out(one: Space) -> None:
    assert ROUTER(1, one, (), False) is None


def test_names_are_taken_by_the_configuration() -> None:
    route = build_router(Spaces(include=("a*", "b"), exclude=("ab*",), rename={"aa": "other"}), everything)
    names = {name: route(1, space(name), (), False) for name in ("aa", "ax", "abc", "b", "c")}
    assert names == {"aa": "other", "ax": "ax", "abc": None, "b": "b", "c": None}


def test_what_cannot_be_carried_is_refused_with_its_reason() -> None:
    def check(_: Space) -> None:
        raise UnsupportedError("no such type")

    assert build_router(Spaces(), check)(3, space(), (), False) == Refusal(3, 600, "s", "no such type")
    assert build_router(Spaces(exclude=("s",)), check)(3, space(), (), False) is None


def test_spaces_that_are_not_merged_have_a_table_a_replicaset() -> None:
    route = build_router(Spaces(per_replicaset=("s*",), rename={"s": "other"}), everything)
    assert (route(1, space(), (), False), route(2, space(), (), False)) == ("other__r1", "other__r2")
    assert route(1, space("a"), (), False) == "a"


def test_an_engine_that_is_not_known_is_refused_in_a_snapshot() -> None:
    """Nobody can tell whether a snapshot holds its rows; what its log holds can be followed."""
    rows = [define(600, "columns", engine="memcs"), index(600)]
    assert "its engine is memcs" in history(*rows, snapshots=frozenset({0})).refusals[0].reason
    assert history(*rows).refusals == ()
