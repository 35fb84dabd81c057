"""The workload of a small recording, phase by phase, in the order of its log.

Deterministic: masters of one replicaset that write at one time write different keys, and wait for each
other in between.
"""

from collections.abc import Callable, Iterator
from typing import Any

from tests.live import TarantoolError
from tests.recordings import conflicts, raw
from tests.recordings.cluster import Cluster, RecordedMaster

FIRST = ("a1", "b1")
SIDE_BASE = {"A": 0, "B": 20_000}
"""Where the keys of a side's own rows begin; some phases write the same keys on both sides."""


def define(cluster: Cluster) -> None:
    """Create the spaces: on B after five others, on A after one, so that the ids of all differ."""
    cluster["b1"].run("spaces.extra", 5)
    cluster["a1"].run("spaces.extra", 1)
    for name in FIRST:
        cluster[name].run("spaces.create")
        cluster[name].run("transactions.watch_audit")
    cluster.settle()


def mix(cluster: Cluster, seed: int, rounds: int) -> None:
    """Let both masters of A, then of B, write a mix of requests: many keys on both sides."""
    for side in ("A", "B"):
        cluster.together(
            [(m.name, "mixed.run", mix_options(m, seed, rounds)) for m in cluster.side(side)],
        )
        cluster.settle()


def mix_options(member: RecordedMaster, seed: int, rounds: int) -> dict[str, Any]:
    """Return what one master writes: its keys are those that leave its replica id modulo 2."""
    number = member.replica_id + (10 if member.side == "B" else 0)
    return {
        "seed": seed * 100 + number,
        "side": member.side,
        "rounds": rounds,
        "width": 12,
        "low": 1000 + member.replica_id,
        "high": 1180,
        "step": 2,
        "now": 1_700_000_000,
    }


def operations(cluster: Cluster) -> None:
    """Run every operation of UPDATE and UPSERT; the second master goes on where the first one ended."""
    for name in FIRST:
        for function in ("numbers", "paths", "limits", "upserts"):
            cluster[name].run(f"operations.{function}")
    cluster.settle()
    for name in ("a2", "b2"):
        cluster[name].eval(
            "box.space.counters:update('ops', {{'+', 'value', 5}, {'=', -1, 'by the other master'}})"
        )
        cluster[name].eval("box.space.docs:update(900000, {{'=', '[2].name', 'by the other master'}})")
    cluster.settle()


def transactions(cluster: Cluster, base: int) -> None:
    """Run transactions of every kind on the first masters, local rows also on the second ones."""
    for name in FIRST:
        member = cluster[name]
        start = base + SIDE_BASE[member.side]
        for function in ("audit", "local_rows", "several", "vinyl"):
            member.run(f"transactions.{function}", start)
    cluster.settle()
    for name in ("a2", "b2"):
        cluster[name].run("transactions.local_rows", base + 50_000)
        cluster[name].run("transactions.vinyl", base + 100)
    cluster.settle()


def hand_made(cluster: Cluster) -> None:
    """Send the hand-made requests; B gets them too, so that equal keys of other bytes meet."""
    for name in ("a1", "b2"):
        member = cluster[name]
        for request in raw.requests(member.side):
            space_id = member.eval("return box.space[...].id", request.space)
            try:
                member.server.connection.request(request.type, request.encode(space_id))
            except TarantoolError as error:
                raise RuntimeError(f"{request} is refused: {error}") from error
    cluster["a1"].eval("box.space.SQLT:insert({1, 'beside sqlt', 0.5})")
    cluster["b2"].eval("box.space.SQLT:insert({1, 'beside sqlt', 1.5})")
    cluster.settle()


def quorum(cluster: Cluster, size: int, timeout: float) -> None:
    """Set how many members must have a synchronous row, and for how long a master waits."""
    for member in cluster.members.values():
        member.run("synchronous.quorum", size, timeout)


def synchronous(cluster: Cluster, base: int, *, committed: bool) -> None:
    """Write synchronous transactions, asynchronous ones behind; all commit, or all are rolled back."""
    for name in FIRST:
        member = cluster[name]
        memo = "confirmed" if committed else "rolled back"
        results = member.run("synchronous.write", base + SIDE_BASE[member.side], memo, committed)
        if results != [committed] * len(results):
            raise RuntimeError(f"{member.name}: {memo} was expected of all, not {results}")
    cluster.settle()


def settled_by_another(cluster: Cluster, base: int) -> None:
    """Leave a1's queue without a quorum; a2 settles it with a CONFIRM of its own (`clear_synchro_queue`)."""
    quorum(cluster, 3, 30.0)
    cluster["a1"].run("synchronous.leave", base, "settled by a2")
    cluster.settle()
    cluster["a2"].run("synchronous.quorum", 2, 0.5)
    cluster["a2"].eval("box.ctl.clear_synchro_queue()")
    results = cluster["a1"].run("synchronous.left_results")
    if not all(results):
        raise RuntimeError(f"a1's queue was to be confirmed by a2: {results}")
    cluster.settle()


def checkpoint(cluster: Cluster) -> None:
    """Make a snapshot on a1, a2 and b1; b2 keeps to its logs."""
    for name in ("a1", "a2", "b1"):
        cluster[name].eval("box.snapshot()")


def before_hot(cluster: Cluster) -> Iterator[Callable[[], Any]]:
    """Yield the phases up to the moment at which the running directories are copied."""
    yield lambda: define(cluster)
    yield lambda: mix(cluster, 1, 12)
    yield lambda: [cluster[name].run("definition.fill", 0) for name in FIRST]
    yield lambda: operations(cluster)
    yield lambda: transactions(cluster, 2000)
    yield lambda: synchronous(cluster, 300, committed=True)
    yield lambda: synchronous(cluster, 310, committed=False)
    yield lambda: [cluster[name].run("transactions.sequences") for name in FIRST]
    yield lambda: mix(cluster, 2, 8)
    yield lambda: checkpoint(cluster)
    yield lambda: hand_made(cluster)
    yield lambda: [cluster[name].run("definition.change") for name in ("a1", "b2")]
    yield cluster.settle


def after_hot(cluster: Cluster) -> Iterator[Callable[[], Any]]:
    """Yield the phases after it, but for the keys that both sides write in turn (`conflicts`)."""
    yield lambda: synchronous(cluster, 320, committed=False)
    yield lambda: synchronous(cluster, 330, committed=True)
    yield lambda: settled_by_another(cluster, 340)
    yield lambda: transactions(cluster, 5000)
    yield lambda: mix(cluster, 3, 8)
    yield lambda: [cluster[name].run("definition.again") for name in ("a2", "b1")]
    yield cluster.settle


__all__ = ["after_hot", "before_hot", "conflicts"]
