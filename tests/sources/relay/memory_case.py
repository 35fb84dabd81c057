"""Measures the memory of one transaction in a relay and in the daemon that follows it.

    python -m tests.sources.relay.memory_case daemon MIB FOLDER

Each is a process of its own, and so is the writer of the spool. Prints the greatest resident memory in MiB: the
relay's, the daemon's.
"""

import subprocess
import sys
from pathlib import Path

import msgpack
import numpy as np

from schemas.iproto import RequestType
from sources.spool.spool import Spool
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.pipeline.memory_case import peak
from tests.sources.relay.test_relay import serving
from tests.sources.relay.test_versions import NEW, write_snapshot
from tests.sources.subscribe.following import await_until, following, options

ROW = 1 << 20


def prepare(folder: Path, mib: int) -> dict[int, int]:
    """Write a spool with one transaction of that many MiB, and return its vclock."""
    with Spool(folder) as spool:
        write_snapshot(spool, NEW)
        first = (spool.vclock or {}).get(1, 0) + 1
        last = first + mib
        text = np.random.default_rng(7).bytes(ROW // 2).hex()
        rows = b"".join(
            encode_row(
                RequestType.REPLACE,
                encode_body(space_id=512, tuple_=msgpack.packb([lsn, text])),
                replica_id=1,
                lsn=lsn,
                tsn=first,
                is_commit=lsn == last,
                timestamp=1.7e9,
            )
            for lsn in range(first, last + 1)
        )
        spool.append(np.frombuffer(rows, np.uint8), {1: last})
        return dict(spool.vclock or {})


def main() -> None:
    """Run one of the processes; the daemon starts the other two."""
    who, mib, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    socket = folder / "a.sock"
    command = [sys.executable, "-m", "tests.sources.relay.memory_case"]
    if who == "daemon":
        subprocess.run([*command, "prepare", str(mib), str(folder)], check=True)
        wanted = {1: int((folder / "lsn").read_text())}
        serve = [*command, "serve", "0", str(folder)]
        with subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as relay:
            await_until(socket.exists, "the relay")
            follow(folder, socket, wanted)
            said, _ = relay.communicate()
        print(said.split()[-1], peak())
    elif who == "serve":
        with serving(folder / "a", socket):
            sys.stdin.read()
        print(peak())
    elif who == "prepare":
        (folder / "lsn").write_text(str(prepare(folder / "a", mib)[1]))


def follow(folder: Path, socket: Path, wanted: dict[int, int]) -> None:
    """Follow the relay until a spool has all rows."""
    with following(options(folder / "b", f"unix/:{socket}")) as followed:
        await_until(lambda: followed.spool.vclock == wanted, "the transaction", seconds=120)


if __name__ == "__main__":
    main()
