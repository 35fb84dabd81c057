"""Records a workload of real Tarantools: `python -m tests.recordings.record --out DIR [--rows N]`.

Writes, below DIR: one directory a member (`a1`, `a2`, `b1`, `b2`) as it is after a clean stop; `hot/a1` and
`hot/b1`, copies taken while the servers ran (no EOF marker); `truth/<member>/`, what each server itself
reports; `truth/conflicts.json`, who wrote which key when. With `--rows` the workload is a large plain one,
for benchmarks.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from tests.live import find_tarantool
from tests.recordings import bulk, conflicts, workload
from tests.recordings.cluster import Cluster, running

SMALL_WAL_BYTES = 24 << 10
LARGE_WAL_BYTES = 256 << 20
HOT = ("a1", "b1")


def save_truth(cluster: Cluster, directory: Path) -> None:
    """Let each server write what it holds below `directory`."""
    for member in cluster.members.values():
        member.run("truth.save", str((directory / member.name).resolve()), member.name)


def copy_hot(cluster: Cluster, out: Path) -> None:
    """Copy the directories of running servers, and what they hold at that moment."""
    for name in HOT:
        shutil.copytree(out / name, out / "hot" / name)
        cluster[name].run("truth.save", str((out / "truth" / "hot" / name).resolve()), name)


def record_small(out: Path, sockets: Path) -> None:
    """Record the workload that has everything once."""
    with running(out, sockets, SMALL_WAL_BYTES) as cluster:
        for phase in workload.before_hot(cluster):
            phase()
        copy_hot(cluster, out)
        for phase in workload.after_hot(cluster):
            phase()
        report = conflicts.record(cluster)
        conflicts.record_lagged(cluster)
        save_truth(cluster, out / "truth")
        (out / "truth" / "conflicts.json").write_text(json.dumps(report) + "\n", encoding="utf-8")


def record_large(out: Path, sockets: Path, rows: int, serial: int) -> None:
    """Record about `rows` plain changes of a few spaces, over both replicasets."""
    with running(out, sockets, LARGE_WAL_BYTES) as cluster:
        bulk.write(cluster, rows, serial)
        save_truth(cluster, out / "truth")


def record(out: Path, rows: int = 0, serial: int = 0) -> None:
    """Record into an empty or missing directory; the servers are stopped whatever happens."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty")
    with tempfile.TemporaryDirectory(prefix="record-") as sockets:
        if rows or serial:
            record_large(out, Path(sockets), rows, serial)
        else:
            record_small(out, Path(sockets))


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 done, 2 wrong use."""
    parser = argparse.ArgumentParser(prog="python -m tests.recordings.record", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="an empty or missing directory")
    parser.add_argument("--rows", type=int, default=0, help="changes of a large recording, in group commits")
    parser.add_argument(
        "--serial", type=int, default=0, help="changes in blocks of one row, written one by one"
    )
    options = parser.parse_args(arguments)
    if find_tarantool() is None:
        sys.stderr.write("no tarantool on PATH: apt-get install tarantool\n")
        return 2
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        record(options.out, options.rows, options.serial)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
