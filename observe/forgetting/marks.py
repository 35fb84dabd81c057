"""Marks the rows of forgotten keys in tables and in logs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from observe.forgetting.keys import ForgottenKeys
from sources.xlog.reader.plain_rows import PlainRow
from udfs.buffers import as_array

RowTest = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Marks:
    """Which rows are to be forgotten."""

    keys: ForgottenKeys

    def mark(self, table: str, rows: pa.Table) -> pa.BooleanArray:
        """Return whether each row of a table is one of a forgotten key (`pipeline.retention.forgotten.Mark`).

        A decision between two other keys (a unique index) is marked, too, if one of its tuples has the key.
        """
        tests: dict[str, RowTest] = {
            "_changelog": self._is_log_row,
            "_pending": self._is_log_row,
            "_versions": self._is_decided_row,
            "_conflicts": self._is_decided_row,
            "_quarantine": self._is_decided_row,
            "_requests": self._has_text,
            "_validations": self._has_text,
        }
        test = tests.get(table, self._is_table_row)
        texts = self.keys.searched if test == self._has_text else self.keys.row_needles
        candidates = _candidates(rows, texts)
        found = np.zeros(rows.num_rows, np.bool_)
        indices = np.flatnonzero(candidates)
        for index, row in zip(indices, rows.take(pa.array(indices)).to_pylist(), strict=True):
            found[index] = test(row)
        return pa.array(found)

    def _is_log_row(self, row: Mapping[str, Any]) -> bool:
        space, ids = self.keys.space, (row["replicaset_id"], row["space_id"])
        is_of_space = space.includes_row(row) if "space" in row else ids in space.replicaset_and_space_ids
        return is_of_space and self.is_logged(row)

    def is_logged(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of a log of the space has one of the keys, or ends a deleted range there."""
        is_range = row["type"] == "DELETE_RANGE"
        return self.keys.is_row(row) or (is_range and self.keys.is_range_end(row["body"]))

    def is_read(self, row: PlainRow) -> bool:
        """Return `is_logged` of a row that was read from a file; its space is not compared."""
        return self.is_logged({"key": row.key, "tuple": row.tuple, "type": row.type, "body": row.body})

    def _is_decided_row(self, row: Mapping[str, Any]) -> bool:
        if row["space"] not in self.keys.space.tables | self.keys.space.names:
            return False
        tuples = [row[name] for name in ("tuple", "winner_tuple", "loser_tuple") if name in row]
        return self.keys.is_key(row["key"]) or any(map(self.keys.is_tuple, tuples))

    def _is_table_row(self, row: Mapping[str, Any]) -> bool:
        return self.keys.is_key(row["_key"])

    def _has_text(self, row: Mapping[str, Any]) -> bool:
        pattern = self.keys.pattern
        return pattern is not None and any(
            value is not None and pattern.search(value.encode("utf-8", "surrogateescape"))
            for value in row.values()
        )


def _candidates(rows: pa.Table, needles: Sequence[bytes] | None) -> NDArray[np.bool_]:
    """Return for each row whether one of its columns has some of the bytes; all rows without bytes to look for."""
    if needles is None:
        return np.ones(rows.num_rows, np.bool_)
    found = np.zeros(rows.num_rows, np.bool_)
    for column in rows.columns:
        if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
            continue
        values = column.cast(pa.binary())
        for needle in needles:
            matches = pc.fill_null(pc.match_substring(values, pattern=needle), False)
            found |= as_array(matches).to_numpy(zero_copy_only=False)
    return found
