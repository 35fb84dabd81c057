"""Operations that change a RID: promote, demote, sync, losing and finding standbys, writing, crashing. Pure.

Each operation takes a node and returns the changed node; the caller passes new ULIDs. The rules are those of the
RID's document; docs/rid-rules.md explains the choices that it leaves open. `warehouse.copies.rid` stores nodes.
"""

from dataclasses import dataclass, field, replace

from ulid import ULID

from schemas.errors import RidStateError
from udfs.rid.value import EMPTY_ULID, FileLock, Rid, ulid_after

LOCK_STATES = (FileLock.ALLOW_READ, FileLock.LOCKED)
"""The states while a writer has the lock. Releases before 0.1 recorded `LOCKED` for every writer."""


@dataclass(frozen=True)
class Node:
    """The RID and the mark of one node."""

    rid: Rid = field(default_factory=Rid)
    next_head: ULID | None = None
    """The mark: the ULID of the generation that begins with the next write. It is set when a node loses its connection
    to the others, or a copy is made. It becomes None when a write begins that generation, or when all nodes are
    connected again."""


def promote(node: Node, new_ulid: ULID, *, unconnected: bool) -> Node:
    """Make a node the primary; create base and head if it has no data yet.

    Raises:
        RidStateError: The node is the target of an unfinished sync.
    """
    rid = node.rid
    if rid.incoming != EMPTY_ULID:
        raise RidStateError(
            f"a sync of {rid.incoming} into this node has not ended",
            rid=rid,
            advice="end it by syncing again, or abandon it",
        )
    begins = rid.head == EMPTY_ULID
    if begins:
        rid = replace(rid, head=new_ulid, base=new_ulid if rid.base == EMPTY_ULID else rid.base)
    rid = replace(rid, primary=True, consistency=True, outdated=False)
    return _with_mark(replace(node, rid=rid), new_ulid) if unconnected else replace(node, rid=rid)


def demote(node: Node) -> Node:
    """Clear the primary flag; no other operation does. Generations and the mark stay."""
    return replace(node, rid=replace(node.rid, primary=False))


def lose_connection(node: Node, new_ulid: ULID, *, was_primary: bool) -> Node:
    """Return the node after its connection to another node ended."""
    if node.rid.primary:
        return _with_mark(node, new_ulid)
    if was_primary:
        return replace(node, rid=replace(node.rid, outdated=True))
    return node


def mark_unconnected_copy(node: Node, new_ulid: ULID) -> Node:
    """Set the mark, unless one is set, because an unconnected copy of the data is made.

    Before the copy is made, call this function for the source and for each node that is connected to the source; after
    the copy, call it for the target. Otherwise two nodes could write different data under the same head.
    """
    return node if node.next_head is not None else _with_mark(node, new_ulid)


def clear_mark(node: Node) -> Node:
    """Clear the mark and the flag `outdated`, because all nodes are connected and this one has all data."""
    return replace(node, rid=replace(node.rid, outdated=False), next_head=None)


def renew_mark(node: Node, new_ulid: ULID) -> Node:
    """Replace the mark, if one is set, by `new_ulid`, a ULID of the current time."""
    return node if node.next_head is None else _with_mark(node, new_ulid)


def begin_generation(node: Node) -> Node:
    """Return a primary after data were written: the mark's generation is its head; without a mark, it is unchanged."""
    if node.next_head is None:
        return node
    return Node(_with_new_head(node.rid, node.next_head))


def start_sync(target: Node, source: Node) -> Node:
    """Return the target at the start of a sync: `incoming` is the source's head, and `base` the source's base.

    The target's mark is cleared, because data that come with the sync do not begin a generation.

    Raises:
        RidStateError: The source has no complete data, or the target is a primary.
    """
    given = source.rid
    if given.head == EMPTY_ULID or given.incoming != EMPTY_ULID or not given.consistency:
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

    Raises:
        RidStateError: No sync was started.
    """
    rid = target.rid
    if rid.incoming == EMPTY_ULID:
        raise RidStateError("no sync into this node was started", rid=rid, advice="start one")
    if rid.incoming != rid.head:
        rid = _with_new_head(rid, rid.incoming)
    whole = replace(rid, incoming=EMPTY_ULID, consistency=True, outdated=False, crashed_primary=False)
    return Node(whole)


def drop_generations_after(node: Node, common: ULID) -> Node:
    """Return a node without the generations after `common`, whose data were discarded; `EMPTY_ULID`: the base stays.

    If they stayed in `old1` or `old2`, the RID would claim that the node's data contain them.
    """
    old = node.rid.generations
    kept = old[old.index(common) :] if common != EMPTY_ULID else ()
    head, old1, old2 = (*kept, EMPTY_ULID, EMPTY_ULID, EMPTY_ULID)[:3]
    return Node(replace(node.rid, head=head, old1=old1, old2=old2))


def abandon_sync(node: Node, new_ulid: ULID, *, changed: bool) -> Node:
    """Return a node after its unfinished sync was abandoned: changed data become the generation `new_ulid`."""
    rid = replace(node.rid, incoming=EMPTY_ULID, consistency=True)
    if changed:
        rid = _with_new_head(rid, ulid_after(max(node.rid.head, node.rid.incoming), new_ulid))
    return replace(node, rid=rid)


def lock(node: Node, *, is_readable: bool = True) -> Node:
    """Return the node with `file_lock` taken; `crashed_primary` is set if a writer ended without unlocking it."""
    crashed = node.rid.crashed_primary or (node.rid.primary and node.rid.file_lock in LOCK_STATES)
    state = FileLock.ALLOW_READ if is_readable else FileLock.LOCKED
    return replace(node, rid=replace(node.rid, crashed_primary=crashed, file_lock=state))


def unlock(node: Node) -> Node:
    """Return the node after the writer released the lock."""
    return replace(node, rid=replace(node.rid, file_lock=FileLock.UNLOCKED))


def settle_crash(node: Node) -> Node:
    """Clear the flag `crashed_primary` of the source of a sync, because another node now has the same data."""
    return replace(node, rid=replace(node.rid, crashed_primary=False))


def _with_mark(node: Node, new_ulid: ULID) -> Node:
    return replace(node, next_head=ulid_after(node.rid.head, new_ulid))


def _with_new_head(rid: Rid, head: ULID) -> Rid:
    return replace(rid, head=head, old1=rid.head, old2=rid.old1)
