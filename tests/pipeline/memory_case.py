"""One job in a process of its own, whose rows repeat themselves.

    python -m tests.pipeline.memory_case HOW ROWS KEYS FOLDER [CHAINS MAX_TUPLE_BYTES]

The log has ROWS rows of 100 KiB, of KEYS keys, in a thousandth of their bytes. HOW is `local` (without Spark, under a
limit of address space) or `distributed`. With names of `CHAINS`, with commas between them, there is one job for each,
whose log has ROWS UPDATEs of one key. Prints a line for each job: the greatest resident memory so far in MiB, of this
process, which is the driver, and of its Python workers, how many rows there are in the table and in `_quarantine`, and
the processor time of this process in seconds, as
`{"driver": …, "worker": …, "rows": …, "quarantined": …, "seconds": …}`.
"""

import json
import random
import resource
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import psutil

from benchmarks.logs import ADMIN, MemberLogs
from pipeline.executors.distributed import DistributedExecutor
from schemas.iproto import RequestType
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.pipeline.deployment import Deployment

MIB = 1 << 20
ADDRESS_SPACE = 8 << 30
BATCH_BYTES = 64 * MIB
"""`max_bytes_per_trigger` of a chain, of which half is compressed away."""

TEXT = ("x" * 1000 + "y" * 24) * 100
ANY = object()
"""Where a text of 4000 bytes is, another one in each row."""

CHAINS: dict[str, tuple[str, list[Any]]] = {
    "set": ("", ["=", 3, ANY]),
    "splice": ("", [":", 3, 1 << 30, 0, ANY]),
    "fields": ("", ["!", -1, ANY]),
    "small": (TEXT * 10, [":", 3, 1, 1, "y"]),
}
"""A tuple's text, and the operation that each row has: growing it by 4000 bytes, or a small one of a tuple of 1 MiB."""


def log_of(folder: Path, rows: int, keys: int) -> MemberLogs:
    member = MemberLogs(folder, "a1", ["orders"])

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


def chain_of(folder: Path, rows: int, chain: str) -> MemberLogs:
    """Write a log with one tuple and UPDATEs of it, and return its member."""
    member = MemberLogs(folder, "a1", ["orders"])
    space_id, (first, operations) = member.spaces["orders"], CHAINS[chain]
    draw, key = random.Random(rows), msgpack.packb([1])

    def written() -> Iterator[list[bytes]]:
        fields = [1, "customer", first, "Berlin", 1.5, 1, 7, True, "paid"]
        body = encode_body(space_id=space_id, tuple_=msgpack.packb(fields))
        yield [member._row(RequestType.INSERT, body)]
        for _ in range(rows):
            text = draw.randbytes(2000).hex()
            encoded = msgpack.packb([[text if one is ANY else one for one in operations]])
            body = encode_body(space_id=space_id, key=key, operations=encoded, index_base=1, is_update=True)
            yield [member._row(RequestType.UPDATE, body)]

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
    if not sys.argv[5:]:
        measure(folder, how, log_of(folder / "logs", rows, keys), None)
        return
    for chain in sys.argv[5].split(","):
        logs = chain_of(folder / chain / "logs", rows, chain)
        measure(folder / chain, how, logs, BATCH_BYTES, max_tuple_bytes=int(sys.argv[6]))


def measure(folder: Path, how: str, member: MemberLogs, budget: int | None, **settings: Any) -> None:
    """Run one job over a log, and print what it took."""
    workers: dict[int, int] = {}
    is_done = threading.Event()
    replicasets = {"a1": member.replicaset}
    if how == "local":
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        deployment = Deployment(folder, {"a1": member.path}, replicasets, **settings)
    else:
        from benchmarks.measured_job import session_in

        spark = session_in(folder)
        deployment = Deployment(
            folder,
            {"a1": member.path},
            replicasets,
            partial(DistributedExecutor, spark),
            **settings,
        )
    watching = threading.Thread(target=watch, args=(workers, is_done))
    watching.start()
    began = time.process_time()
    try:
        deployment.run(budget)
    finally:
        is_done.set()
        watching.join()
    seconds, driver = round(time.process_time() - began), peak()
    found = {"driver": driver, "worker": max(workers.values(), default=0), "seconds": seconds}
    found["rows"] = len(deployment.rows("orders", ["_key"]))
    found["quarantined"] = len(deployment.rows("_quarantine", ["lsn"]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
