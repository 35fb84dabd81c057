"""A sync of real Delta tables: it is incremental and consistent, and refused where it would lose something."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from schemas.errors import LockError, RidStateError, SyncError
from tests.warehouse.copies.standby import Pair
from udfs.rid.comparison import Verdict
from udfs.rid.operations import Node
from udfs.rid.value import EMPTY_ULID, FileLock, Rid
from warehouse.copies import files, switch
from warehouse.copies.generations import common_epoch, compare_warehouses, read_compared_rid
from warehouse.copies.rid import SYNC_START, RidTable
from warehouse.copies.sync import SyncOptions, SyncResult, lost_epochs_after, sync
from warehouse.delta.newest_epoch import newest_versions
from warehouse.lock.lock import WriterLock


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Return a primary with three epochs, and a location for its standby."""
    return Pair(tmp_path)


def node(pair: Pair, side: str) -> Node:
    return RidTable(getattr(pair, side).location).last().node


def verdict(pair: Pair) -> Verdict:
    return compare_warehouses(read_compared_rid(pair.a.location), read_compared_rid(pair.b.location)).verdict


def test_an_empty_location_becomes_a_standby(pair: Pair) -> None:
    done = pair.sync()
    assert pair.b.read_cut() == pair.a.read_cut()
    assert (done.tables.epoch, done.checked_rows) == (2, 3 + 2 + 1 + 3)
    a, b = node(pair, "a").rid, node(pair, "b").rid
    assert (b.head, b.base, b.incoming) == (a.head, a.base, EMPTY_ULID)
    assert (b.consistency, b.primary, b.outdated, b.file_lock) == (True, False, False, FileLock.UNLOCKED)
    assert verdict(pair) is Verdict.SAME
    assert not (pair.b.folder / files.UNFINISHED_FOLDER).exists()


def test_what_lies_beyond_the_cut_is_not_copied(pair: Pair) -> None:
    expected = pair.a.read_cut()
    pair.a.write("_changelog", "a batch in the making")
    pair.a.write("ledger", "a table in the making")
    pair.sync()
    assert pair.b.read_cut() == expected
    assert pair.b.version("_changelog") == pair.a.versions["_changelog"]
    assert "ledger" not in pair.b.location.tables()


def test_a_second_sync_copies_only_what_is_new(pair: Pair) -> None:
    assert pair.sync().copied_bytes > 0
    assert pair.sync().copied_bytes == 0
    pair.batch_a("later", "accounts")
    copied: list[int] = []
    done = pair.sync(on_copied=copied.append, threads=1)
    # A data file and a commit for each of three tables, and the commit by which the writer took its number.
    assert (len(copied), sum(copied)) == (7, done.copied_bytes)
    assert pair.b.read_cut() == pair.a.read_cut()


def test_the_source_is_marked_so_that_its_next_data_are_a_generation(pair: Pair) -> None:
    before = node(pair, "a").rid
    pair.sync()
    assert node(pair, "a").rid.head == before.head
    assert node(pair, "a").next_head is not None
    assert node(pair, "b").next_head is not None
    assert node(pair, "a").next_head != node(pair, "b").next_head
    pair.batch_a("later")
    found = compare_warehouses(read_compared_rid(pair.a.location), read_compared_rid(pair.b.location))
    assert (found.verdict, found.source, found.common) == (Verdict.SYNC, "a", before.head)
    pair.sync()
    assert verdict(pair) is Verdict.SAME
    assert node(pair, "b").rid.old1 == before.head


def test_what_the_source_writes_while_it_is_copied_is_the_next_generation(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = pair.a.read_cut()
    written: list[int] = []

    def reached(step: str) -> None:
        if step == "start" and not written:
            written.append(pair.batch_a("meanwhile", "accounts"))

    monkeypatch.setattr(files, "log_step_done", reached)
    assert pair.sync().tables.epoch == 2
    assert written == [3]
    assert pair.b.read_cut() == expected
    assert verdict(pair) is Verdict.SYNC
    pair.sync()
    assert pair.b.read_cut() == pair.a.read_cut()


def test_a_cluster_id_that_no_epoch_names_is_copied(pair: Pair) -> None:
    pair.a.write("_cluster", "given")
    pair.sync()
    assert "given" in pair.b.values("_cluster")


def test_checkpoints_and_a_cleaned_log_are_copied(pair: Pair) -> None:
    pair.sync()
    table = DeltaTable(str(pair.a.folder / "accounts"))
    for number in range(3):
        pair.batch_a(str(number), "accounts")
    table.update_incremental()
    table.create_checkpoint()
    last = table.version()
    log = pair.a.folder / "accounts" / "_delta_log"
    for version in range(last):
        (log / f"{version:020d}.json").unlink()
    pair.batch_a("after the checkpoint", "accounts")
    pair.sync()
    theirs = sorted(f.name for f in (pair.b.folder / "accounts" / "_delta_log").iterdir())
    assert theirs == sorted(f.name for f in log.iterdir())
    assert pair.b.read_cut() == pair.a.read_cut()


def test_a_checkpoint_beyond_the_cut_is_not_copied(pair: Pair) -> None:
    pair.a.write("accounts", "in the making")
    DeltaTable(str(pair.a.folder / "accounts")).create_checkpoint()
    pair.sync()
    assert not list((pair.b.folder / "accounts" / "_delta_log").glob("*checkpoint*"))
    assert pair.b.read_cut() == pair.a.read_cut()


def test_a_log_that_opens_no_more_at_the_cut_is_refused(pair: Pair) -> None:
    (pair.a.folder / "accounts" / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(SyncError, match="no longer opens at version"):
        pair.sync()


@pytest.mark.parametrize("what", ["missing", "cut short", "one byte"])
def test_a_damaged_file_of_the_target_is_found_and_replaced(pair: Pair, what: str) -> None:
    pair.sync()
    damaged = next((pair.b.folder / "accounts").glob("*.parquet"))
    good = damaged.read_bytes()
    damaged.with_name(f".{damaged.name}.crc").write_text("what Hadoop knew of the damaged one")
    if what == "missing":
        damaged.unlink()
    else:
        damaged.write_bytes(good[:-1] if what == "cut short" else bytes([good[0] ^ 1]) + good[1:])
    assert pair.sync().copied_bytes == len(good)
    assert damaged.read_bytes() == good
    assert not damaged.with_name(f".{damaged.name}.crc").exists() or what == "missing"


def test_a_sync_that_compares_only_what_it_copies_trusts_sizes(pair: Pair) -> None:
    pair.sync()
    damaged = next((pair.b.folder / "accounts").glob("*.parquet"))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(Exception, match=r"[Mm]agic"):
        pair.sync(check_all=False)
    assert node(pair, "b").rid.incoming != EMPTY_ULID
    pair.sync()
    assert pair.b.read_cut() == pair.a.read_cut()


def test_a_crash_of_the_source_is_settled_on_both_sides(pair: Pair) -> None:
    pair.crash_a()
    assert node(pair, "a").rid.crashed_primary
    pair.sync()
    assert not node(pair, "a").rid.crashed_primary
    assert not node(pair, "b").rid.crashed_primary


def fail_over(pair: Pair) -> None:
    """Make the standby a second primary, and let both write."""
    pair.sync()
    switch.promote(pair.b.location)
    pair.b.resume()
    pair.batch_b("only b 1", "accounts")
    pair.batch_b("only b 2", "accounts", "only_b")
    pair.batch_a("only a", "accounts")


def test_a_fail_over_and_back_loses_nothing(pair: Pair) -> None:
    pair.sync()
    switch.demote(pair.a.location)
    switch.promote(pair.b.location)
    pair.b.resume()
    pair.batch_b("on the standby", "accounts")
    with pytest.raises(RidStateError, match="the target is newer than the source"):
        pair.sync()
    sync(pair.b.location, pair.a.location)
    assert pair.a.read_cut() == pair.b.read_cut()
    switch.demote(pair.b.location)
    switch.promote(pair.a.location)
    pair.a.resume()
    pair.batch_a("back again", "accounts")
    assert "on the standby" in pair.a.values("accounts")
    pair.sync()
    assert pair.b.read_cut() == pair.a.read_cut()


def test_a_split_brain_is_not_overwritten(pair: Pair) -> None:
    fail_over(pair)
    before = pair.b.read_cut()
    for reason in ("the target is a primary", "split brain"):
        with pytest.raises(RidStateError, match=reason):
            pair.sync()
        switch.demote(pair.b.location)
    with pytest.raises(RidStateError, match="--discard-target names"):
        pair.sync(discard_rid=node(pair, "a").rid)
    assert pair.b.read_cut() == before
    assert node(pair, "b").rid.incoming == EMPTY_ULID


def test_what_would_be_lost_is_listed_from_the_data_point_before_the_split(pair: Pair) -> None:
    fail_over(pair)
    found = compare_warehouses(read_compared_rid(pair.a.location), read_compared_rid(pair.b.location))
    epoch = common_epoch(read_compared_rid(pair.a.location), read_compared_rid(pair.b.location), found.common)
    assert (found.verdict, epoch) == (Verdict.SPLIT_BRAIN, 2)
    lost = lost_epochs_after(pair.b.location, 2)
    assert (lost.epoch_count, lost.row_count, lost.tables) == (2, 2, ("_changelog", "accounts", "only_b"))
    assert "epochs 3 to 4: 2 rows" in str(lost)
    assert str(lost_epochs_after(pair.b.location, 9)) == "no epoch after 9: nothing would be lost"


def test_a_split_brain_is_healed_by_giving_up_the_target_by_its_name(pair: Pair) -> None:
    fail_over(pair)
    switch.demote(pair.b.location)
    third = Pair(pair.b.folder.parent.parent / "third", of=pair.b)
    sync(pair.b.location, third.b.location)
    pair.sync(discard_rid=node(pair, "b").rid)
    start = [change for change in RidTable(pair.b.location).history() if change.event == SYNC_START][-1]
    assert start.epoch == 2, "the last one before the split"
    assert pair.b.read_cut() == pair.a.read_cut()
    assert verdict(pair) is Verdict.SAME
    assert "only_b" not in pair.b.location.tables()
    assert node(pair, "b").rid.generations == (*node(pair, "a").rid.generations[:2], EMPTY_ULID)
    # Who has the generation that was given up is not taken for an older copy.
    assert (
        compare_warehouses(read_compared_rid(pair.b.location), read_compared_rid(third.b.location)).verdict
        is Verdict.SPLIT_BRAIN
    )
    switch.promote(pair.b.location)
    pair.b.resume()
    head = node(pair, "b").rid.head
    pair.batch_b("after the heal", "accounts")
    assert node(pair, "b").rid.old1 == head


def test_a_split_brain_without_a_common_generation_is_healed_too(pair: Pair) -> None:
    fail_over(pair)
    switch.demote(pair.b.location)
    for number in range(4):
        pair.mark_a()
        pair.batch_a(f"cycled {number}", "accounts")
    found = compare_warehouses(read_compared_rid(pair.a.location), read_compared_rid(pair.b.location))
    assert (found.verdict, found.common) == (Verdict.SPLIT_BRAIN, None)
    pair.sync(discard_rid=node(pair, "b").rid)
    assert pair.b.read_cut() == pair.a.read_cut()


def test_an_unrelated_warehouse_is_never_overwritten(pair: Pair) -> None:
    other = Pair(pair.a.folder.parent.parent / "other")
    switch.demote(other.a.location)
    rid = RidTable(other.a.location).last().node.rid
    with pytest.raises(RidStateError, match="is not a copy of the source"):
        sync(pair.a.location, other.a.location, SyncOptions(discard_rid=rid))


def test_a_source_without_rid_or_with_half_a_copy_is_refused(pair: Pair, tmp_path: Path) -> None:
    shutil.rmtree(pair.a.folder / "_rid")
    with pytest.raises(RidStateError, match="the source has no RID"):
        pair.sync()
    half = Pair(tmp_path / "more")
    half.start()
    with pytest.raises(RidStateError, match="the source has no complete data"):
        sync(half.b.location, Pair(tmp_path / "third", of=half.a).b.location)


def test_a_target_that_is_written_is_refused(pair: Pair) -> None:
    with WriterLock(pair.b.location, "another"), pytest.raises(LockError, match="written by another"):
        pair.sync()
    with pytest.raises(SyncError, match="the same location"):
        sync(pair.a.location, pair.a.location)


def test_a_half_copy_is_not_promoted_unless_the_rest_is_given_up(pair: Pair) -> None:
    pair.sync()
    pair.batch_a("never comes")
    pair.start()
    with pytest.raises(RidStateError, match="has not ended"):
        switch.promote(pair.b.location)
    head = node(pair, "b").rid.head
    switch.promote(pair.b.location, abandon_sync=True)
    found = node(pair, "b").rid
    assert (found.primary, found.incoming, found.head) == (True, EMPTY_ULID, head)


def test_the_result_says_what_was_done(pair: Pair) -> None:
    planned: list[int] = []
    done = pair.sync(on_planned=planned.append)
    assert isinstance(done, SyncResult)
    assert planned == [done.copied_bytes]
    assert done.tables.versions == newest_versions(pair.b.location).versions
    assert done.node.rid != Rid()
