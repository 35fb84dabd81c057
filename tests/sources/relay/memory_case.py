"""Measures the memory of one transaction in a relay or a daemon.

    python -m tests.sources.relay.memory_case WHO MIB FOLDER

WHO is the process whose memory counts, `relay` or `daemon`; the other one is another process. Prints the
greatest resident memory in MiB.
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
    """Run the process that WHO names."""
    who, mib, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    socket = folder / "a.sock"
    if who == "daemon-of":
        follow(folder, socket, {1: mib})
        return
    command = [sys.executable, "-m", "tests.sources.relay.memory_case"]
    if who == "relay":
        # The spool is written by one other process, and read by another.
        subprocess.run([*command, "prepare", str(mib), str(folder)], check=True)
        wanted = {1: int((folder / "lsn").read_text())}
        with serving(folder / "a", socket):
            subprocess.run([*command, "daemon-of", str(wanted[1]), str(folder)], check=True)
        print(peak())
    elif who == "daemon":
        subprocess.run([*command, "prepare", str(mib), str(folder)], check=True)
        wanted = {1: int((folder / "lsn").read_text())}
        with subprocess.Popen([*command, "serve", "0", str(folder)], stdin=subprocess.PIPE) as relay:
            await_until(socket.exists, "the relay")
            follow(folder, socket, wanted)
            print(peak())
            assert relay.stdin is not None
            relay.stdin.close()
    elif who == "serve":
        with serving(folder / "a", socket):
            sys.stdin.read()
    elif who == "prepare":
        (folder / "lsn").write_text(str(prepare(folder / "a", mib)[1]))


def follow(folder: Path, socket: Path, wanted: dict[int, int]) -> None:
    """Follow the relay until a spool has all rows."""
    with following(options(folder / "b", f"unix/:{socket}")) as followed:
        await_until(lambda: followed.spool.vclock == wanted, "the transaction", seconds=120)


if __name__ == "__main__":
    main()
