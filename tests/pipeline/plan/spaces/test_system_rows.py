"""System spaces: what each kind of row of `_cluster`, `_space`, `_index` and `_truncate` says."""

from dataclasses import replace
from datetime import UTC, datetime

import msgpack
import pytest

from pipeline.plan.rows.position import LogPosition
from pipeline.plan.spaces.system_rows import ControlChanges, ReplicaIdChange, apply_control_rows
from pipeline.state import SpaceDefinition
from schemas.iproto import SystemSpace
from tests.pipeline import logs
from tests.pipeline.logs import A1, A2, A3, Row, change, control_row, define, drop, drop_index, index

CLUSTER, SPACE, INDEX, TRUNCATE = (
    SystemSpace.CLUSTER,
    SystemSpace.SPACE,
    SystemSpace.INDEX,
    SystemSpace.TRUNCATE,
)
KNOWN = {600: logs.space_rows(600, "s")}


def after_rows(
    *rows: Row,
    spaces: dict[int, SpaceDefinition] | None = None,
    cluster: dict[int, str] | None = None,
    snapshots: frozenset[int] = frozenset(),
) -> ControlChanges:
    control_rows = [control_row(row, 10 * (i + 1)) for i, row in enumerate(rows)]
    return apply_control_rows(spaces or {}, cluster or {}, control_rows, snapshots)


def kinds(control: ControlChanges) -> list[tuple[int, str, int]]:
    return [(one.position.position, one.kind, one.space_id) for one in control.changes]


def test_cluster_rows_register_and_expel() -> None:
    control = after_rows(
        logs.register(1, A1),
        change("REPLACE", CLUSTER, tuple_=[2, A2]),
        logs.expel(2),
        change("UPDATE", CLUSTER, key=[1], ops=[["=", 1, A3]]),
        change("UPSERT", CLUSTER, tuple_=[3, A2], ops=[["=", 1, A2]]),
    )
    assert control.registrations == (
        ReplicaIdChange(LogPosition(0, 10, 0), 1, A1),
        ReplicaIdChange(LogPosition(0, 20, 0), 2, A2),
        ReplicaIdChange(LogPosition(0, 30, 0), 2, None),
        ReplicaIdChange(LogPosition(0, 40, 0), 1, A3),
        ReplicaIdChange(LogPosition(0, 50, 0), 3, A2),
    )
    assert (control.changes, control.spaces) == ((), {})


def test_operations_on_cluster_go_on_from_what_was_known() -> None:
    """From 3.0 on a third field holds the name; naming an instance is no new registration of another uuid."""
    control = after_rows(change("UPDATE", CLUSTER, key=[2], ops=[["!", 2, "name"]]), cluster={2: A2})
    assert [one.uuid for one in control.registrations] == [A2]


def test_a_space_is_defined_row_by_row() -> None:
    control = after_rows(define(600, "s"), index(600), index(600, index_id=1))
    # The secondary index changes no table, but the definition that `_schema` keeps.
    assert kinds(control) == [(10, "defined", 600), (20, "defined", 600), (30, "defined", 600)]
    before, after, _ = (one.definition.decoded() for one in control.changes)
    assert (before.name, before.primary_key) == ("s", ())
    assert [part.field for part in after.primary_key] == [0]
    assert set(control.spaces[600].indexes) == {0, 1}


def test_a_change_says_whose_row_and_when() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    row = replace(control_row(define(600, "s"), 70, segment=3, replica_id=2), timestamp=at)
    (one,) = apply_control_rows({}, {}, [row], frozenset()).changes
    assert (one.position, one.replica_id, one.lsn, one.timestamp) == (LogPosition(3, 70, 0), 2, 70, at)


@pytest.mark.parametrize(
    ("operation", "base", "name"),
    [(["=", 2, "t"], 0, "t"), (["=", 3, "t"], 1, "t"), (["=", "name", "t"], 0, "t")],
)
def test_a_space_is_changed_by_operations(operation: list[object], base: int, name: str) -> None:
    """`index_base` 1 is what Lua's requests have; names of fields are those of the system space."""
    row = {**change("UPDATE", SPACE, key=[600], ops=[operation]), "index_base": base}
    control = after_rows(row, spaces=KNOWN)
    assert control.spaces[600].decoded().name == name
    assert set(control.spaces[600].indexes) == {0}
    assert KNOWN[600].decoded().name == "s"


def test_a_new_format_is_a_definition() -> None:
    fields = [*logs.FIELDS, {"name": "more", "type": "any", "is_nullable": True}]
    control = after_rows(change("REPLACE", SPACE, tuple_=logs.space_tuple(600, "s", fields)), spaces=KNOWN)
    assert kinds(control) == [(10, "defined", 600)]
    assert [field.name for field in control.spaces[600].decoded().fields] == ["id", "value", "more"]
    assert control.spaces[600].decoded().primary_key


def test_system_spaces_and_what_belongs_to_no_space_are_passed() -> None:
    control = after_rows(define(511, "_mine"), index(280), index(777), logs.truncate(777), drop(778))
    emptied = ((LogPosition(0, 40, 0), 777), (LogPosition(0, 50, 0), 778))
    assert control == ControlChanges((), (), {}, emptied), (
        "what a drop or a truncation ends is noted for rows that wait"
    )


def test_a_drop_is_its_index_then_its_space() -> None:
    control = after_rows(drop_index(600), change("DELETE", TRUNCATE, key=[600]), drop(600), spaces=KNOWN)
    assert kinds(control) == [(10, "truncated", 600), (30, "dropped", 600)]
    assert control.spaces == {}
    assert control.changes[1].definition.decoded().name == "s"


def test_an_id_may_be_given_to_another_space() -> None:
    control = after_rows(drop_index(600), drop(600), define(600, "other"), index(600), spaces=KNOWN)
    assert [kind for _, kind, _ in kinds(control)] == ["truncated", "dropped", "defined", "defined"]
    assert control.spaces[600].decoded().name == "other"
    made_anew = after_rows(drop(600), define(600, "other"), spaces=KNOWN)
    assert made_anew.spaces[600].indexes == {}


@pytest.mark.parametrize(
    "row",
    [
        logs.truncate(600),
        change("INSERT", TRUNCATE, tuple_=[600, 1]),
        change("REPLACE", TRUNCATE, tuple_=[600, 2]),
        change("UPDATE", TRUNCATE, key=[600], ops=[["+", 1, 1]]),
    ],
    ids=lambda row: str(row["type"]),
)
def test_truncate_is_an_event_in_a_log_only(row: Row) -> None:
    assert kinds(after_rows(row, spaces=KNOWN)) == [(10, "truncated", 600)]
    in_snapshot = after_rows(row, spaces=KNOWN, snapshots=frozenset({0}))
    assert (in_snapshot.changes, in_snapshot.spaces) == ((), KNOWN)
    assert after_rows(row, spaces=KNOWN, snapshots=frozenset({1})).changes


def test_a_secondary_index_is_a_definition() -> None:
    control = after_rows(index(600, index_id=2), drop_index(600, 2), spaces=KNOWN)
    assert kinds(control) == [(10, "defined", 600), (20, "defined", 600)]
    assert {one.definition.decoded() for one in control.changes} == {KNOWN[600].decoded()}
    assert control.spaces == KNOWN


def test_the_primary_index_dropped_truncates() -> None:
    control = after_rows(drop_index(600), spaces=KNOWN)
    assert kinds(control) == [(10, "truncated", 600)]
    assert control.changes[0].definition.decoded().primary_key == ()


def test_the_primary_index_altered_is_a_definition() -> None:
    parts = [{"field": 1, "type": "string"}]
    update = change("UPDATE", INDEX, key=[600, 0], ops=[["=", "parts", parts]])
    for row in (update, change("REPLACE", INDEX, tuple_=logs.index_tuple(600, parts))):
        control = after_rows(row, spaces=KNOWN)
        assert kinds(control) == [(10, "defined", 600)]
        assert [part.field for part in control.spaces[600].decoded().primary_key] == [1]


def test_a_name_that_is_not_utf8_is_a_fault_of_its_space() -> None:
    raw = msgpack.packb([600, 1, b"\xff", "memtx", 0, {}, []], use_bin_type=False)
    control = after_rows({**define(600, "s"), "tuple": raw})
    space = control.spaces[600].decoded()
    assert (space.name, space.fault is not None) == ("\\xff", True)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"type": "INSERT", "space_id": 280}, "its key or tuple is missing"),
        (change("SELECT", 280, key=[600]), "type SELECT"),
        (change("UPDATE", 280, key=[600]), "type UPDATE"),
    ],
)
def test_what_is_no_change_of_a_system_space_is_a_fault(row: Row, reason: str) -> None:
    control = after_rows(row, spaces=KNOWN)
    (fault,) = control.faults
    assert reason in fault.reason
    assert (fault.row.space_id, fault.row.lsn) == (280, 10)
    # A definition that is not known any more holds its space where it was.
    assert [one.kind for one in control.changes] == ["held"] * (row["type"] != "INSERT")
    assert control.spaces == KNOWN
