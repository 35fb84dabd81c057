"""Who wins a key that several replicasets hold: `last_write_wins` over their final versions, key by key.

A candidate's rank is (sequence, replicaset uuid, instance uuid, lsn); the highest wins. The sequence is
the values of columns that the user names, else the time of the last change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.oracle import mp
from tests.oracle.fold import Folded, FoldedSpace, Version
from tests.oracle.keys import comparable


@dataclass(frozen=True)
class Winner:
    """The version that the aggregated table holds for a key."""

    tuple: bytes
    """Exact MessagePack."""
    replicaset_uuid: str
    instance_uuid: str
    """Whose version it is, and which instance changed it last ("" for a snapshot's row)."""
    version: Version
    """lsn, timestamp, created."""


def last_write_wins(
    replicasets: Sequence[Folded],
    space: str,
    sequence: Sequence[str] = (),
    deletes: Literal["own", "all"] = "own",
) -> dict[tuple[Any, ...], Winner]:
    """Return the winner of each key of a space that at least one replicaset has.

    Args:
        replicasets: One a replicaset: any member's logs.
        space: Name of the space.
        sequence: Names of columns that order the versions; empty: by time.
        deletes: `own`: a deleted version stands aside; `all`: it takes part, and where it wins the key is gone. By time
            only.
    """
    if sequence and deletes == "all":
        raise NotImplementedError("a deleted version has no columns")
    best: dict[tuple[Any, ...], tuple[Any, Winner | None]] = {}
    for folded in replicasets:
        found = folded.by_name().get(space)
        for key, version in found.versions.items() if found else ():
            if found is None or (version.tuple is None and deletes == "own"):
                continue
            rank = _rank(folded, found, version, sequence)
            if key not in best or best[key][0] < rank:
                best[key] = (rank, _winner(folded, version))
    return {key: winner for key, (_, winner) in best.items() if winner is not None}


def _winner(folded: Folded, version: Version) -> Winner | None:
    if version.tuple is None:
        return None
    return Winner(version.tuple, folded.replicaset_uuid, folded.cluster.get(version.replica_id, ""), version)


def _rank(folded: Folded, space: FoldedSpace, version: Version, columns: Sequence[str]) -> tuple[Any, ...]:
    when = _columns(space, version, columns) if columns else (version.timestamp,)
    origin: Mapping[int, str] = folded.cluster
    return (when, folded.replicaset_uuid, origin.get(version.replica_id, ""), version.lsn)


def _columns(space: FoldedSpace, version: Version, columns: Sequence[str]) -> tuple[Any, ...]:
    fields = mp.split_array(version.tuple or b"\x90")
    return tuple(comparable(fields[space.field_names.index(column)]) for column in columns)
