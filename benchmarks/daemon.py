"""Processor time of the subscription daemon per row, from a master's stream to the spool, without a network.

    python -m benchmarks.daemon [--rows N] [--rounds K]

Rows have 108 bytes, transactions ten rows, and a read returns 256 KiB. Prints the least processor time of all rounds:
other work on the machine hardly changes it, so it can be compared with that of another version of the code.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import msgpack
import numpy as np

from sources.iproto.row_stream import RowStream
from sources.spool.spool import Spool
from sources.xlog.format.arrays import Bytes
from tests.sources.iproto.streams import Row, packet_bytes

BODY = msgpack.packb({0x10: 512, 0x21: [12345, 67890, "abcdefghijklmnopqrstuvwxyz" * 2]})
READ_BYTES = 1 << 18
UUID = "00000000-0000-4000-8000-0000000000ff"


def main() -> None:
    """Measure, and print the least time per row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    stream = b"".join(
        packet_bytes(Row(1, first + k, first, k == 9, 1.7e9 + first, BODY))
        for first in range(1, options.rows + 1, 10)
        for k in range(10)
    )
    with tempfile.TemporaryDirectory() as folder:
        best = min(
            measure(Path(folder) / "spool", np.frombuffer(stream, np.uint8)) for _ in range(options.rounds)
        )
    print(
        f"{1e9 * best / options.rows:.0f} ns a row, {options.rows / best:,.0f} rows a second of processor time"
    )


def measure(directory: Path, stream: Bytes) -> float:
    """Write a master's stream to a new spool, and return the processor time in seconds."""
    shutil.rmtree(directory, ignore_errors=True)
    with Spool(directory) as spool:
        spool.instance_uuid = UUID
        spool.begin_at({})
        rows = RowStream({}, lambda chunk: spool.append(chunk.rows, chunk.vclock), "benchmark")
        began, at = time.process_time(), 0
        for end in range(READ_BYTES, stream.size + READ_BYTES, READ_BYTES):
            at, _, _ = rows.feed(stream, at, min(end, stream.size))
        return time.process_time() - began


if __name__ == "__main__":
    main()
