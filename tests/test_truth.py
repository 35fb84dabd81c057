"""The loader of recordings: what it finds, and that it reads each of the layouts."""

from pathlib import Path

import pytest

from tests import truth
from tests.oracle import mp
from tests.truth import Recording, own, recordings


def test_the_repositorys_own_recording_is_always_there() -> None:
    assert own().name == "own-2.6.0"
    assert own().nodes == ("a1", "a2", "b1", "b2")
    assert own().hot == ("a1", "b1")


@pytest.mark.parametrize("recording", recordings(), ids=lambda one: one.name)
def test_every_recording_has_two_replicasets_of_two(recording: Recording) -> None:
    assert recording.side("A") == ("a1", "a2")
    assert recording.side("B") == ("b1", "b2")
    infos = [recording.info(node) for node in ("a1", "a2", "b1", "b2")]
    assert [info.replica_id for info in infos] == [1, 2, 1, 2]
    assert len({info.replicaset_uuid for info in infos}) == 2
    for info in infos:
        assert info.cluster[info.replica_id] == info.instance_uuid
        assert info.version in recording.name


@pytest.mark.parametrize("recording", recordings(), ids=lambda one: one.name)
def test_members_of_a_replicaset_hold_the_same(recording: Recording) -> None:
    for side in ("A", "B"):
        first, second = recording.side(side)
        assert recording.global_spaces(first) == recording.global_spaces(second)
        for space in recording.global_spaces(first):
            assert sorted(recording.tuples(first, space)) == sorted(recording.tuples(second, space))


@pytest.mark.parametrize("recording", recordings(), ids=lambda one: one.name)
def test_the_counts_and_the_tuples_agree_with_the_json(recording: Recording) -> None:
    for node in recording.nodes:
        for space in recording.spaces(node):
            lines = (recording.root / "truth" / node / f"{space}.json").read_bytes().splitlines()
            tuples = recording.tuples(node, space)
            assert len(tuples) == len([line for line in lines if line])
            assert all(mp.is_array(one) for one in tuples)


def test_definitions_come_from_the_system_spaces() -> None:
    accounts = own().spaces("a1")["accounts"]
    assert [field.name for field in accounts.fields] == ["id", "name", "balance", "updated", "email"]
    assert accounts.fields[-1].is_nullable
    assert [part.field for part in own().spaces("a1")["rekeyed"].primary_key] == [0, 1]
    assert own().spaces("a1")["ledger"].is_sync
    assert own().spaces("a1")["vin"].engine == "vinyl"


def test_local_and_temporary_spaces_are_no_global_ones() -> None:
    held = own().spaces("a1")
    assert held["loc"].is_local
    assert held["tmp"].is_temporary
    assert held.keys() - own().global_spaces("a1").keys() == {"loc", "tmp"}
    assert held.keys() - own().kept_spaces("a1").keys() == {"tmp"}


def test_files_come_in_the_order_of_their_signatures() -> None:
    logs = [int(path.stem) for path in own().logs("a1")]
    assert logs == sorted(logs)
    assert len(logs) > 3
    assert own().snapshots("a1")[0].name == f"{0:020}.snap"


def test_a_hot_copy_has_a_truth_of_its_moment() -> None:
    assert own().has_truth("hot/a1")
    assert not own().has_truth("hot/a2")
    hot, final = own().info("hot/a1"), own().info("a1")
    assert hot.instance_uuid == final.instance_uuid
    assert sum(hot.vclock.values()) < sum(final.vclock.values())


def test_further_recordings_are_found_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "9.9.9" / "truth").mkdir(parents=True)
    monkeypatch.setenv("AGGREGATOR_RECORDINGS", str(tmp_path))
    truth.recordings.cache_clear()
    try:
        assert [one.name for one in recordings()] == ["own-2.6.0", "shared-9.9.9"]
    finally:
        truth.recordings.cache_clear()


def test_without_further_recordings_the_own_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGGREGATOR_RECORDINGS", str(tmp_path / "nowhere"))
    truth.recordings.cache_clear()
    try:
        assert recordings() == (own(),)
    finally:
        truth.recordings.cache_clear()


def test_conflicts_tell_who_came_first() -> None:
    entries = own().conflicts()
    assert {entry["round"] for entry in entries} == {0, 1, 2}
    assert all({entry["first"], entry["second"]} == {"a", "b"} for entry in entries)
