"""Chooses which files of a table are joined, from their sizes. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
    SPARSE_SHARE,
)
from warehouse.delta.table_files import TableFile


@dataclass(frozen=True)
class SizedFile:
    """A file that may be joined, with the approximate size of its rows in memory."""

    file: TableFile
    memory_bytes: int


def is_join_due(version: int, added_files: int) -> bool:
    """Return whether to look for small files of a table after a batch: after every few commits, or many new files."""
    return added_files >= CHECK_EVERY_COMMITS or version % CHECK_EVERY_COMMITS == 0


def crowded_size_classes(files: Iterable[TableFile]) -> list[list[TableFile]]:
    """Return the files to choose from after a batch: of each size class with many files, the smallest ones."""
    listed = sorted(files, key=lambda file: file.size)
    crowded = []
    low = 0
    for high in SIZE_CLASS_BYTES:
        small = [file for file in listed if low <= file.size < high]
        if len(small) >= MIN_FILES_TO_JOIN:
            crowded.append(small[:MAX_FOOTERS_READ])
        low = high
    return crowded


def small_files(files: Iterable[TableFile]) -> list[TableFile]:
    """Return the files that maintenance joins."""
    return [file for file in files if file.size < COMPACT_BELOW_BYTES]


def groups_to_join(
    files: Iterable[SizedFile],
    max_memory_bytes: int = MAX_JOINED_MEMORY_BYTES,
    max_file_memory_bytes: int = FILE_BYTES // 2,
) -> Iterator[list[TableFile]]:
    """Divide files, in their order, into groups within the limits; yield the groups of at least two files."""
    group: list[TableFile] = []
    size = in_memory = 0
    for one in files:
        if one.memory_bytes >= max_file_memory_bytes:
            continue
        is_full = size + one.file.size > MAX_JOINED_BYTES or in_memory + one.memory_bytes > max_memory_bytes
        if group and is_full:
            if len(group) > 1:
                yield group
            group, size, in_memory = [], 0, 0
        group.append(one.file)
        size, in_memory = size + one.file.size, in_memory + one.memory_bytes
    if len(group) > 1:
        yield group


def large_groups(
    files: Iterable[SizedFile],
    file_count: int,
    min_file_memory_bytes: int = FILE_BYTES // 2,
    max_memory_bytes: int = LARGE_FILE_MEMORY_BYTES,
) -> list[list[TableFile]]:
    """Divide the full files of a table with many files, in their order, into groups that each become one large file.

    Args:
        files: Files that are not large yet; those that `groups_to_join` chooses are left out.
        file_count: The number of all files of the table.
    """
    if file_count <= MANY_FILES:
        return []
    groups: list[list[TableFile]] = [[]]
    size = in_memory = total = 0
    for one in files:
        total += one.file.size if one.memory_bytes >= min_file_memory_bytes else 0
        if one.memory_bytes < min_file_memory_bytes or total > MAX_FULL_FILES_BYTES:
            continue
        size, in_memory = size + one.file.size, in_memory + one.memory_bytes
        if size > LARGE_FILE_BYTES or in_memory > max_memory_bytes:
            groups.append([])
            size, in_memory = one.file.size, one.memory_bytes
        groups[-1].append(one.file)
    return [group for group in groups if len(group) > 1]


def sparse_files(files: Iterable[TableFile]) -> list[TableFile]:
    """Return the files with so many deleted rows that they are written again, those with the largest share first."""
    shares = {file: deleted_share(file) for file in files if file.vector is not None}
    return sorted(
        (file for file in shares if shares[file] * SPARSE_SHARE > 1), key=lambda file: -shares[file]
    )


def deleted_share(file: TableFile) -> float:
    """Return which share of a file's rows is deleted."""
    if file.vector is None or not file.num_records:
        return 0.0
    return file.vector.cardinality / file.num_records


def affordable(files: Iterable[TableFile], credit_bytes: int) -> list[TableFile]:
    """Return the first files that have at most `credit_bytes` together."""
    found: list[TableFile] = []
    for file in files:
        credit_bytes -= file.size
        if credit_bytes < 0:
            break
        found.append(file)
    return found
