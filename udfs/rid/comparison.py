"""Compares two RIDs: same data, which way to sync, split brain, unrelated. Pure.

Two nodes whose bases exist and differ are unrelated. Else head, old1 and old2 of both are searched for a common ULID.
Its position in each RID (0: head, 1: old1, 2: old2) decides:

- 0 in both: the nodes have the same data.
- 0 in one: this node is behind, and the other one is the source of a sync.
- 0 in neither: a split brain. The common ULID is the last generation that both have.

Without a common ULID, a node with an empty head is the target of a sync; two heads are a split brain with no known
common generation. Flags and `incoming` play no role.

If the epochs of both nodes are known, too, `with_epochs` also compares their epochs of the common generation. An epoch
is a committed batch. Connected nodes share a generation while it grows, and a primary that crashes may have epochs of
it that no other node has copied.

`draw` shows the generations of one or two nodes as text, the newest on top. Each node has a column: `*` in the lines of
its generations, `|` between them.

    a b
    *    01DT3V6WF6K5K12JBV8B563TXP  2019-11-20 08:21:36  a: head, from epoch 11
      *  01DT3TREEM05JE0G8NFRACKJ3Y  2019-11-20 08:04:39  b: head, from epoch 11
    * *  01DT3TPFFQV48H3D51300DH53S  2019-11-20 08:03:35  to epoch 10
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from ulid import ULID

from udfs.rid.value import EMPTY_ULID, Rid

NodeName = Literal["a", "b"]
"""Which of the two compared nodes."""


class Verdict(StrEnum):
    """The outcome of a comparison."""

    SAME = "same"
    SYNC = "sync"
    SPLIT_BRAIN = "split_brain"
    UNRELATED = "unrelated"


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two nodes."""

    verdict: Verdict
    source: NodeName | None = None
    target: NodeName | None = None
    """`a` or `b`: the direction of the sync; None unless the verdict is `sync`."""
    common: ULID | None = None
    """The newest generation that both have had; in a split brain, the last common state of the data."""
    common_indexes: tuple[int, int] | None = None
    """Position of `common` in a and in b: 0 head, 1 old1, 2 old2."""
    younger_node: NodeName | None = None
    """In a split brain with a common generation, the node whose head began later; None if both began in the same
    millisecond."""

    def as_json(self) -> Mapping[str, str | None]:
        """Return the JSON object that `rid compare --json` prints."""
        return {
            "verdict": self.verdict.value,
            "from": self.source,
            "to": self.target,
            "common": None if self.common is None else str(self.common),
            "younger": self.younger_node,
        }


def compare(a: Rid, b: Rid) -> Comparison:
    """Compare two nodes by their RIDs."""
    if EMPTY_ULID not in (a.base, b.base) and a.base != b.base:
        return Comparison(Verdict.UNRELATED)
    found = _newest_common(a, b)
    if found is None:
        return _compare_disjoint(a, b)
    indexes = i, j = found
    common = a.generations[i]
    if i == j == 0:
        return Comparison(Verdict.SAME, common=common, common_indexes=indexes)
    if i == 0:
        return Comparison(Verdict.SYNC, "b", "a", common, indexes)
    if j == 0:
        return Comparison(Verdict.SYNC, "a", "b", common, indexes)
    return Comparison(
        Verdict.SPLIT_BRAIN, common=common, common_indexes=indexes, younger_node=_node_with_newer_head(a, b)
    )


def with_epochs(comparison: Comparison, a: Rid, b: Rid, last_epochs: tuple[int, int]) -> Comparison:
    """Return a comparison that also considers how many epochs of the common generation each node has.

    Only one node at a time writes under one head, so the node with fewer epochs of a generation has only epochs that
    the other node has, too. If the node that is behind by its RID has more epochs of the common generation, a sync
    would discard the epochs that only this node has: this is a split brain.
    """
    if comparison.common is None or last_epochs[0] == last_epochs[1]:
        return comparison
    longer: NodeName = "a" if last_epochs[0] > last_epochs[1] else "b"
    if comparison.verdict is Verdict.SAME:
        return replace(comparison, verdict=Verdict.SYNC, source=longer, target="b" if longer == "a" else "a")
    if comparison.verdict is Verdict.SYNC and comparison.target == longer:
        split = Comparison(
            Verdict.SPLIT_BRAIN, common=comparison.common, common_indexes=comparison.common_indexes
        )
        return replace(split, younger_node=_node_with_newer_head(a, b))
    return comparison


def _newest_common(a: Rid, b: Rid) -> tuple[int, int] | None:
    """Return the indexes in a and in b of the newest generation that both have; None if there is none."""
    pairs = [
        (i, j)
        for i, one in enumerate(a.generations)
        for j, other in enumerate(b.generations)
        if one == other != EMPTY_ULID
    ]
    # Nodes with a common history have its generations in the same order, so any symmetric measure of age works.
    return min(pairs, key=lambda pair: (sum(pair), -int(a.generations[pair[0]])), default=None)


def _compare_disjoint(a: Rid, b: Rid) -> Comparison:
    if a.head == b.head == EMPTY_ULID:
        return Comparison(Verdict.SAME)
    if a.head == EMPTY_ULID:
        return Comparison(Verdict.SYNC, "b", "a")
    if b.head == EMPTY_ULID:
        return Comparison(Verdict.SYNC, "a", "b")
    return Comparison(Verdict.SPLIT_BRAIN)


def _node_with_newer_head(a: Rid, b: Rid) -> NodeName | None:
    """Return the node whose head began later; None if both began in the same millisecond."""
    if a.head.milliseconds == b.head.milliseconds:
        return None
    return "a" if a.head.milliseconds > b.head.milliseconds else "b"


@dataclass(frozen=True)
class Generation:
    """One generation in a node's history."""

    ulid: ULID
    note: str = ""
    """A remark on it, such as its epochs or how the node got it."""


def rid_generations(rid: Rid) -> list[Generation]:
    """Return the generations that a RID names, the newest first."""
    return [Generation(ulid) for ulid in rid.generations if ulid != EMPTY_ULID]


def draw(nodes: Mapping[str, Sequence[Generation]]) -> str:
    """Draw the generations of one or two nodes, one line per generation."""
    known = {name: {one.ulid: one for one in generations} for name, generations in nodes.items()}
    # The ULIDs of a history ascend, so sorting them gives the order in every node.
    ulids = sorted({ulid for generations in known.values() for ulid in generations}, reverse=True)
    lines = [" ".join(nodes)] if any(nodes) else []
    for index, ulid in enumerate(ulids):
        marks = [_column_cell(name, known[name], ulids, index) for name in nodes]
        time = ulid.datetime.strftime("%Y-%m-%d %H:%M:%S")
        notes = [_note_text(name, known[name][ulid]) for name in nodes if ulid in known[name]]
        lines.append(f"{' '.join(marks)}  {ulid}  {time}  {'; '.join(filter(None, notes))}".rstrip())
    return "\n".join(lines) if ulids else "no generation yet"


def _note_text(name: str, generation: Generation) -> str:
    return f"{name}: {generation.note}" if name and generation.note else generation.note


def _column_cell(name: str, known: Mapping[ULID, Generation], ulids: Sequence[ULID], index: int) -> str:
    if ulids[index] in known:
        mark = "*"
    elif any(u in known for u in ulids[:index]) and any(u in known for u in ulids[index:]):
        mark = "|"
    else:
        mark = " "
    return mark.ljust(len(name))
