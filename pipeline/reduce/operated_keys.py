"""Applies the rows of keys with operations (UPDATE, UPSERT) to the base version, one by one, as Tarantool does.

`quick_tuples` applies the most frequent operations of many keys at once. The others cost some microseconds of Python
per row. `udfs.versions.kernels.lives` reduces keys without operations, and `udfs.operations.operations` applies one
operation.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.lookup.reduce_plan import ReducePlan
from schemas.row_types import CHANGE_TYPES, TYPE_FOR_ONE_KEY
from udfs.buffers import as_array
from udfs.operations.quick_updates import quick_updates
from udfs.operations.tuple_format import TupleFormat
from udfs.versions.kernels.lives import DELETED, NONE, PRESENT, UNFIT
from udfs.versions.key_state import Fold, Version

_TYPES_FOR_ONE_KEY = [TYPE_FOR_ONE_KEY[kind] for kind in CHANGE_TYPES]

_UPDATE, _UPSERT = CHANGE_TYPES.index("UPDATE"), CHANGE_TYPES.index("UPSERT")


class FoldedKey(NamedTuple):
    """The version of a key after its rows; times in microseconds since 1970; `faults` has the fields of `FAULT`."""

    state: int
    tuple: bytes | None
    global_id: int | None
    lsn: int | None
    timestamp: int | None
    created: int | None
    is_changed: bool
    faults: list[dict[str, Any]]


class BaseVersion(NamedTuple):
    """The version of a key before its rows, as in `pipeline.lookup.versions.BASE_VERSIONS`."""

    state: int
    tuple: bytes | None
    global_id: int | None
    lsn: int | None
    timestamp: int | None
    created: int | None


def fold_keys(
    rows: pa.Table,
    key_numbers: NDArray[np.int32],
    truncations: NDArray[np.int32],
    base_versions: dict[int, BaseVersion],
    era_ends: dict[int, tuple[int, bool]],
    plan: ReducePlan,
) -> dict[int, FoldedKey]:
    """Return the versions of keys after their rows, by key number.

    Args:
        rows: `pipeline.changelog.keyed_rows.KEYED`, of these keys alone; each key's rows together, in log order.
        key_numbers: The number of each row's key (int32[rows]).
        era_ends: By key number: the number of truncations in the era, and whether a generation renews the key's space.
    """
    formats, format_indexes = _formats_of(rows, plan)
    fold = _KeyFold(Fold(formats, plan.tuple_limit_bytes))
    found: dict[int, FoldedKey] = {}
    current = -1
    snapshots = rows["is_snapshot"].to_pylist()
    news = rows["new_tuple"].to_pylist()
    for key, before, is_snapshot, row, new in zip(
        key_numbers.tolist(),
        truncations.tolist(),
        snapshots,
        _row_changes(rows, format_indexes.tolist()),
        news,
        strict=True,
    ):
        if key != current:
            if current >= 0:
                found[current] = fold.finish(*era_ends[current])
            current = key
            fold.begin(base_versions.get(key))
        fold.apply(row, before, is_snapshot, era_ends[key][1], new)
    if current >= 0:
        found[current] = fold.finish(*era_ends[current])
    return found


def _formats_of(rows: pa.Table, plan: ReducePlan) -> tuple[list[TupleFormat], NDArray[np.int64]]:
    """Return the formats under which rows were executed, and the index of each row's format."""
    versions = plan.meanings.versions[rows["meaning"].to_numpy()].astype(np.int64)
    # A row's format depends on its definition, and on the server that the row was read from.
    distinct, indexes = np.unique(versions << 32 | rows["release"].to_numpy(), return_inverse=True)
    formats = [plan.tuple_format(int(pair) >> 32, int(pair) & 0xFFFFFFFF) for pair in distinct]
    return formats, indexes.astype(np.int64)


def quick_tuples(
    rows: pa.Table,
    row_ends: NDArray[np.int64],
    tuples: pa.Array,
    is_plain: NDArray[np.bool_],
    plan: ReducePlan,
) -> pa.Array:
    """Return the tuples of keys after their rows; null where `fold_keys` must apply the rows.

    Args:
        rows: As of `fold_keys`.
        row_ends: Where the rows of each key end (int64[keys]).
        tuples: Of the keys before their rows; null for a key without one.
        is_plain: Whether a key has a tuple, and nothing but its rows changes it (bool[keys]).
    """
    formats, format_indexes = _formats_of(rows, plan)
    types = rows["type"].to_numpy()
    is_checked = np.array([one.check is not None for one in formats], np.bool_)
    own = pc.coalesce(rows["operations"], pc.if_else(pa.array(types == _UPDATE), rows["tuple"], None))
    is_quick = (types == _UPDATE) | ((types == _UPSERT) & ~is_checked[format_indexes])
    is_quick &= pc.is_null(rows["new_tuple"]).to_numpy()
    begins = np.concatenate([[0], row_ends[:-1]])
    return quick_updates(
        tuples,
        is_plain & np.logical_and.reduceat(is_quick, begins),
        row_ends,
        as_array(pc.fill_null(own, b"")),
        pc.fill_null(rows["index_base"], 0).cast(pa.int64()).to_numpy(),
        format_indexes,
        formats,
        plan.tuple_limit_bytes,
    )


def _row_changes(rows: pa.Table, format_indexes: list[int]) -> Iterator[tuple[Any, ...]]:
    kinds = [_TYPES_FOR_ONE_KEY[kind] for kind in rows["type"].to_pylist()]
    columns = (rows[name].to_pylist() for name in ("tuple", "operations", "index_base", "global_id", "lsn"))
    times = rows["timestamp"].cast(pa.int64()).to_pylist()
    return zip(kinds, *columns, times, format_indexes, strict=True)


class _KeyFold:
    """Applies the rows of one key after another, and the events that end versions: truncations, and generations."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._faults: list[dict[str, Any]] = []
        self._truncations, self._is_in_snapshot, self._is_compared, self._ended = 0, False, False, False
        self._before, self._was_known = Version(None, 0, 0, None, None), False

    def begin(self, base: BaseVersion | None) -> None:
        self._truncations, self._is_in_snapshot, self._is_compared, self._ended = 0, False, False, False
        self._faults = []
        if base is None or base.state == NONE:
            self._fold.start(None)
            return
        version = Version(
            *(base.tuple, base.global_id or 0, base.lsn or 0, base.timestamp, base.created),
        )
        self._fold.start(version, base.state == UNFIT and base.tuple is None)

    def apply(
        self,
        row: tuple[Any, ...],
        truncations: int,
        is_snapshot: bool,
        is_renewed: bool,
        logged_result: bytes | None = None,
    ) -> None:
        if is_renewed and is_snapshot:
            if not self._is_in_snapshot:
                self._begin_snapshot()
        elif is_renewed and not self._is_compared:
            self._compare_with_snapshot()
        if truncations > self._truncations:
            self._truncations = truncations
            self._end_version()
        self._fold.apply(row, logged_result)

    def finish(self, truncations: int, is_renewed: bool) -> FoldedKey:
        if is_renewed and not self._is_compared:
            self._compare_with_snapshot()
        if truncations > self._truncations:
            self._end_version()
        fold = self._fold
        version = fold.version
        state = PRESENT if fold.is_present else (DELETED if version.lsn else NONE)
        state = UNFIT if fold.is_unfit else state
        faults = [*self._faults, *map(asdict, fold.faults)]
        return FoldedKey(
            *(state, version.tuple if state in (PRESENT, UNFIT) else None),
            *(version.global_id, version.lsn, version.timestamp, version.created),
            fold.is_changed or self._ended or bool(faults),
            faults,
        )

    def _begin_snapshot(self) -> None:
        """Remember the version before a snapshot, and begin without one: a snapshot has the key's complete state."""
        fold = self._fold
        self._is_in_snapshot, self._was_known = True, fold.is_present and not fold.is_unfit
        self._before, self._ended = fold.version, fold.is_present
        fold.start(None)

    def _compare_with_snapshot(self) -> None:
        """Restore the remembered version if the snapshot has its tuple; remove it if the snapshot lacks the key."""
        self._is_compared = True
        if not self._is_in_snapshot:
            self._end_version()
            return
        fold, before = self._fold, self._before
        if not self._ended or not fold.is_present:
            return
        if self._was_known and not fold.is_unfit and fold.version.tuple == before.tuple:
            fold.start(before)
        else:
            times = [time for time in (fold.timestamp, before.timestamp) if time is not None]
            fold.timestamp, fold.created = max(times, default=None), before.created
        self._ended = False

    def _end_version(self) -> None:
        if self._fold.is_present:
            self._faults += map(asdict, self._fold.faults)
            self._fold.start(None)
            self._ended = True
