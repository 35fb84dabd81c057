"""The workload of a large recording: REPLACE, UPDATE and DELETE, fast, over both replicasets."""

from tests.recordings.cluster import Cluster

FIRST = ("a1", "b1")


def write(cluster: Cluster, rows: int, serial: int) -> None:
    """Write `rows` changes in group commits and `serial` ones a block each, half on each replicaset.

    `shared` is written by both replicasets (half of its keys by both), `own_a`/`own_b` by one each.
    """
    for name in FIRST:
        cluster[name].run("bulk.create", cluster[name].side)
    cluster.settle()
    share = rows // 2
    cluster.together([(name, "bulk.run", {"rows": share, "side": cluster[name].side}) for name in FIRST])
    cluster.settle()
    cluster.together([(name, "bulk.serial", {"rows": serial // 2}) for name in FIRST])
    cluster.settle()
