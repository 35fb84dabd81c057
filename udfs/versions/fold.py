"""One key's version of one replicaset, folded over its changes in the order of the log.

A pure function of the version before and the changes: it gives the tuple that the replicaset's own servers
hold, or names the row that it cannot apply; never a wrong tuple.

Not here: which rows belong to a key and in which order (Spark), the choice between replicasets
(before_replace), the same over many keys (`pipeline.reduce.fold`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schemas.errors import TupleError
from udfs.operations.tuple_format import TupleFormat
from udfs.versions.fold_state import Fold
from udfs.versions.version import RowChange, Version

ADVICE = "the key stays in _quarantine until a row or a snapshot gives its whole tuple"


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
        The version before; None where the replicaset has never had the key.
    changes : iterable of RowChange
        In the order of the log.
    formats : sequence of TupleFormat
        By `Change.layout`.
    space, key
        For errors.

    Returns
    -------
    Version or None
        `base` itself where no row counts.

    Raises
    ------
    TupleError
        A row in the log cannot be applied; with `space`, `key` (hex), `global_id`, `lsn` and, where it is the
        server's own refusal, `code`.

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
                advice=ADVICE,
            )
    return state.version if state.is_changed else base
