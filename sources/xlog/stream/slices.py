"""Selects the rows of a vinyl run that still belong to its space, after a range of the index was split.

A range that is split shares its runs with the new ranges: each has a *slice* of the run, from a first key up to a key
that belongs to the next one. Compaction of one range writes its rows to another run and takes only its own slice away.
The file keeps the old statements of that slice, and a deleted key would be back if they were read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import TupleError, XlogRowError
from schemas.space import KeyPart, Space, part_of
from sources.xlog.format.vylog import Interval

IsInSlices = Callable[[pa.RecordBatch], pa.Array]


@dataclass(frozen=True)
class Slices:
    """The slices of one run that belong to ranges, as plain data that is sent to Spark's workers."""

    space_id: int
    key_parts: Any
    """The parts of the primary key, as the `.vylog` has them."""
    intervals: tuple[Interval, ...]

    def selector(self, file: str) -> IsInSlices:
        """Return a function that says which statements of a batch are in a slice.

        A statement without a valid key is kept: later stages set it aside, by name.

        Raises:
            XlogRowError: A bound is no key of the index.
            UnsupportedError: The primary key has no canonical form, as one with a collation.
        """
        # Kernels are needed only here: the daemon reads directories without them.
        from udfs.keys.key_order import directions_of, key_order, ordered_keys
        from udfs.keys.keys import canonical_keys_with_plan, canonical_prefixes, key_plan

        space = Space(self.space_id, 0, str(self.space_id), "vinyl", (), self._key_parts(file))
        plan, order = key_plan([space]), key_order([directions_of(space)])

        def ordered(keys: pa.Array) -> pa.Array:
            return ordered_keys(keys, order, np.zeros(len(keys), np.int32))

        def bounds_of(values: list[bytes | None]) -> list[bytes | None]:
            found = canonical_prefixes(pa.array(values, pa.binary()), plan)
            reason = next((one for one in found.field("error").to_pylist() if one is not None), None)
            if reason is not None:
                raise XlogRowError(f"a slice has an invalid bound: {reason}", file=file, offset=0)
            return list(ordered(found.field("key")).to_pylist())

        begins, ends = (bounds_of(list(side)) for side in zip(*self.intervals, strict=True))

        def is_in_slices(batch: pa.RecordBatch) -> pa.Array:
            is_delete = pc.equal(batch["type"], "DELETE")
            data = pc.if_else(is_delete, batch["key"], batch["tuple"])
            keys = ordered(canonical_keys_with_plan(data, plan, 0, pc.invert(is_delete)).field("key"))
            inside = pc.is_null(keys)
            for begin, end in zip(begins, ends, strict=True):
                own = pc.is_valid(keys)
                if begin is not None:
                    own = pc.and_(own, pc.fill_null(pc.greater_equal(keys, pa.scalar(begin)), False))
                if end is not None:
                    own = pc.and_(own, pc.fill_null(pc.less(keys, pa.scalar(end)), False))
                inside = pc.or_(inside, own)
            return inside

        return is_in_slices

    def _key_parts(self, file: str) -> tuple[KeyPart, ...]:
        try:
            if not isinstance(self.key_parts, list | tuple) or not self.key_parts:
                raise TupleError("it has no parts")
            parts = tuple(map(part_of, self.key_parts))
        except TupleError as error:
            raise XlogRowError(
                f"the primary key of space {self.space_id} is invalid: {error.reason}",
                file=file,
                offset=0,
            ) from None
        return parts
