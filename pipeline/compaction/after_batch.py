"""Writes files again after a batch: joins small ones, and leaves out deleted rows of sparse ones, within a budget.

No commit changes a row. Each batch that writes to a table gives it a credit, a multiple of the bytes that it wrote.
Sparse files are written again once the table has a credit of their size, so that compaction writes no more than this
multiple, and no batch waits for a file that it could not pay. Maintenance does the rest.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from pipeline.compaction.choose import (
    affordable,
    crowded_size_classes,
    groups_to_join,
    is_join_due,
    sparse_files,
)
from pipeline.compaction.debt import CompactionDebt, debt_of
from pipeline.compaction.rewrite import sized_files, write_again, write_joined
from pipeline.write.limits import COMPACTION_SHARE
from schemas.errors import TableMovedError
from schemas.tables import SYSTEM_TABLES
from warehouse.delta.commits import OpenTables
from warehouse.delta.data_files import DataFile

log = logging.getLogger(__name__)


class CompactionCredits:
    """How many bytes compaction may write to each table, in the process that commits batches."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        """The bytes that compaction has written, by table."""
        self.debts: dict[str, CompactionDebt] = {}
        """By table with deletion vectors: its debt when it was last looked for."""
        self.memory_bytes: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """By table and path: the sizes in memory of the small files that were last looked at."""

    def add(self, table: str, added: list[DataFile]) -> None:
        """Add to a table's credit what a batch wrote to it."""
        self._bytes[table] += COMPACTION_SHARE * sum(file.size for file in added)

    def pay(self, table: str, size: int) -> None:
        """Take the size of files that are written again from a table's credit."""
        self._bytes[table] -= size

    def written_to_spaces(self) -> int:
        """Return the bytes that compaction has written to tables of spaces."""
        return sum(size for table, size in self.written.items() if table not in SYSTEM_TABLES)

    def of(self, table: str) -> int:
        """Return the credit of a table."""
        return self._bytes[table]


def compact_after_batch(
    tables: OpenTables,
    versions: Mapping[str, int],
    added_files: Mapping[str, int],
    credits: CompactionCredits,
    orders: Mapping[str, Sequence[str]],
) -> dict[str, int]:
    """Write files of tables again where it is due, and return the new versions of these tables.

    Args:
        orders: The `cluster_by` of the tables.
    """
    due = [name for name, version in versions.items() if is_join_due(version, added_files.get(name, 0))]
    after = {}
    for name in sorted(due):
        try:
            after[name] = _compact(tables, name, credits, orders.get(name, ()))
        except TableMovedError as error:
            log.info("%s is not compacted after this batch: %s", name, error)
            after[name] = tables.version(name)
    return {name: version for name, version in after.items() if version != versions[name]}


def _compact(tables: OpenTables, table: str, credits: CompactionCredits, cluster_by: Sequence[str]) -> int:
    """Write a table's sparse files again as far as its credit goes, then join small files; return its version."""
    version = tables.version(table)
    files = tables.files(table)
    known = credits.memory_bytes[table]
    for file in affordable(sparse_files(files), credits.of(table)):
        added = write_again(tables, table, file, cluster_by)
        credits.pay(table, file.size)
        credits.written[table] += sum(one.size for one in added)
        version = tables.commit(table, added, [(file, False)])
        files = tables.files(table)
    for crowded in crowded_size_classes(files):
        group = next(groups_to_join(sized_files(tables, table, crowded, known)), [])
        if group:
            added = write_joined(tables, table, group, cluster_by)
            credits.written[table] += sum(one.size for one in added)
            version = tables.commit(table, added, [(file, False) for file in group])
            files = tables.files(table)
    paths = {file.path for file in files}
    credits.memory_bytes[table] = {path: size for path, size in known.items() if path in paths}
    if table in credits.debts or any(file.vector is not None for file in files):
        credits.debts[table] = debt_of(files)
    return version
