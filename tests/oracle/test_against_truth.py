"""The oracle gives what the servers themselves reported: every space of every recording, byte for byte."""

from functools import cache
from pathlib import Path

import pytest

from tests.oracle import Folded, fold_directory
from tests.truth import Recording, own, recordings

ALL = [(recording, node) for recording in recordings() for node in recording.nodes]
HOT = [(recording, f"hot/{node}") for recording in recordings() for node in recording.hot]
HOT_WITH_TRUTH = [(recording, node) for recording, node in HOT if recording.has_truth(node)]


@cache
def folded_of(recording: Recording, node: str) -> Folded:
    return fold_directory(recording.directory(node))


def name(value: Recording | str) -> str:
    return value.name if isinstance(value, Recording) else value


def differing(recording: Recording, node: str, folded: Folded) -> dict[str, tuple[int, int]]:
    """Return the spaces whose tuples are not the server's: how many too many, how many too few."""
    found = folded.by_name()
    wrong = {}
    for space in recording.kept_spaces(node):
        got, want = found[space].tuples(), recording.tuples(node, space)
        if sorted(got) != sorted(want):
            wrong[space] = (len(set(got) - set(want)), len(set(want) - set(got)))
    return wrong


def incomplete(folded: Folded) -> set[str]:
    return {space.name for space in folded.by_name().values() if not space.is_complete}


@pytest.mark.parametrize(("recording", "node"), ALL + HOT_WITH_TRUTH, ids=name)
def test_folding_the_logs_gives_the_servers_tuples(recording: Recording, node: str) -> None:
    folded = folded_of(recording, node)
    assert set(differing(recording, node, folded)) == incomplete(folded)
    assert folded.by_name().keys() >= recording.kept_spaces(node).keys()


@pytest.mark.parametrize(("recording", "node"), ALL + HOT_WITH_TRUTH, ids=name)
def test_only_a_replica_that_joined_late_lacks_rows_and_says_which(recording: Recording, node: str) -> None:
    """The anonymous one joined when `vin` had rows: they are in `.run` files. All others begin before."""
    folded = folded_of(recording, node)
    assert incomplete(folded) == ({"vin"} if node == "anon" else set())


@pytest.mark.parametrize(("recording", "node"), ALL, ids=name)
def test_from_the_last_snapshot_on_it_comes_to_the_same(recording: Recording, node: str) -> None:
    folded = fold_directory(recording.directory(node), snapshot=recording.snapshots(node)[-1])
    assert set(differing(recording, node, folded)) <= incomplete(folded)


@pytest.mark.parametrize(("recording", "node"), ALL, ids=name)
def test_who_is_who(recording: Recording, node: str) -> None:
    folded, info = folded_of(recording, node), recording.info(node)
    assert folded.cluster == info.cluster
    assert folded.replicaset_uuid == info.replicaset_uuid


@pytest.mark.parametrize(("recording", "node"), ALL, ids=name)
def test_every_origin_of_a_change_is_known(recording: Recording, node: str) -> None:
    folded, vclock = folded_of(recording, node), recording.info(node).vclock
    for space in folded.by_name().values():
        for version in space.versions.values():
            assert version.replica_id in {0, *folded.cluster}
            if not space.is_local:
                assert version.lsn <= vclock.get(version.replica_id, 0)
            assert version.created <= version.timestamp


@pytest.mark.parametrize("recording", recordings(), ids=name)
@pytest.mark.parametrize("side", ["A", "B"])
def test_members_agree_on_origins_though_not_on_times(recording: Recording, side: str) -> None:
    first, second = (folded_of(recording, node).by_name() for node in recording.side(side))
    for space in recording.global_spaces(recording.side(side)[0]):
        one = {k: (v.tuple, v.replica_id, v.lsn) for k, v in first[space].versions.items() if v.lsn}
        two = {k: (v.tuple, v.replica_id, v.lsn) for k, v in second[space].versions.items() if v.lsn}
        assert one == two, space


def test_rows_that_the_snapshot_has_already_are_passed_over(tmp_path: Path) -> None:
    snapshot = own().snapshots("a1")[-1]
    before = [path for path in own().logs("a1") if path.stem < snapshot.stem]
    for path in (snapshot, before[-1]):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    versions = [
        one for space in fold_directory(tmp_path).by_name().values() for one in space.versions.values()
    ]
    assert len(versions) > 300
    assert {one.lsn for one in versions} == {0}


def test_a_torn_last_block_is_left_out(tmp_path: Path) -> None:
    """Cut anywhere in the last log: what is before the cut is folded, and nothing fails."""
    recording = recordings()[0]
    source = recording.directory("hot/a1")
    for path in (*source.glob("*.snap"), *source.glob("*.xlog")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    last = max(tmp_path.glob("*.xlog"))
    data = last.read_bytes()
    counts = []
    for end in range(len(data), len(data) - 300, -50):
        last.write_bytes(data[:end])
        counts.append(sum(len(space.versions) for space in fold_directory(tmp_path).by_name().values()))
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < counts[0]
