"""Which files are joined: by their sizes alone."""

from collections.abc import Iterator

import pytest

from pipeline.compaction.choose import (
    SizedFile,
    crowded_size_classes,
    groups_to_join,
    is_join_due,
    large_groups,
    small_files,
)
from pipeline.write.limits import (
    CHECK_EVERY_COMMITS,
    COMPACT_BELOW_BYTES,
    FILE_BYTES,
    LARGE_FILE_BYTES,
    LARGE_FILE_MEMORY_BYTES,
    MANY_FILES,
    MAX_FOOTERS_READ,
    MAX_FULL_FILES_BYTES,
    MAX_JOINED_BYTES,
    MAX_JOINED_MEMORY_BYTES,
    MIN_FILES_TO_JOIN,
    SIZE_CLASS_BYTES,
)
from warehouse.delta.table_files import TableFile


def file(size: int, number: int = 0) -> TableFile:
    return TableFile(f"{number}.parquet", size, num_records=None)


def sized(size: int, memory_bytes: int) -> SizedFile:
    return SizedFile(file(size), memory_bytes)


@pytest.mark.parametrize(
    ("version", "added", "is_due"),
    [(CHECK_EVERY_COMMITS, 1, True), (CHECK_EVERY_COMMITS + 1, 1, False), (1, CHECK_EVERY_COMMITS, True)],
)
def test_a_table_is_checked_after_some_commits_or_files(version: int, added: int, is_due: bool) -> None:
    assert is_join_due(version, added) is is_due


def test_only_a_size_class_with_many_files_is_joined() -> None:
    low, high = SIZE_CLASS_BYTES
    tiny = [file(low - 1 - number, number) for number in range(MIN_FILES_TO_JOIN)]
    larger = [file(low + number, 100 + number) for number in range(MIN_FILES_TO_JOIN - 1)]
    assert crowded_size_classes([*larger, *tiny, file(high, 999)]) == [tiny[::-1]]
    assert crowded_size_classes([*tiny[1:], *larger]) == []


def test_at_most_some_footers_are_read_after_a_batch() -> None:
    files = [file(number, number) for number in range(2 * MAX_FOOTERS_READ)]
    assert crowded_size_classes(files) == [files[:MAX_FOOTERS_READ]]


def test_maintenance_joins_files_below_a_size() -> None:
    assert small_files([file(COMPACT_BELOW_BYTES), file(COMPACT_BELOW_BYTES - 1)]) == [
        file(COMPACT_BELOW_BYTES - 1)
    ]


def test_a_group_has_at_most_so_many_bytes() -> None:
    half = MAX_JOINED_BYTES // 2
    assert [len(one) for one in groups_to_join([sized(half, 1)] * 5)] == [2, 2], "the last one is alone"
    assert [len(one) for one in groups_to_join([sized(half + 1, 1)] * 4)] == []


def test_a_group_has_at_most_so_much_memory() -> None:
    quarter = MAX_JOINED_MEMORY_BYTES // 4 - 1
    assert quarter < FILE_BYTES // 2
    assert [len(one) for one in groups_to_join([sized(1, quarter)] * 6)] == [4, 2]


def test_a_large_file_is_in_no_group_and_ends_none() -> None:
    small, large = sized(1, 1), sized(1, FILE_BYTES // 2)
    assert [len(one) for one in groups_to_join([small, large, small])] == [2]


def test_files_are_read_only_up_to_the_first_full_group() -> None:
    """Each file costs the reading of a footer."""
    read = 0

    def files() -> Iterator[SizedFile]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield sized(MAX_JOINED_BYTES // 2, 1)

    assert len(next(groups_to_join(files()))) == 2
    assert read == 3


def test_full_files_of_a_table_with_many_become_large_ones() -> None:
    full = [sized(LARGE_FILE_BYTES // 4, FILE_BYTES // 2)] * 10
    assert [len(one) for one in large_groups(full, MANY_FILES + 1)] == [4, 4, 2]
    assert large_groups(full, MANY_FILES) == []
    many = sum(len(one) for one in large_groups(full * 20, MANY_FILES + 1))
    assert many == MAX_FULL_FILES_BYTES // full[0].file.size
    in_memory = [sized(1, LARGE_FILE_MEMORY_BYTES // 2)] * 5
    assert [len(one) for one in large_groups(in_memory, MANY_FILES + 1)] == [2, 2], "the last one is alone"


def test_a_file_is_joined_as_a_small_one_or_as_a_full_one() -> None:
    files = [SizedFile(file(1, n), (FILE_BYTES // 2) * (n % 2)) for n in range(8)]
    small, full = list(groups_to_join(files)), large_groups(files, MANY_FILES + 1)
    assert [one.path for group in small for one in group] == [
        "0.parquet",
        "2.parquet",
        "4.parquet",
        "6.parquet",
    ]
    assert [one.path for group in full for one in group] == [
        "1.parquet",
        "3.parquet",
        "5.parquet",
        "7.parquet",
    ]
