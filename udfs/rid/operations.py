"""What changes a RID: promote, demote, sync, losing and finding peers, writing, crashing. Pure.

Each operation takes a node as it is and returns it as it becomes; new ULIDs are handed in. The rules are those of the
RID's document; where it leaves a choice open, docs/rid.md says what was chosen and why.
Not here: the comparison of two nodes (`udfs.rid.comparison`), where a node is kept (`warehouse.rid`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ulid import ULID

from schemas.errors import RidStateError
from udfs.rid.value import EMPTY, FileLock, Rid, later_than


@dataclass(frozen=True)
class Node:
    """A place that holds the data: its RID and its mark.

    Parameters
    ----------
    rid : Rid
    next : ULID or None
        The mark: set while an unconnected node may exist. It is the generation that the first data written from
        now on will begin. None while all nodes are connected, and once that generation has begun.

    """

    rid: Rid = field(default_factory=Rid)
    next: ULID | None = None


def promote(node: Node, fresh: ULID, *, unconnected: bool) -> Node:
    """Make a node the primary. Where it has no data yet, base and head are created.

    Parameters
    ----------
    fresh : ULID
        Becomes base and head of a node that has none; else the mark, where one is set.
    unconnected : bool
        Whether a node exists that is not connected: then the mark is set.

    Raises
    ------
    RidStateError
        In the middle of a sync.

    """
    rid = node.rid
    if rid.incoming != EMPTY:
        raise RidStateError(
            f"a sync of {rid.incoming} into this node has not ended",
            rid=rid,
            advice="end it by syncing again, or abandon it",
        )
    begins = rid.head == EMPTY
    if begins:
        rid = replace(rid, head=fresh, base=fresh if rid.base == EMPTY else rid.base)
    rid = replace(rid, primary=True, consistency=True, outdated=False)
    return _marked(replace(node, rid=rid), fresh) if unconnected else replace(node, rid=rid)


def demote(node: Node) -> Node:
    """Take the primary flag from a node: the only thing that does. Generations and the mark stay."""
    return replace(node, rid=replace(node.rid, primary=False))


def lose_peer(node: Node, fresh: ULID, *, was_primary: bool) -> Node:
    """Note that the connection to another node ended.

    Parameters
    ----------
    fresh : ULID
        For the mark, which a primary sets.
    was_primary : bool
        Whether the lost peer was the primary: a secondary is outdated then.

    """
    if node.rid.primary:
        return _marked(node, fresh)
    if was_primary:
        return replace(node, rid=replace(node.rid, outdated=True))
    return node


def separate(node: Node, fresh: ULID) -> Node:
    """Set the mark for a copy of the data that is not connected; a mark that is set stays.

    Before the copy is taken, on its source and on every node connected to that; after it, on the target. Else both
    could continue writing under one head.
    """
    return node if node.next is not None else _marked(node, fresh)


def connect_all(node: Node) -> Node:
    """Note that all nodes are connected: the mark goes."""
    return replace(node, next=None)


def renew_mark(node: Node, fresh: ULID) -> Node:
    """Give the generation that is to come the time of now, where the mark is set."""
    return node if node.next is None else _marked(node, fresh)


def write(node: Node) -> Node:
    """Note that data were written: under the mark, a generation begins.

    Raises
    ------
    RidStateError
        On a node that is not primary.

    """
    if not node.rid.primary:
        raise RidStateError(
            "this node is not primary", rid=node.rid, advice="write to the primary, or promote"
        )
    return begin_generation(node)


def begin_generation(node: Node) -> Node:
    """Return the node with the generation of its mark as head; unchanged without a mark."""
    if node.next is None:
        return node
    return Node(_rotated(node.rid, node.next))


def start_sync(target: Node, source: Node) -> Node:
    """Return the target at the start of a sync: it has the source's head as `incoming`, and the network's base.

    Its mark goes: data that come with the sync begin no generation of its own.

    Raises
    ------
    RidStateError
        Where the source has nothing whole to give, or the target is a primary.

    """
    given = source.rid
    if given.head == EMPTY or given.incoming != EMPTY or not given.consistency:
        raise RidStateError("the source holds no whole data", rid=given, advice="sync from a complete node")
    if target.rid.primary:
        raise RidStateError("the target is a primary", rid=target.rid, advice="demote it first")
    behind = target.rid.head != given.head
    rid = replace(
        target.rid,
        incoming=given.head,
        base=given.base,
        consistency=False,
        outdated=target.rid.outdated or behind,
    )
    return Node(rid)


def complete_sync(target: Node) -> Node:
    """Return the target at the end of a sync: what came is its head; equal heads are not rotated.

    Raises
    ------
    RidStateError
        Where no sync was started.

    """
    rid = target.rid
    if rid.incoming == EMPTY:
        raise RidStateError("no sync into this node was started", rid=rid, advice="start one")
    if rid.incoming != rid.head:
        rid = _rotated(rid, rid.incoming)
    whole = replace(rid, incoming=EMPTY, consistency=True, outdated=False, crashed_primary=False)
    return Node(whole)


def cut_back(node: Node, common: ULID) -> Node:
    """Return a node whose generations after `common` are given up; `EMPTY` gives up all but the base.

    Else a generation that was discarded would stay among the old ones, and pass for one that the data contain.
    """
    old = node.rid.generations
    kept = old[old.index(common) :] if common != EMPTY else ()
    head, old1, old2 = (*kept, EMPTY, EMPTY, EMPTY)[:3]
    return Node(replace(node.rid, head=head, old1=old1, old2=old2))


def abandon_sync(node: Node, fresh: ULID, *, changed: bool) -> Node:
    """Return a node that will not get the rest of a sync.

    Parameters
    ----------
    fresh : ULID
    changed : bool
        Whether it holds other data than those of its head already: they are a generation of their own then.

    """
    rid = replace(node.rid, incoming=EMPTY, consistency=True)
    if changed:
        rid = _rotated(rid, later_than(max(node.rid.head, node.rid.incoming), fresh))
    return replace(node, rid=rid)


def lock(node: Node) -> Node:
    """Note that a writer has the lock. A lock that a primary's writer left behind means that it crashed."""
    crashed = node.rid.crashed_primary or (node.rid.primary and node.rid.file_lock is FileLock.LOCKED)
    return replace(node, rid=replace(node.rid, crashed_primary=crashed, file_lock=FileLock.LOCKED))


def unlock(node: Node) -> Node:
    """Note that the writer let the lock go."""
    return replace(node, rid=replace(node.rid, file_lock=FileLock.UNLOCKED))


def settle_crash(node: Node) -> Node:
    """Note on the source of a sync that another node holds the same data now: a crash matters no more."""
    return replace(node, rid=replace(node.rid, crashed_primary=False))


def _marked(node: Node, fresh: ULID) -> Node:
    return replace(node, next=later_than(node.rid.head, fresh))


def _rotated(rid: Rid, head: ULID) -> Rid:
    return replace(rid, head=head, old1=rid.head, old2=rid.old1)
