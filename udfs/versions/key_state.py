"""Applies the rows of one key in one replicaset, in the order of the log: `Fold` is the key's state between two rows.

The result is the tuple that the replicaset's servers have, or a `Fault` that names the row that cannot be applied; it
is never a wrong tuple. `pipeline.reduce.operated_keys` applies the rows of many keys.

Effects (seen live, and in Tarantool's `memtx_space.c`): a DELETE or UPDATE of a missing tuple is in the log and changes
nothing; an UPSERT of a missing tuple inserts; an UPSERT whose operations would change the key changes nothing. After a
row that cannot be applied, the version is *unfit*: its tuple is unknown until a row that does not need the old tuple
(INSERT, REPLACE, DELETE).

During consecutive operations the tuple is stored as a list of its fields, so that a chain of operations splits and
joins it only once: the cost of an operation depends on its change, not on the size of the tuple.

Limit: a tuple that operations make longer than `tuple_limit` is a fault, so neither the memory nor the time of a row
grows with the number of earlier rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.errors import AggregatorError, TupleError, UnsupportedError
from udfs.operations.msgpack_walk import ER_INVALID_MSGPACK, join_tuple, split_tuple
from udfs.operations.operations import apply_upsert, quick_update, updated_fields, upserted_fields
from udfs.operations.tuple_format import TupleFormat


class RowChange(NamedTuple):
    """One row of the log that changes one key."""

    kind: str
    """INSERT, REPLACE, UPDATE, UPSERT or DELETE."""
    tuple: bytes | None
    """MessagePack of INSERT, REPLACE and UPSERT."""
    operations: bytes | None
    """MessagePack of UPDATE and UPSERT; an UPDATE's may be in `tuple`, as in the log."""
    index_base: int | None
    """Body key 0x15; None if it is absent, which means 0."""
    global_id: int
    lsn: int
    """The instance that made the change, and the number of the change there."""
    timestamp: int | None
    """Microseconds since 1970; None for a row without a usable time."""
    format_index: int = 0
    """Index in `Fold`'s `formats` of the format that was valid at the row."""


RowValues = tuple[str, bytes | None, bytes | None, int | None, int, int, int | None, int]
"""A `RowChange`, or its values as a plain tuple, which takes less time to make."""


class Version(NamedTuple):
    """A version of a key: its tuple in one replicaset, or its deletion."""

    tuple: bytes | None
    """None if it was deleted."""
    global_id: int
    lsn: int
    """Instance and lsn of the last change that had an effect."""
    timestamp: int | None
    """Time of that change in microseconds. It never goes back within a life, which begins with the insertion of a
    missing tuple and ends with its deletion."""
    created: int | None
    """Time of the life's insertion; None if deleted or unknown."""
    format_index: int = 0
    """Index of the tuple's format in `Fold`'s `formats`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that cannot be applied, and why.

    `code` is Tarantool's error code; None if Tarantool would apply the row, and only the aggregator cannot.
    """

    global_id: int
    lsn: int
    code: int | None
    reason: str


TUPLE_LIMIT_BYTES = 64 << 20
"""Greatest size in bytes of a tuple after operations; servers allow 1 MiB by default (`memtx_max_tuple_size`)."""

GROWTH_PER_OPERATION_BYTE = 16
"""Greatest growth of a tuple in bytes per byte of operations; decimals grow most. Nulls in gaps are counted apart."""


UNCHECKED_CONSTRAINT = (
    "UPSERT: the space has a constraint, which is not checked here; if the server's constraint forbids the result, the "
    "server has kept the tuple: compare by `aggregator prove`"
)
"""Why the first UPSERT of a key in a batch is named, if the space is a vinyl one with constraints."""


class Fold:
    """The state of one key between two rows.

    Args:
        tuple_limit: Greatest size in bytes of a tuple after operations.

    Attributes:
        is_present: Whether there is a tuple.
        is_unfit: Whether the version is unfit: its tuple is unknown, because an earlier row could not be applied.
        is_changed: Whether a row has had an effect since this attribute was last cleared; `start` clears it.
        faults: Rows of the key that could not be applied.
    """

    __slots__ = (
        *(
            "_fields",
            "_formats",
            "_is_uncertain",
            "_keys",
            "_limit",
            "_size_bound",
            "_tuple",
            "created",
            "faults",
        ),
        *("global_id", "is_changed", "is_present", "is_unfit", "format_index", "lsn", "timestamp"),
    )

    def __init__(self, formats: Sequence[TupleFormat], tuple_limit: int = TUPLE_LIMIT_BYTES) -> None:
        self._formats = formats
        self._keys = [frozenset(part.field for part in fmt.primary_key) for fmt in formats]
        self._limit = self._size_bound = tuple_limit
        self._fields: list[bytes] | None = None
        self.start(None)

    def start(self, base: Version | None, is_unfit: bool = False) -> None:
        """Begin with another key, whose version is `base`; None if the replicaset has never had the key."""
        known = base or Version(None, 0, 0, None, None)
        self._tuple, self.global_id, self.lsn, self.timestamp, self.created, self.format_index = known
        self._forget_fields()
        self.is_present, self.is_unfit = self._tuple is not None or is_unfit, is_unfit
        self.is_changed = self._is_uncertain = False
        self.faults: list[Fault] = []

    @property
    def version(self) -> Version:
        """The version after the rows so far."""
        if self._fields is not None and self._tuple is None:
            self._tuple = join_tuple(self._fields)
        return Version(self._tuple, self.global_id, self.lsn, self.timestamp, self.created, self.format_index)

    def apply(
        self,
        row: RowValues,
        logged: bytes | None = None,
    ) -> None:
        """Apply one row; if it cannot be applied, add it to `faults`.

        Args:
            logged: The tuple that the row's server logged as the result of an UPDATE or UPSERT (`wal_ext`). It becomes
                the version's tuple. If the operations give another tuple here, `faults` describes the difference.
        """
        was_uncertain = self._is_uncertain
        self._apply(row)
        if logged is not None:
            self._use_logged_tuple(row, logged)
        elif self._is_uncertain and not was_uncertain:
            self.faults.append(Fault(row[4], row[5], None, UNCHECKED_CONSTRAINT))

    def _apply(self, row: RowValues) -> None:
        kind, data, operations, index_base, global_id, lsn, timestamp, format_index = row
        if not self.is_present and kind in ("UPDATE", "DELETE"):
            return
        try:
            if kind == "DELETE":
                self._tuple = self.created = None
                self._forget_fields()
                self.is_present = self.is_unfit = False
            elif kind in ("UPDATE", "UPSERT"):
                if not self._apply_operations(kind, data, operations, index_base or 0, format_index):
                    return
            elif kind in ("INSERT", "REPLACE"):
                self._tuple, self.is_unfit = _required_bytes(kind, data), False
                self._forget_fields()
            else:
                raise UnsupportedError(f"a row of type {kind}, which does not change one key")
        except (TupleError, UnsupportedError) as error:
            self._fail(global_id, lsn, error)
            return
        self._record_effect(kind, global_id, lsn, timestamp, format_index)

    def _record_effect(
        self, kind: str, global_id: int, lsn: int, timestamp: int | None, format_index: int
    ) -> None:
        begins = not self.is_present and kind != "DELETE"
        # The time of a new life ignores the deletion before it, which is not known if a batch begins between the two.
        restarts = begins or self.timestamp is None
        if restarts or (timestamp is not None and self.timestamp is not None and timestamp > self.timestamp):
            self.timestamp = timestamp
        if begins:
            self.is_present, self.created = True, timestamp
        self.global_id, self.lsn, self.format_index, self.is_changed = global_id, lsn, format_index, True

    def _use_logged_tuple(
        self,
        row: RowValues,
        logged: bytes,
    ) -> None:
        """Replace the tuple by the one that the server logged, if the two differ, and report the difference."""
        kind, _, _, _, global_id, lsn, timestamp, format_index = row
        own = self.version.tuple if self.is_present and not self.is_unfit else None
        if own == logged:
            return
        reason = _difference(own, logged)
        if self.faults and (self.faults[-1].global_id, self.faults[-1].lsn) == (global_id, lsn):
            reason = self.faults.pop().reason
        text = f"{kind}: the result differs from the new tuple in the log, which is used instead: {reason}"
        self.faults.append(Fault(global_id, lsn, None, text))
        self._record_effect(kind, global_id, lsn, timestamp, format_index)
        self._tuple, self.is_unfit = logged, False
        self._forget_fields()

    def _fail(self, global_id: int, lsn: int, error: AggregatorError) -> None:
        self._tuple = self.version.tuple
        self.faults.append(Fault(global_id, lsn, error.fields.get("code"), error.reason))
        self.is_unfit = self.is_present = True

    def _apply_operations(
        self, kind: str, data: bytes | None, operations: bytes | None, index_base: int, format_index: int
    ) -> bool:
        """Apply operations to the tuple; return whether the row has an effect."""
        if self.is_unfit:
            raise UnsupportedError("the tuple is unknown, because an earlier row could not be applied")
        if operations is None and kind == "UPDATE":
            operations, data = data, None
        fmt, operations = self._formats[format_index], _required_bytes(kind, operations)
        if not self.is_present:
            self._tuple = apply_upsert(None, _required_bytes(kind, data), operations, index_base, fmt)
            self._forget_fields()
            return True
        if self._fields is None:
            self._fields = split_tuple(_required_bytes(kind, self._tuple))
        fields = self._fields
        if not (fmt.check is not None and kind == "UPSERT"):
            quick = quick_update(fields, operations, index_base, fmt.number_by_name, self._keys[format_index])
            if quick is not None:
                self._check_size(fields, sum(len(value) - len(fields[n]) for n, value in quick.items()))
                for number, value in quick.items():
                    fields[number] = value
                self._tuple = None
                return True
        if kind == "UPDATE":
            changed = updated_fields(fields, operations, index_base, fmt)
        else:
            _required_bytes(kind, data)
            changed = upserted_fields(fields, operations, index_base, fmt)
        if changed is fields:
            return False
        if kind == "UPSERT" and fmt.check is not None and fmt.check.is_constrained:
            self._is_uncertain = True
        self._size_bound += len(operations) * GROWTH_PER_OPERATION_BYTE + max(len(changed) - len(fields), 0)
        self._check_size(changed)
        self._fields, self._tuple = changed, None
        return True

    def _forget_fields(self) -> None:
        self._fields, self._size_bound = None, self._limit

    def _check_size(self, fields: list[bytes], growth: int = 0) -> None:
        """Raise if the fields and `growth` bytes exceed the limit; sizes are summed only if they may exceed it."""
        self._size_bound += growth
        if self._size_bound <= self._limit:
            return
        self._size_bound = sum(map(len, fields)) + growth
        if self._size_bound > self._limit:
            raise TupleError(
                f"operations make a tuple of {self._size_bound} bytes, where max_tuple_bytes is {self._limit}"
            )


def _difference(computed: bytes | None, logged: bytes) -> str:
    if computed is None:
        return "there is no tuple here"
    try:
        mine, theirs = split_tuple(computed), split_tuple(logged)
    except TupleError as error:
        return error.reason
    index = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
    if index is None:
        return f"{len(mine)} fields here, {len(theirs)} there"
    return f"field {index + 1} is {mine[index].hex()} here, {theirs[index].hex()} there"


def _required_bytes(kind: str, value: bytes | None) -> bytes:
    if value is None:
        raise TupleError(f"a row of type {kind} lacks its tuple or its operations", code=ER_INVALID_MSGPACK)
    return value
