"""Memory and lag of the subscription daemon while a master writes for minutes.

    python -m benchmarks.live_memory [--minutes M] [--rate ROWS]

The daemon runs as a process of its own, `python -m jobs.subscribe`; its resident memory is read each second. Prints the
least and the most of each tenth of the time, the rows, and how many of them the daemon has not received at the end.
"""

import argparse
import json
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from tests.live import Tarantool
from tests.live.commands import Command

WRITE = """
    local rate = ...
    local fiber = require('fiber')
    box.session.su('admin', function()
        box.schema.user.grant('guest', 'replication')
        box.schema.space.create('load'):create_index('pk')
    end)
    fiber.create(function()
        local begun, done = fiber.clock(), 0
        while true do
            local due = (fiber.clock() - begun) * rate
            while done < due do
                box.begin()
                for k = 1, 5 do
                    box.space.load:replace{(done + k) % 100000, done, 'abcdefghijklmnopqrstuvwxyz'}
                end
                box.commit()
                done = done + 5
            end
            fiber.sleep(0.01)
        end
    end)
"""
CONFIG = """
subscribe:
  status: 127.0.0.1:{port}
  rotate: 8 MiB
  keep: {{size: 32 MiB}}
  replicasets: [{{name: a, spool: spool, peers: ["unix/:{socket}"]}}]
"""


def main() -> None:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--port", type=int, default=33014)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.minutes, options.rate, options.port)


def measure(folder: Path, minutes: float, rate: int, port: int) -> None:
    """Run a master and the daemon in a folder for some minutes, and print memory and lag."""
    config = folder / "config.yaml"
    with Tarantool(folder / "master", cfg={"memtx_memory": 1 << 30, "checkpoint_interval": 0}) as master:
        config.write_text(CONFIG.format(port=port, socket=master.socket))
        master.eval(WRITE, rate)
        with Command("subscribe", config, folder / "daemon.log") as daemon:
            process, begun = psutil.Process(daemon.pid), time.monotonic()
            sizes_by_tenth = dict[int, list[int]]()
            while time.monotonic() - begun < 60 * minutes:
                tenth = int((time.monotonic() - begun) / (6 * minutes))
                sizes_by_tenth.setdefault(tenth, []).append(process.memory_info().rss)
                time.sleep(1)
            lag, lsn = _lag_rows(port), int(master.eval("return box.info.lsn"))
        for tenth, sizes in sorted(sizes_by_tenth.items()):
            print(f"tenth {tenth + 1}: {min(sizes) / 2**20:.1f} to {max(sizes) / 2**20:.1f} MiB")
        print(
            f"{lsn:,} rows in {minutes:g} minutes, {lsn / 60 / minutes:,.0f} rows/s; {lag} rows behind at the end"
        )
        print(f"spool: {sum(f.stat().st_size for f in (folder / 'spool').glob('0*')) / 2**20:.0f} MiB")


def _lag_rows(port: int) -> int:
    """Return the number of rows that the daemon has not received yet, by its status."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as answer:
        status = json.load(answer)
    return sum(int(rows) for rows in status["replicasets"][0]["lag_rows"].values())


if __name__ == "__main__":
    main()
