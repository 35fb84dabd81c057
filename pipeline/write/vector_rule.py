"""Decides whether a batch deletes rows of a table by deletion vectors, or writes their files again. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from config.lookups import DEFAULT_VECTORS_ABOVE, VectorMode
from pipeline.write.limits import REWRITTEN_BESIDE_VECTORS_BYTES
from warehouse.delta.deletion_vectors import RowNumbers
from warehouse.delta.table_files import TableFile

Deletions = Mapping[TableFile, RowNumbers]
"""The physical numbers of the rows to delete, by file."""


@dataclass(frozen=True)
class VectorRule:
    """When the rows of one table are deleted by deletion vectors."""

    mode: VectorMode = "auto"
    above: int = DEFAULT_VECTORS_ABOVE
    """Under `auto`: the size in bytes of the files that a batch writes again at most."""
    is_enabled: bool = False
    """Whether the table allows deletion vectors already."""

    def uses_vectors(self, removed: Deletions) -> bool:
        """Return whether rows are deleted by vectors."""
        if self.mode == "auto":
            rewritten = [file for file, rows in removed.items() if not _is_whole(file, rows)]
            return self.is_enabled or sum(file.size for file in rewritten) > self.above
        return self.mode == "always"

    def divided(self, removed: Deletions) -> tuple[list[TableFile], Deletions, Deletions]:
        """Return (files without a remaining row, deletions by vectors, deletions by writing the files again)."""
        whole = [file for file, rows in removed.items() if len(rows) and _is_whole(file, rows)]
        others = {file: rows for file, rows in removed.items() if file not in set(whole)}
        if not self.uses_vectors(removed):
            return whole, {}, others
        small = 0 if self.mode == "always" else min(self.above, REWRITTEN_BESIDE_VECTORS_BYTES)
        return (
            whole,
            {file: rows for file, rows in others.items() if file.size >= small},
            {file: rows for file, rows in others.items() if file.size < small},
        )


NO_VECTORS = VectorRule("never")


def _is_whole(file: TableFile, rows: RowNumbers) -> bool:
    return file.rows is not None and len(rows) >= file.rows and len(np.unique(rows)) == file.rows
