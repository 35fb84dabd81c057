"""One job in a process of its own, whose rows repeat themselves.

    python -m tests.pipeline.memory_case HOW ROWS KEYS FOLDER

The log has ROWS rows of 100 KiB, of KEYS keys, in a thousandth of their bytes. HOW is `local` (without Spark, under a
limit of address space) or `distributed`. Prints the greatest resident memory of this process in MiB, which is the
driver's, and of the greatest of its Python workers, as `{"driver": …, "worker": …, "rows": …}`.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgpack
import psutil

from benchmarks.logs import ADMIN, Member
from pipeline.executors.distributed import DistributedExecutor
from schemas.iproto import RequestType
from sources.xlog.format.encode import encode_body, encode_row
from tests.pipeline.deployment import Deployment

MIB = 1 << 20
ADDRESS_SPACE = 8 << 30
TEXT = ("x" * 1000 + "y" * 24) * 100


def log_of(folder: Path, rows: int, keys: int) -> Member:
    """Write the log, and return its member."""
    member = Member(folder, "a1", ["orders"])

    def written() -> Iterator[list[bytes]]:
        for number in range(rows):
            member._lsn += 1
            fields = [number % keys, "customer", TEXT, "Berlin", 1.5, number, 7, True, "paid"]
            body = encode_body(space_id=member.spaces["orders"], tuple_=msgpack.packb(fields))
            yield [
                encode_row(
                    RequestType.REPLACE,
                    body,
                    replica_id=ADMIN,
                    lsn=member._lsn,
                    timestamp=1.7e9 + member._lsn / 1e5,
                )
            ]

    member._write_transactions(written())
    return member


def peak(pid: int | str = "self") -> int:
    """Return the greatest resident memory that a process had, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1024
    return 0


def watch(found: dict[int, int], is_done: threading.Event) -> None:
    """Note the greatest memory of each Python worker until it is done."""
    while not is_done.wait(0.1):
        for child in psutil.Process().children(recursive=True):
            try:
                if child.name().startswith("python"):
                    found[child.pid] = peak(child.pid)
            except (psutil.NoSuchProcess, OSError):
                continue


def main() -> None:
    """Run, as the module says."""
    how, rows, keys, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    member = log_of(folder / "logs", rows, keys)
    workers: dict[int, int] = {}
    is_done = threading.Event()
    replicasets = {"a1": member.replicaset}
    if how == "local":
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        deployment = Deployment(folder, {"a1": member.path}, replicasets)
    else:
        from benchmarks.deployed import session_in

        spark = session_in(folder)
        deployment = Deployment(
            folder,
            {"a1": member.path},
            replicasets,
            lambda follower, segments: DistributedExecutor(spark, follower, segments),
        )
    watching = threading.Thread(target=watch, args=(workers, is_done))
    watching.start()
    try:
        deployment.run()
    finally:
        is_done.set()
        watching.join()
    driver = peak()
    count = len(deployment.rows("orders", ["_key"]))
    print(json.dumps({"driver": driver, "worker": max(workers.values(), default=0), "rows": count}))


if __name__ == "__main__":
    main()
