"""Records what a server with DELETE_RANGE (Tarantool 3.9) logs of ranges over keys of every type, with the truth.

    python -m tests.recordings.ranges --server /path/of/tarantool-3.9 --out tests/recordings/3.9

`<out>/ranges` gets the server's directory, with two of its snapshots; `<out>/truth.json` what the server held at the
end of each log: the exact MessagePack of each tuple in hex, in the order of the primary key, by space.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from tests.live.server import Tarantool

HERE = Path(__file__).parent
RECORDED = HERE / "3.9"
Truth = dict[str, list[str]]


def record(directory: Path, binary: str) -> list[Truth]:
    """Play `lua/ranges.lua` on a server, and return what it held at the end of each log."""
    cfg = {
        "replicaset_uuid": "a0000000-0000-4000-8000-000000000001",
        "instance_uuid": "b0000000-0000-4000-8000-000000000001",
        "checkpoint_interval": 0,
        "checkpoint_count": 100,
    }
    with Tarantool(
        directory, cfg=cfg, lua="ranges = require('ranges')", lua_path=HERE / "lua", binary=binary
    ) as one:
        found: list[Truth] = one.eval("return {ranges.play()}")[0]
    snapshots = sorted(directory.glob("*.snap"))
    for path in (*snapshots[1:6], *snapshots[7:]):
        path.unlink()
    return found


def truths() -> list[Truth]:
    """Return what the recorded server held at the end of each log."""
    found: list[Truth] = json.loads((RECORDED / "truth.json").read_text())
    return found


def truth() -> Truth:
    """Return what the recorded server held at the end."""
    return truths()[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--server", required=True)
    options.add_argument("--out", type=Path, required=True)
    chosen = options.parse_args(arguments)
    found = record(chosen.out / "ranges", chosen.server)
    (chosen.out / "truth.json").write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
