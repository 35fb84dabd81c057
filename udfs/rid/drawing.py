"""Draws the generations of one or two nodes as text, the newest on top, with a column of marks per node. Pure.

a b
*    01DT3V6WF6K5K12JBV8B563TXP  2019-11-20 08:21:36  a: head, from epoch 11
  *  01DT3TREEM05JE0G8NFRACKJ3Y  2019-11-20 08:04:39  b: head, from epoch 11
* *  01DT3TPFFQV48H3D51300DH53S  2019-11-20 08:03:35  to epoch 10
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ulid import ULID

from udfs.rid.value import EMPTY, Rid


@dataclass(frozen=True)
class Generation:
    """One generation in a node's history.

    Parameters
    ----------
    ulid : ULID
    note : str
        A remark on it, such as its epochs or how the node got it.

    """

    ulid: ULID
    note: str = ""


def rid_generations(rid: Rid, notes: Mapping[ULID, str] | None = None) -> list[Generation]:
    """Return the generations that a RID names, the newest first."""
    known = notes or {}
    return [Generation(ulid, known.get(ulid, "")) for ulid in rid.generations if ulid != EMPTY]


def draw(nodes: Mapping[str, Sequence[Generation]]) -> str:
    """Draw the generations of one or two nodes, one line per generation.

    Parameters
    ----------
    nodes : mapping of str to sequence of Generation
        Generations by a short node name (empty if there is only one node), the newest first.

    """
    held = {name: {one.ulid: one for one in generations} for name, generations in nodes.items()}
    # The ULIDs of a history ascend, so sorting them gives the order in every node.
    ulids = sorted({ulid for generations in held.values() for ulid in generations}, reverse=True)
    lines = [" ".join(nodes)] if any(nodes) else []
    for place, ulid in enumerate(ulids):
        marks = [_mark(name, held[name], ulids, place) for name in nodes]
        time = ulid.datetime.strftime("%Y-%m-%d %H:%M:%S")
        notes = [_note(name, held[name][ulid]) for name in nodes if ulid in held[name]]
        lines.append(f"{' '.join(marks)}  {ulid}  {time}  {'; '.join(filter(None, notes))}".rstrip())
    return "\n".join(lines) if ulids else "no generation yet"


def _note(name: str, generation: Generation) -> str:
    return f"{name}: {generation.note}" if name and generation.note else generation.note


def _mark(name: str, held: Mapping[ULID, Generation], ulids: Sequence[ULID], place: int) -> str:
    if ulids[place] in held:
        mark = "*"
    elif any(u in held for u in ulids[:place]) and any(u in held for u in ulids[place:]):
        mark = "|"
    else:
        mark = " "
    return mark.ljust(len(name))
