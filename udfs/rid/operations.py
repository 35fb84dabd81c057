"""Operations that change a RID: promote, demote, sync, losing and finding peers, writing, crashing. Pure.

Each operation takes a node and returns the changed node; the caller passes new ULIDs. The rules are those of the
RID's document; where that leaves a choice open, docs/rid.md gives choice and reason. `warehouse.rid` stores nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ulid import ULID

from schemas.errors import RidStateError
from udfs.rid.value import EMPTY, FileLock, Rid, later_than

HELD = (FileLock.ALLOW_READ, FileLock.LOCKED)
"""What a writer notes while it has the lock. Releases before 0.1 noted `LOCKED` for every writer."""


@dataclass(frozen=True)
class Node:
    """One copy of the data: its RID and its mark.

    Parameters
    ----------
    rid : Rid
    next : ULID or None
        The mark: the generation that begins with the next data written. Set while an unconnected node may exist;
        None while all nodes are connected, and once that generation has begun.

    """

    rid: Rid = field(default_factory=Rid)
    next: ULID | None = None


def promote(node: Node, fresh: ULID, *, unconnected: bool) -> Node:
    """Make a node the primary; create base and head if it has no data yet.

    Parameters
    ----------
    fresh : ULID
        Becomes base and head of a node without them; else the mark, if `unconnected`.
    unconnected : bool
        Whether some node is not connected; if so, the mark is set.

    Raises
    ------
    RidStateError
        The node is the target of an unfinished sync.

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
    """Clear the primary flag; no other operation does. Generations and the mark stay."""
    return replace(node, rid=replace(node.rid, primary=False))


def lose_peer(node: Node, fresh: ULID, *, was_primary: bool) -> Node:
    """Note that the connection to another node ended.

    Parameters
    ----------
    fresh : ULID
        The new mark, if the node is a primary.
    was_primary : bool
        Whether the lost peer was the primary; if so, a secondary becomes outdated.

    """
    if node.rid.primary:
        return _marked(node, fresh)
    if was_primary:
        return replace(node, rid=replace(node.rid, outdated=True))
    return node


def separate(node: Node, fresh: ULID) -> Node:
    """Set the mark, unless one is set, because an unconnected copy of the data is made.

    Call it before the copy on the source and on each node connected to it, and after the copy on the target. Else
    both could continue writing under one head.
    """
    return node if node.next is not None else _marked(node, fresh)


def connect_all(node: Node) -> Node:
    """Remove the mark: all nodes are connected. What a node lacked it gets now, so it is outdated no more."""
    return replace(node, rid=replace(node.rid, outdated=False), next=None)


def renew_mark(node: Node, fresh: ULID) -> Node:
    """Replace the mark, if one is set, by a ULID of the current time."""
    return node if node.next is None else _marked(node, fresh)


def write(node: Node) -> Node:
    """Record that data were written; if the mark is set, its generation begins.

    Raises
    ------
    RidStateError
        The node is not primary.

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
    """Return the target at the start of a sync: `incoming` is the source's head, `base` is the network's.

    Its mark is removed, because data that come with the sync begin no new generation.

    Raises
    ------
    RidStateError
        The source has no complete data, or the target is a primary.

    """
    given = source.rid
    if given.head == EMPTY or given.incoming != EMPTY or not given.consistency:
        raise RidStateError("the source has no complete data", rid=given, advice="sync from a complete node")
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
    """Return the target at the end of a sync: `incoming` becomes its head; if the two are equal, nothing is rotated.

    Raises
    ------
    RidStateError
        No sync was started.

    """
    rid = target.rid
    if rid.incoming == EMPTY:
        raise RidStateError("no sync into this node was started", rid=rid, advice="start one")
    if rid.incoming != rid.head:
        rid = _rotated(rid, rid.incoming)
    whole = replace(rid, incoming=EMPTY, consistency=True, outdated=False, crashed_primary=False)
    return Node(whole)


def drop_generations_after(node: Node, common: ULID) -> Node:
    """Drop the generations after `common` from a node; `EMPTY` drops all but the base.

    Else a discarded generation would stay in `old1` or `old2`, as if the data contained it.
    """
    old = node.rid.generations
    kept = old[old.index(common) :] if common != EMPTY else ()
    head, old1, old2 = (*kept, EMPTY, EMPTY, EMPTY)[:3]
    return Node(replace(node.rid, head=head, old1=old1, old2=old2))


def abandon_sync(node: Node, fresh: ULID, *, changed: bool) -> Node:
    """Return a node whose sync is given up halfway.

    Parameters
    ----------
    fresh : ULID
    changed : bool
        Whether its data already differ from those of its head; if so, they become a new generation.

    """
    rid = replace(node.rid, incoming=EMPTY, consistency=True)
    if changed:
        rid = _rotated(rid, later_than(max(node.rid.head, node.rid.incoming), fresh))
    return replace(node, rid=rid)


def lock(node: Node, *, is_readable: bool = True) -> Node:
    """Record that a writer has the lock. A lock left behind on a primary means that its writer crashed.

    Parameters
    ----------
    is_readable : bool
        Whether others may read meanwhile; not where the writer replaces what is there.

    """
    crashed = node.rid.crashed_primary or (node.rid.primary and node.rid.file_lock in HELD)
    state = FileLock.ALLOW_READ if is_readable else FileLock.LOCKED
    return replace(node, rid=replace(node.rid, crashed_primary=crashed, file_lock=state))


def unlock(node: Node) -> Node:
    """Record that the writer released the lock."""
    return replace(node, rid=replace(node.rid, file_lock=FileLock.UNLOCKED))


def settle_crash(node: Node) -> Node:
    """Clear the crash flag on the source of a sync: another node has the same data now."""
    return replace(node, rid=replace(node.rid, crashed_primary=False))


def _marked(node: Node, fresh: ULID) -> Node:
    return replace(node, next=later_than(node.rid.head, fresh))


def _rotated(rid: Rid, head: ULID) -> Rid:
    return replace(rid, head=head, old1=rid.head, old2=rid.old1)
