"""Leaders: which member is read, where a stream begins, where a successor continues."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import SourceError, XlogGapError
from sources.xlog.directory.listing import Listing, LogFile, newest_index_at_most
from sources.xlog.directory.offset import OffsetEntry
from sources.xlog.format.vclock import is_at_most, without_local
from sources.xlog.options import XlogOptions, parse_options
from sources.xlog.stream.failover import (
    MemberFiles,
    entry_at,
    entry_of_successor,
    initial_entry,
    names_of_members_ahead,
    successor_entries,
)

A = "aaaaaaaa-0000-4000-8000-0000000000aa"
HEADER = 100


def file(vclock: Mapping[int, int], suffix: str = "xlog", modified: float | None = 0.0) -> LogFile:
    name = f"{sum(vclock.values()):020d}.{suffix}"
    return LogFile(name, f"/x/{name}", 5000, modified, HEADER, vclock, None, None)


def member(name: str, *headers: Mapping[int, int], modified: float | None = 0.0) -> MemberFiles:
    logs = tuple(file(header, modified=modified) for header in headers)
    return MemberFiles(name, Listing(name, (), logs))


def with_snapshot(name: str, vclock: Mapping[int, int], *headers: Mapping[int, int]) -> MemberFiles:
    snapshot = file(vclock, "snap")
    return MemberFiles(name, Listing(name, (snapshot,), tuple(map(file, headers))), snapshot)


def options(**given: str) -> XlogOptions:
    return parse_options({"path": "/x"} | given)


GONE = MemberFiles("gone", None, None, SourceError("the disk is gone", source="gone"))


def test_an_entry_at_the_start_of_a_file_is_position_0() -> None:
    log = file({0: 4, 1: 5})
    assert entry_at("a1", log, HEADER) == entry_at("a1", log) == OffsetEntry("a1", log.name, 0, {1: 5})
    assert entry_at("a1", log, HEADER + 1).position == HEADER + 1


def test_since_is_dropped_when_a_file_is_beyond_it() -> None:
    assert entry_at("a1", file({1: 5}), 0, {0: 1, 1: 5}).snapshot_vclock == {0: 1, 1: 5}
    assert entry_at("a1", file({0: 1, 1: 6}), 0, {0: 1, 1: 5}).snapshot_vclock is None


def test_logs_begin_at_the_first() -> None:
    assert initial_entry(member("a1", {}, {1: 9}), A, options()).file == file({}).name


def test_start_snapshot_begins_with_the_snapshot() -> None:
    found = initial_entry(with_snapshot("a1", {1: 9}, {}, {1: 9}), A, options(start="snapshot"))
    assert found == OffsetEntry("a1", file({1: 9}, "snap").name, 0, {1: 9})


def test_a_missing_snapshot_is_named() -> None:
    with pytest.raises(SourceError, match="no complete snapshot"):
        initial_entry(member("a1", {}), A, options(start="snapshot"))


def test_an_empty_directory_is_named() -> None:
    with pytest.raises(SourceError, match="no log file"):
        initial_entry(member("a1"), A, options())


def test_an_unreadable_source_gives_its_own_reason() -> None:
    with pytest.raises(SourceError, match="the disk is gone"):
        initial_entry(GONE, A, options())


@pytest.mark.parametrize(
    ("vclock", "expected"),
    [('{"1": 4}', {}), ('{"1": 5}', {1: 5}), ('{"1": 8, "2": 1}', {1: 5}), ('{"1": 9}', {1: 9})],
)
def test_a_start_vclock_begins_in_the_newest_log_not_beyond_it(vclock: str, expected: dict[int, int]) -> None:
    found = initial_entry(
        member("a1", {}, {1: 5}, {1: 9}), A, options(startVclock=f'{{"{A}": {vclock}}}', start="snapshot")
    )
    assert found.vclock == expected


def test_a_start_vclock_that_no_log_reaches_back_to_is_a_gap() -> None:
    with pytest.raises(XlogGapError, match="reaches back"):
        initial_entry(member("a1", {1: 5}), A, options(startVclock=f'{{"{A}": {{"2": 3}}}}'))


def test_local_rows_do_not_matter_between_members() -> None:
    entry = OffsetEntry("a1", "x.xlog", 700, {1: 5, 2: 5})
    assert entry_of_successor(entry, member("a2", {}, {0: 100, 1: 5, 2: 4})) == OffsetEntry(
        "a2", file({0: 100, 1: 5, 2: 4}).name, 0, {1: 5, 2: 4}
    )


def test_a_member_whose_logs_begin_later_cannot_lead() -> None:
    assert entry_of_successor(OffsetEntry("a1", "x.xlog", 0, {1: 5}), member("a2", {1: 6})) is None
    assert entry_of_successor(OffsetEntry("a1", "x.xlog", 0, {1: 5}), GONE) is None


def test_a_leader_lost_inside_its_snapshot_is_followed_by_a_snapshot() -> None:
    entry = OffsetEntry("a1", "x.snap", 700, {1: 5})
    assert entry_of_successor(entry, member("a2", {})) is None
    found = entry_of_successor(entry, with_snapshot("a2", {1: 7}, {}))
    assert found == OffsetEntry("a2", file({1: 7}, "snap").name, 0, {1: 7})


@pytest.mark.parametrize(
    ("held", "begins"), [({1: 4}, {1: 2}), ({1: 1}, {1: 2}), ({1: 9}, {1: 6}), (None, {1: 6})]
)
def test_a_successor_begins_before_a_gap_in_the_leaders_log(
    held: dict[int, int] | None, begins: dict[int, int]
) -> None:
    entry = OffsetEntry("a1", "x.xlog", 0, {1: 7})
    found = entry_of_successor(entry, member("a2", {1: 2}, {1: 6}, {1: 8}), held)
    assert found is not None
    assert found.vclock == begins


def test_a_successor_keeps_since() -> None:
    entry = OffsetEntry("a1", "x.xlog", 0, {1: 5}, {0: 3, 1: 7})
    found = entry_of_successor(entry, member("a2", {1: 4}))
    assert found is not None
    assert found.snapshot_vclock == {1: 7}, "the leader's local rows say nothing"


def test_the_farthest_member_takes_over_then_the_first() -> None:
    entry = OffsetEntry("a1", "x.xlog", 0, {1: 5})
    others = [
        member("a1", {}),
        member("a2", {}, {1: 4}),
        member("a3", {}, {1: 5}),
        member("a4", {}, {1: 5}),
        GONE,
    ]
    assert [found.leader for found in successor_entries(entry, others)] == ["a3", "a4", "a2"]


def test_the_leader_never_succeeds_itself() -> None:
    assert successor_entries(OffsetEntry("a1", "x.xlog", 0, {}), [member("a1", {})]) == []


def test_members_written_long_after_the_leader_seem_ahead() -> None:
    leader = member("a1", {}, modified=100.0)
    others = [
        leader,
        member("a2", {}, modified=160.0),
        member("a3", {}, modified=160.1),
        member("a4", {}, modified=None),
    ]
    assert names_of_members_ahead(leader, others, 60) == ["a3"]
    assert names_of_members_ahead(member("a1", {}, modified=None), others, 60) == []
    assert names_of_members_ahead(GONE, others, 60) == []


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=12)


@given(steps, st.dictionaries(st.integers(1, 3), st.integers(0, 20)))
def test_a_successor_skips_no_row_that_the_leader_had_not_passed(
    written: list[tuple[int, int]], stopped: dict[int, int]
) -> None:
    """For any logs of the successor: the leader's file begins after all rows that the successor skips."""
    vclock: dict[int, int] = {}
    headers = [dict(vclock)]
    for id_, count in written:
        vclock[id_] = vclock.get(id_, 0) + count
        headers.append(dict(vclock))
    logs = tuple(map(file, headers))
    found = entry_of_successor(
        OffsetEntry("a1", "x.xlog", 0, without_local(stopped)), MemberFiles("a2", Listing("a2", (), logs))
    )
    assert found is not None, "logs from the very beginning cover everything"
    start = [log.name for log in logs].index(found.file)
    assert is_at_most(without_local(headers[start]), stopped)
    assert all(not is_at_most(without_local(header), stopped) for header in headers[start + 1 :])
    assert newest_index_at_most(logs, stopped, with_local=False) == start
