"""Which epochs each generation of a warehouse has, from the history of its RID."""

from pathlib import Path

from tests.udfs.rid.rids import node, ulid
from tests.warehouse.copies.standby import Pair
from tests.warehouse.warehouses import Made
from warehouse.copies import switch
from warehouse.copies.generations import GenerationRange, generations_of, last_epoch_of_generation
from warehouse.copies.rid import RidChange, RidTable
from warehouse.delta.newest_epoch import last_epoch


def held(made: Made) -> list[tuple[int, int, str | None]]:
    found = generations_of(RidTable(made.location).history(), last_epoch(made.location))
    assert [one.ulid for one in found[:3]] == [
        u for u in RidTable(made.location).last().node.rid.generations if int(u)
    ][: len(found)]
    return [(one.first_epoch, one.last_epoch, one.copied_from) for one in found]


def test_without_history_there_is_none() -> None:
    assert generations_of([], -1) == []


def test_each_generation_has_its_epochs_also_in_a_split_and_after_it(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    a = pair.a.location.root
    assert held(pair.a) == [(0, 2, None)]
    pair.sync()
    assert held(pair.b) == [(0, 2, a)]
    pair.batch_a("3")
    pair.batch_a("4")
    assert held(pair.a) == [(3, 4, None), (0, 2, None)]
    pair.sync()
    assert held(pair.b) == [(3, 4, a), (0, 2, a)]
    switch.promote(pair.b.location)
    pair.b.resume()
    for _ in range(3):
        pair.batch_b("b")
    pair.batch_a("5")
    switch.demote(pair.b.location)
    assert held(pair.b) == [(5, 7, None), (3, 4, a), (0, 2, a)]
    pair.sync(discard_rid=RidTable(pair.b.location).last().node.rid)
    assert held(pair.b) == [(5, 5, a), (3, 4, a), (0, 2, a)]


def test_data_that_nobody_settled_are_a_generation_too() -> None:
    history = [RidChange(1, "copy", node("0000:0001:0000:0000:0001", 5, primary=True), epoch=4)]
    assert generations_of(history, 6) == [GenerationRange(ulid(5), 5, 6), GenerationRange(ulid(1), 0, 4)]
    assert generations_of(history, 4) == [GenerationRange(ulid(1), 0, 4)]


def test_the_last_epoch_of_a_generation() -> None:
    found = [GenerationRange(ulid(5), 5, 6), GenerationRange(ulid(1), 0, 4)]
    assert (
        last_epoch_of_generation(found, ulid(1)),
        last_epoch_of_generation(found, ulid(5)),
        last_epoch_of_generation(found, ulid(9)),
    ) == (
        4,
        6,
        None,
    )


def test_how_it_is_drawn() -> None:
    assert GenerationRange(ulid(1), 0, -1).to_generation(is_head=True).note == "head, no epochs yet"
    assert GenerationRange(ulid(1), 3, 3).to_generation(is_head=False).note == "epoch 3"
    assert (
        GenerationRange(ulid(1), 0, 4, "/a").to_generation(is_head=False).note
        == "epochs 0 to 4, copied from /a"
    )
