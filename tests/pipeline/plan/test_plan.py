"""A batch, decided: ids, maps, origins that nobody announced, spaces that become synchronous."""

from dataclasses import replace

import pytest

from config.spaces import Spaces
from pipeline.plan.batch_plan import sync_spaces
from pipeline.plan.spaces.router import build_router
from pipeline.plan.spaces.system_rows import apply_control_rows
from pipeline.state import ApplierMapEntry, ReplicasetState, State
from tests.pipeline import logs
from tests.pipeline.logs import (
    A1,
    A2,
    A3,
    B1,
    A,
    B,
    Transaction,
    batch,
    control_row,
    define,
    expel,
    index,
    local_row,
    put,
    register,
    settling_row,
    synchronous_row,
    txn,
)
from tests.pipeline.plan.planner import OWN, Piece, Planner, everything
from warehouse.system_tables.applier_map import MapRow

BEGIN = (txn(1, register(1, A1)), txn(1, register(2, A2)))


def piece(*rows: Transaction, lsns: dict[int, int] | None = None, **where: object) -> Piece:
    return replace(Piece(batch(*rows, lsns=lsns)), **where)  # type: ignore[arg-type]


def cluster_changes(planner: Planner) -> list[list[tuple[str | None, int | None, str]]]:
    """Return what changed in `_cluster`, a commit a list."""
    return [[(m.uuid, m.local_id, m.replicaset_uuid) for m in rows] for rows in planner.changes]


def test_ids_are_given_once_in_the_order_of_replicaset_and_log() -> None:
    planner = Planner()
    other = piece(txn(1, register(1, B1)), replicaset=B, instance=B1)
    planner.batch(other, piece(txn(1, register(2, A2)), txn(1, register(1, A1)), txn(1, register(3, A2))))
    assert cluster_changes(planner) == [[(A2, 2, A), (A1, 1, A), (B1, 1, B)]]
    assert planner.state.global_ids == {OWN: 0, A2: 1, A1: 2, B1: 3}
    assert {uuid: one.id for uuid, one in planner.state.replicasets.items()} == {A: 1, B: 2}
    planner.batch(piece(txn(1, register(2, A2)), lsns={1: 3}))
    assert len(planner.changes) == 1


def test_the_reader_of_a_log_is_known_without_a_row_of_cluster() -> None:
    planner = Planner()
    planner.batch(piece(txn(0, local_row(put())), instance=A3))
    assert cluster_changes(planner) == [[(A3, None, A)]]
    assert planner.state.replicasets[A].leader == A3


def test_a_map_holds_from_the_first_row_of_the_origin() -> None:
    """The first master signs rows before the row that registers it; another one only after its own."""
    planner = Planner()
    plan = planner.batch(piece(txn(1, put()), *BEGIN, txn(2, put())))
    assert plan.new_map_rows == (MapRow(1, 1, 1, 1), MapRow(1, 2, 2, 1))
    assert planner.state.replicasets[A].cluster == {1: A1, 2: A2}
    assert planner.fates[A, 1, 1].global_id == planner.fates[A, 1, 3].global_id == 1
    assert planner.fates[A, 2, 1].global_id == 2


def test_a_map_of_a_snapshot_holds_from_its_vclock() -> None:
    planner = Planner()
    snapshot = piece(txn(0, register(1, A1), register(2, A2)), is_snapshot=True, vclock={0: 3, 1: 70, 2: 30})
    planner.batch(snapshot, piece(txn(1, put()), txn(2, put()), lsns={1: 70, 2: 30}))
    one = planner.state.replicasets[A]
    assert one.applier_map == (ApplierMapEntry(1, 1, 71), ApplierMapEntry(2, 2, 31))
    assert one.settled == {1: 71, 2: 31}
    assert len(planner.snapshot) == 2


REUSED = (
    *BEGIN,
    txn(2, put(), put()),
    txn(1, expel(2)),
    txn(1, register(2, A3)),
    txn(2, put(), put()),
    txn(1, expel(2)),
    txn(1, register(2, A2)),
    txn(2, put()),
)


def test_an_id_that_another_instance_gets_goes_on_from_the_last_lsn() -> None:
    expected = (
        ApplierMapEntry(1, 1, 1),
        ApplierMapEntry(2, 2, 1),
        ApplierMapEntry(2, 3, 3),
        ApplierMapEntry(2, 2, 5),
    )
    rows = logs.rows_of(REUSED)
    for cut in range(len(rows) + 1):
        planner = Planner()
        for part in (rows[:cut], rows[cut:]):
            if part:
                planner.batch(Piece(logs.batch_of(part)))
        assert planner.state.replicasets[A].applier_map == expected, cut
        assert [planner.fates[A, 2, lsn].global_id for lsn in range(1, 6)] == [2, 2, 3, 3, 2], cut


def test_a_known_instance_is_no_new_entry() -> None:
    planner = Planner()
    planner.batch(piece(*BEGIN))
    plan = planner.batch(piece(txn(1, register(2, A2)), lsns={1: 2}))
    assert plan.new_map_rows == ()


def test_an_expelled_instance_keeps_its_map() -> None:
    planner = Planner()
    planner.batch(piece(*BEGIN, txn(2, put()), txn(1, expel(2)), txn(2, put())))
    assert planner.state.replicasets[A].cluster == {1: A1}
    assert planner.fates[A, 2, 2].global_id == 2
    assert planner.waiting == []


def test_rows_of_an_origin_that_nobody_announced_wait() -> None:
    planner = Planner()
    plan = planner.batch(piece(*BEGIN, txn(1, put()), txn(3, put()), txn(1, put())))
    settlement = plan.settlements[A]
    assert settlement.wait_reason == "replica id 3 is in no map: no row of _cluster has announced it"
    assert settlement.waits_from is not None
    assert planner.names_waiting() == [(3, 1), (1, 4)]
    assert planner.state.replicasets[A].has_waiting_rows
    planner.batch(piece(txn(1, register(3, A3)), lsns={1: 4}))
    assert planner.waiting == []
    assert planner.fates[A, 3, 1].global_id == 3
    assert not planner.state.replicasets[A].has_waiting_rows


def test_an_origin_that_was_expelled_before_the_snapshot_holds_nothing_up() -> None:
    """The log that continues from a snapshot begins before it: what the snapshot has is not asked for its origin."""
    planner = Planner()
    snapshot = piece(txn(0, register(1, A1)), is_snapshot=True, vclock={1: 70, 3: 2})
    log = piece(txn(3, put()), txn(3, put()), txn(1, put()), lsns={1: 70, 3: 0})
    planner.batch(snapshot, log)
    assert planner.waiting == []
    assert set(planner.states()) == {(1, 71)}


def test_a_replicaset_of_which_no_instance_is_known_waits_under_a_number_of_its_own() -> None:
    planner = Planner()
    plan = planner.batch(piece(txn(1, put()), instance=None))
    assert planner.state.replicasets[A].id == 1
    assert (plan.settlements[A].wait_reason or "").startswith("replica id 1 is in no map")
    assert cluster_changes(planner) == [[(None, None, A)]]
    planner.batch(piece(txn(1, register(1, B1)), instance=B1, replicaset=B))
    planner.batch(piece(txn(1, register(1, A1)), instance=None, lsns={1: 1}))
    assert {uuid: one.id for uuid, one in planner.state.replicasets.items()} == {A: 1, B: 2}
    assert planner.waiting == []
    assert planner.fates[A, 1, 1].global_id == planner.state.global_ids[A1]
    assert {m.uuid for m in planner.cluster.members.values()} == {OWN, A1, B1}


def test_a_replicaset_of_instances_that_another_one_has_named_gets_a_number_too() -> None:
    planner = Planner()
    planner.batch(piece(*BEGIN))
    planner.batch(piece(txn(1, register(1, A2)), replicaset=B, instance=A2))
    assert {uuid: one.id for uuid, one in planner.state.replicasets.items()} == {A: 1, B: 2}
    assert planner.fates[B, 1, 1].global_id == planner.state.global_ids[A2] == 2


def test_what_a_waiting_row_announces_is_not_known_yet() -> None:
    planner = Planner()
    planner.batch(piece(*BEGIN, txn(1, synchronous_row(put())), txn(1, register(3, A3)), txn(3, put())))
    assert planner.state.replicasets[A].cluster == {1: A1, 2: A2}
    assert A3 not in planner.cluster.members
    planner.batch(piece(txn(1, settling_row("CONFIRM", 1, 3)), lsns={1: 4}))
    assert planner.fates[A, 3, 1].global_id == 3


def test_one_replicaset_waits_and_another_goes_on() -> None:
    planner = Planner()
    other = piece(txn(1, register(1, B1)), replicaset=B, instance=B1)
    planner.batch(piece(*BEGIN, txn(1, put(), lsn=9)), other)
    planner.batch(piece(txn(1, put()), replicaset=B, instance=B1, lsns={1: 1}))
    assert (B, 1, 2) in planner.fates
    assert planner.names_waiting() == [(1, 9)]


def test_spaces_are_synchronous_from_their_definition_on() -> None:
    """Tarantool 2.6 logs no flag: the space's own option says it."""
    ddl = (txn(1, define(600, "s", is_sync=True)), txn(1, index(600)), txn(1, put(600)))
    planner = Planner()
    plan = planner.batch(piece(*BEGIN, *ddl))
    assert plan.settlements[A].wait_reason == "transaction 1:5 is not confirmed"
    assert planner.names_waiting() == [(1, 5)]
    planner.batch(piece(txn(1, settling_row("ROLLBACK", 1, 5)), lsns={1: 5}))
    assert planner.states()[1, 5] == "rolled back"


def test_rows_of_a_space_that_a_waiting_row_made_synchronous_wait() -> None:
    ddl = (txn(1, define(600, "s", is_sync=True)), txn(1, index(600)), txn(1, put(600)))
    planner = Planner()
    planner.batch(piece(*BEGIN, txn(1, synchronous_row(put())), *ddl))
    planner.batch(piece(txn(1, settling_row("CONFIRM", 1, 3)), lsns={1: 6}))
    assert planner.names_waiting() == [(1, 6), (1, 7)]


def test_a_space_that_was_not_synchronous_yet_holds_nothing() -> None:
    option = logs.change("UPDATE", 280, key=[600], ops=[["=", 5, {"is_sync": True}]])
    rows = (txn(1, define(600, "s")), txn(1, index(600)), txn(1, put(600)), txn(1, option), txn(1, put(600)))
    planner = Planner()
    planner.batch(piece(*BEGIN, *rows))
    assert planner.names_waiting() == [(1, 7)]


def test_a_dropped_space_that_was_synchronous_holds_nothing() -> None:
    """Another space gets its id, and rows, within a transaction that begins with something else."""
    gone = (txn(1, define(600, "s", is_sync=True)), txn(1, logs.drop(600)))
    planner = Planner()
    planner.batch(piece(*BEGIN, *gone, txn(1, define(601, "u"), define(600, "t"), index(600), put(600))))
    assert planner.names_waiting() == []


@pytest.mark.parametrize(("server", "waiting"), [("2.6.0-0-g47aa4e01e", [(1, 5)]), ("3.9.0-0-g1", [])])
def test_rows_without_a_flag_wait_where_the_server_writes_none(
    server: str, waiting: list[tuple[int, int]]
) -> None:
    ddl = (txn(1, define(600, "s", is_sync=True)), txn(1, index(600)), txn(1, put(600)))
    planner = Planner()
    planner.batch(replace(piece(*BEGIN, *ddl), server=server))
    assert planner.names_waiting() == waiting


def test_synchronous_tuples_of_a_snapshot_wait_for_nobody() -> None:
    rows = (register(1, A1), define(600, "s", is_sync=True), index(600), put(600))
    planner = Planner()
    plan = planner.batch(piece(txn(0, *rows), is_snapshot=True, vclock={1: 9}))
    assert plan.settlements[A].waits_from is None
    assert [fate.table for fate in planner.snapshot] == [None, None, None, "s"]


def test_local_rows_behind_a_snapshot_are_read() -> None:
    planner = Planner()
    snapshot = piece(txn(0, register(1, A1), *[put()] * 20), is_snapshot=True, vclock={0: 3, 1: 9})
    planner.batch(snapshot)
    planner.batch(piece(txn(1, local_row(put())), lsns={0: 3, 1: 9}))
    assert planner.states() == {(0, 4): "committed"}
    assert planner.state.replicasets[A].settled == {0: 4, 1: 9}


def test_sync_spaces_are_those_known_and_those_of_the_batch() -> None:
    known = ReplicasetState(
        1, A, spaces={600: logs.space_rows(600, "s", is_sync=True), 601: logs.space_rows(601, "t")}
    )
    state = State(replicasets={A: known})
    assert sync_spaces(state) == {A: frozenset({600})}
    changes = apply_control_rows({}, {}, [control_row(define(700, "u", is_sync=True), 10)], frozenset())
    assert sync_spaces(state, {A: changes, B: changes}) == {A: frozenset({600, 700}), B: frozenset({700})}


def test_a_refused_space_is_remembered_until_it_is_emptied() -> None:
    planner = Planner(router=build_router(Spaces(exclude=("hidden",)), everything))
    planner.batch(piece(*BEGIN, txn(1, define(600, "hidden")), txn(1, index(600))))
    shown = logs.change("UPDATE", 280, key=[600], ops=[["=", 2, "s"]])
    planner.batch(piece(txn(1, put(600), shown), lsns={1: 4}))
    reason = "it was left out under another name, so its earlier rows are not here"
    assert planner.state.replicasets[A].refused == {600: reason}
    planner.batch(piece(txn(1, put(600)), lsns={1: 6}))
    assert planner.state.replicasets[A].refused == {600: reason}
    assert planner.fates[A, 1, 7].table is None
    planner.batch(piece(txn(1, logs.truncate(600)), txn(1, put(600)), lsns={1: 7}))
    assert planner.state.replicasets[A].refused == {}
    assert planner.fates[A, 1, 9].table == "s"


def test_the_spaces_of_a_table_that_the_configuration_makes_unwritable_are_refused() -> None:
    """A mask of a field of the primary key is new in the configuration; one space leaves the table by a rename."""
    rows = [row for i, name in ((600, "s"), (601, "t")) for row in (define(i, name), index(i), put(i, 1))]
    planner = Planner()
    for uuid, instance in ((A, A1), (B, B1)):
        planner.batch(Piece(logs.batch(txn(1, register(1, instance)), txn(1, *rows)), uuid, instance))
    spaces = planner.config.spaces.model_copy(update={"masks": {"s": {"id": "drop"}}})
    planner.config = planner.config.model_copy(update={"spaces": spaces})
    renamed = logs.change("UPDATE", 280, key=[600], ops=[["=", 2, "u"]])
    plan = planner.batch(
        Piece(logs.batch(txn(1, renamed), txn(1, put(601)), lsns={1: 7}), A, A1),
        Piece(logs.batch(txn(1, put(600)), lsns={1: 7}), B, B1),
    )
    assert list(plan.refused_tables) == ["s"]
    assert sorted(plan.after.replicasets[A].refused) == [600]
    assert plan.after.replicasets[A].tables == {600: "s", 601: "t"}
    assert sorted(plan.after.replicasets[B].refused) == [600]
