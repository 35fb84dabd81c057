"""Keys that both replicasets write, one after the other, and who wrote last.

`updated`, the user's own column, agrees with the wall clock for some keys, contradicts it for others, and is
equal on both sides for the rest.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.recordings.cluster import Cluster

FIRST_ID, LAST_ID = 200, 259
ROUNDS = 3
PAUSE_SECONDS = 0.05
"""Between the two writes of one key: well above what a row needs to its replicaset's other member."""

WRITE = """
local id, text, updated = ...
box.space.accounts:replace({id, text, require('decimal').new(updated), updated})
"""


@dataclass(frozen=True)
class Write:
    """One write of one side to one key."""

    side: str
    id: int
    round: int
    is_last: bool

    @property
    def is_delete(self) -> bool:
        """Whether the write is a DELETE: the last rounds of some keys, of the first or the second writer."""
        return self.round == ROUNDS - 1 and self.id % 10 in ((7, 9) if self.is_last else (8, 9))

    @property
    def updated(self) -> float:
        """The user's own time of the change."""
        clock = 10.0 * self.round + (5.0 if self.is_last else 0.0)
        return {0: clock, 1: 1000.0 - clock, 2: 10.0 * self.round}[self.id % 3]


def first_side(key: int, number: int) -> str:
    return "A" if (key + number) % 2 else "B"


def other(side: str) -> str:
    return "B" if side == "A" else "A"


def writes(number: int, *, last: bool) -> list[Write]:
    """Return the first or the second writes of one round."""
    found = []
    for key in range(FIRST_ID, LAST_ID + 1):
        first = first_side(key, number)
        found.append(Write(other(first) if last else first, key, number, last))
    return found


def send(cluster: Cluster, write: Write) -> None:
    """Send one write to one of the side's masters; both take their turn."""
    members = cluster.side(write.side)
    member = members[write.id // 4 % len(members)]
    if write.is_delete:
        member.eval("box.space.accounts:delete(...)", write.id)
    else:
        text = f"{member.name}, round {write.round}"
        member.eval(WRITE, write.id, text, write.updated)


def record(cluster: Cluster, pause: Callable[[float], None] = time.sleep) -> list[dict[str, Any]]:
    """Write all keys in turn; return who was first and who second, a key and round (`conflicts.json`)."""
    report = []
    for number in range(ROUNDS):
        for last in (False, True):
            for write in writes(number, last=last):
                send(cluster, write)
                if last:
                    report.append(_entry(write))
            cluster.settle()
            pause(PAUSE_SECONDS)
    return report


def _entry(write: Write) -> dict[str, Any]:
    first, second = other(write.side).lower(), write.side.lower()
    return {"id": write.id, "round": write.round, "first": first, "second": second}


def record_lagged(cluster: Cluster) -> None:
    """Write keys on A, then on B, while a2 is cut off: a2's log stamps A's rows after B's.

    By time a1's log says that B wrote last, a2's that A did: only a column of the user's settles that.
    """
    a1, a2, b1 = cluster["a1"], cluster["a2"], cluster["b1"]
    peers = a2.eval("local peers = box.cfg.replication; box.cfg({replication = {}}); return peers")
    write = "for i = 1, 10 do box.space.lagged:replace({i, ..., i}) end"
    a1.eval(write, "A")
    b1.eval(write, "B")
    time.sleep(PAUSE_SECONDS)
    a2.eval("box.cfg({replication = {...}})", *peers)
    cluster.settle()
