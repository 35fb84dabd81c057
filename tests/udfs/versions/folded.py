"""Applies the changes of one key by `udfs.versions.fold`, and raises for the first row that cannot be applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schemas.errors import TupleError
from udfs.operations.tuple_format import TupleFormat
from udfs.versions.fold import Fold, RowChange, Version


def fold(
    base: Version | None,
    changes: Iterable[RowChange],
    formats: Sequence[TupleFormat],
    space: str | None = None,
    key: bytes | None = None,
) -> Version | None:
    """Return a key's version after its changes.

    Parameters
    ----------
    base : Version or None
        The previous version; None if the replicaset has never had the key.
    changes : iterable of RowChange
        In the order of the log.
    formats : sequence of TupleFormat
        By `RowChange.layout`.
    space, key
        For errors.

    Returns
    -------
    Version or None
        `base` itself if no row has an effect.

    Raises
    ------
    TupleError
        A row in the log cannot be applied; with `space`, `key` (hex), `global_id`, `lsn` and, if Tarantool itself
        refuses the row, `code`.

    """
    state = Fold(formats)
    state.start(base)
    for row in changes:
        state.apply(row)
        if state.faults:
            fault = state.faults[0]
            raise TupleError(
                fault.reason,
                space=space,
                key=key.hex() if key is not None else None,
                global_id=fault.global_id,
                lsn=fault.lsn,
                code=fault.code,
            )
    return state.version if state.is_changed else base
