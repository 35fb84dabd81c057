"""Applies the changes of one key by `udfs.versions.key_state`, and raises for the first row that cannot be applied."""

from collections.abc import Iterable, Sequence

from schemas.errors import TupleError
from udfs.operations.tuple_format import TupleFormat
from udfs.versions.key_state import Fold, RowChange, Version


def fold(
    base: Version | None, changes: Iterable[RowChange], formats: Sequence[TupleFormat]
) -> Version | None:
    """Return a key's version after its changes; `base` itself if no row has an effect."""
    state = Fold(formats)
    state.start(base)
    for row in changes:
        state.apply(row)
        for fault in state.faults:
            raise TupleError(fault.reason, global_id=fault.global_id, lsn=fault.lsn, code=fault.code)
    return state.version if state.is_changed else base
