"""The words that the warehouse's tables use as data: states, kinds and the beginnings of reasons.

Each value is what stands in a table, so it never changes: older warehouses are read by it. A member is a `str`, and can
stand in a row, in an SQL text or in a comparison with what was read.
"""

from __future__ import annotations

from enum import StrEnum


class SpaceState(StrEnum):
    """`_schema.state`: what became of a space; that of a refused one is `refused_state`."""

    PRESENT = "present"
    DROPPED = "dropped"
    REFUSED = "refused"


REFUSED_PREFIX = f"{SpaceState.REFUSED}: "
"""The beginning of `_schema.state` of a refused space; the reason follows."""


def refused_state(reason: str) -> str:
    """Return the state of a space that is refused for a reason."""
    return REFUSED_PREFIX + reason


def refusal_reason(state: str) -> str | None:
    """Return why a space is refused; None if its state is another one."""
    return state.removeprefix(REFUSED_PREFIX) if state.startswith(REFUSED_PREFIX) else None


HELD_PREFIX = "its rows are held, the table stays as it is"
"""The beginning of the reason of a space that a row has stopped, which the tables cannot follow."""


def is_held(reason: str) -> bool:
    """Return whether a space that is refused for a reason keeps its table as it is, and holds its rows."""
    return reason.startswith(HELD_PREFIX)


class SpaceEvent(StrEnum):
    """What happens to a space at a position of the log."""

    DEFINED = "defined"
    TRUNCATED = "truncated"
    DROPPED = "dropped"
    RENEWED = "renewed"
    HELD = "held"


class RowState(StrEnum):
    """`_changelog.state`: whether a row counts; the rows of local spaces are no rows of a replicaset."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    LOCAL = "local"


class RowMove(StrEnum):
    """`_changelog.moved`: the tuple came with its bucket, or was deleted after its bucket was sent."""

    RECEIVED = "received"
    COLLECTED = "collected"


class VersionState(StrEnum):
    """`_versions.state`: whether a replicaset has a version of a key; `udfs.versions.kernels.lives` has the numbers."""

    PRESENT = "present"
    DELETED = "deleted"
    UNFIT = "unfit"
    REMOVED = "removed"


class ConflictKind(StrEnum):
    """`_conflicts.kind`: what two rows have in common.

    The primary key; the key of a unique secondary index; or a bucket of vshard that is active in two replicasets.
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

    Rows wait for the gap; its loss was accepted; a backfill filled it; a snapshot represents it; a snapshot of the
    member that is right has replaced what differed.
    """

    OPEN = "open"
    SKIPPED = "skipped"
    FILLED = "filled"
    BRIDGED = "bridged"
    HEALED = "healed"


class RequestKind(StrEnum):
    """`_requests.kind`: what the holder of the writer's lock is to do."""

    BACKFILL = "backfill"
    SNAPSHOT = "snapshot"
    HEAL = "heal"
    REBUILD = "rebuild"
    MAINTENANCE = "maintenance"
    CONFLICTS = "conflicts"


class RequestState(StrEnum):
    """`_requests.state`."""

    ASKED = "asked"
    DONE = "done"
    FAILED = "failed"
