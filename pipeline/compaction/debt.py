"""How much compaction has still to do in a table: its compaction debt. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.compaction.choose import sparse_files
from warehouse.delta.table_files import TableFile


@dataclass(frozen=True)
class CompactionDebt:
    """The deleted rows of a table, and the files that are to be written again without them."""

    row_count: int = 0
    """The number of physical rows, deleted ones too."""
    deleted_rows: int = 0
    due_bytes: int = 0
    """The size of the files with so many deleted rows that compaction writes them again."""

    @property
    def deleted_share(self) -> float:
        """Which share of the table's physical rows is deleted."""
        return self.deleted_rows / self.row_count if self.row_count else 0.0


def debt_of(files: Iterable[TableFile]) -> CompactionDebt:
    """Return the debt of a table with these files."""
    listed = list(files)
    return CompactionDebt(
        sum(file.num_records or 0 for file in listed),
        sum(file.vector.cardinality for file in listed if file.vector is not None),
        sum(file.size for file in sparse_files(listed)),
    )
