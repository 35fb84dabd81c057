"""The words that the warehouse's tables store as data: states, kinds, and fixed beginnings of the texts of reasons.

The values never change, because warehouses contain them. A member is a `str`, and can be used in a
row, in SQL text, and in comparisons with values that were read.
"""

from enum import StrEnum


class SpaceState(StrEnum):
    """`_schema.state`: whether a space exists and has a table; `refused_state` adds the reason of a refusal.

    Described: a REPLACE of `_space` describes the space, but neither its creation nor the insertion of its primary
    index was read, so its rows wait.
    """

    PRESENT = "present"
    DESCRIBED = "described"
    DROPPED = "dropped"
    REFUSED = "refused"


REFUSED_PREFIX = f"{SpaceState.REFUSED}: "
"""The beginning of `_schema.state` of a refused space, before the reason."""


def refused_state(reason: str) -> str:
    """Return the state of a space that is refused for a reason."""
    return REFUSED_PREFIX + reason


def refusal_reason(state: str) -> str | None:
    """Return the reason in the state of a refused space; None for any other state."""
    return state.removeprefix(REFUSED_PREFIX) if state.startswith(REFUSED_PREFIX) else None


HELD_PREFIX = "its rows are held, the table stays as it is"
"""The beginning of the reason for which a space is *held*: refused from a row on that cannot be applied.

The row has a type that is not known, or cannot be decoded. The table stays as it is, and the later rows of the space
are only in `_changelog`."""


def is_held(reason: str) -> bool:
    """Return whether a space, refused for this reason, is held: its reason begins with `HELD_PREFIX`."""
    return reason.startswith(HELD_PREFIX)


SET_ASIDE_PREFIX = "its table is set aside: "
"""The beginning of the reason for which a space is refused whose table somebody else has changed, or that is lost."""


class SpaceEvent(StrEnum):
    """What happens to a space at a position of the log.

    Defined: it was created, or its definition changed. Truncated: all tuples were removed. Renewed: a snapshot replaces
    the tuples under the same definition. Held: see `HELD_PREFIX`.
    """

    DEFINED = "defined"
    TRUNCATED = "truncated"
    DROPPED = "dropped"
    RENEWED = "renewed"
    HELD = "held"


class RowState(StrEnum):
    """`_changelog.state`: whether a row changes the tables.

    Committed: it does. Rolled back: it does not, because its synchronous transaction was rolled back. Local: it does
    not, because its space is local to one instance.
    """

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    LOCAL = "local"


class RowMove(StrEnum):
    """`_changelog.moved`: why vshard wrote a row; null for all other rows.

    Received: the tuple came with its bucket. Collected: it was deleted after its bucket was sent.
    """

    RECEIVED = "received"
    COLLECTED = "collected"


class VersionState(StrEnum):
    """`_versions.state`: whether a replicaset has a version of a key; `udfs.versions.kernels.lives` has the numbers.

    Present: the replicaset has a tuple with the key. Deleted: its last change of the key is a DELETE. Unfit: it has a
    tuple that is not known, because a row could not be applied. Removed: it has neither a tuple nor a DELETE that
    counts, as after a truncation; the row cancels an earlier one of `_versions`.
    """

    PRESENT = "present"
    DELETED = "deleted"
    UNFIT = "unfit"
    REMOVED = "removed"


class ConflictKind(StrEnum):
    """`_conflicts.kind`: why two versions conflict.

    Key: they have the same primary key. Secondary: they have the same key in a unique secondary index. Doubled: they
    are in a bucket of vshard that is active in two replicasets.
    """

    KEY = "key"
    SECONDARY = "secondary"
    DOUBLED = "doubled"


class ChangedSide(StrEnum):
    """`_conflicts.changed`: which of the two versions was new in the batch."""

    WINNER = "winner"
    LOSER = "loser"
    BOTH = "both"


class GapKind(StrEnum):
    """`_gaps.kind`: lsns that no log has, or rows that differ from those that were read before."""

    MISSING = "missing"
    DIVERGENCE = "divergence"


class GapState(StrEnum):
    """`_gaps.state`.

    Open: rows wait for the gap. Skipped: its loss was accepted. Filled: a backfill read its rows. Bridged: a snapshot
    has the result of its rows. Healed: rows of two instances diverged, and a snapshot of the instance that the operator
    chose replaced them.
    """

    OPEN = "open"
    SKIPPED = "skipped"
    FILLED = "filled"
    BRIDGED = "bridged"
    HEALED = "healed"


class RequestKind(StrEnum):
    """`_requests.kind`: what the writer of the warehouse is asked to do."""

    BACKFILL = "backfill"
    SNAPSHOT = "snapshot"
    HEAL = "heal"
    REBUILD = "rebuild"
    SWAP = "swap"
    MAINTENANCE = "maintenance"
    CONFLICTS = "conflicts"
    FORGET = "forget"
    """Only an answer: `aggregator forget` has begun to remove all earlier versions of some tables."""


class RequestState(StrEnum):
    """`_requests.state`."""

    ASKED = "asked"
    DONE = "done"
    FAILED = "failed"
