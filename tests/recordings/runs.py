"""Records vinyl spaces whose runs have several statements of one key, with the truth at each checkpoint.

    python -m tests.recordings.runs --server /path/of/tarantool-3.9 --out tests/recordings/vinyl

`<out>/runs` gets the server's directory; `<out>/truth.json` what the server held at each checkpoint, and at the end:
the exact MessagePack of each tuple in hex, in the order of the primary key, by space.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from tests.live.server import Tarantool

HERE = Path(__file__).parent
RECORDED = HERE / "vinyl"
Truth = dict[str, list[str]]


def record(directory: Path, binary: str) -> list[Truth]:
    """Play `lua/runs.lua` on a server, and return what it held at each checkpoint, and at the end."""
    cfg = {
        "replicaset_uuid": "a0000000-0000-4000-8000-000000000001",
        "instance_uuid": "b0000000-0000-4000-8000-000000000001",
        "checkpoint_interval": 0,
        "checkpoint_count": 100,
        "vinyl_cache": 0,
    }
    with Tarantool(
        directory, cfg=cfg, lua="runs = require('runs')", lua_path=HERE / "lua", binary=binary
    ) as one:
        found: list[Truth] = one.eval("return {runs.play()}")[0]
    return found


def truths() -> list[Truth]:
    """Return what the recorded server held at each checkpoint, and at the end."""
    found: list[Truth] = json.loads((RECORDED / "truth.json").read_text())
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Record."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--server", required=True)
    options.add_argument("--out", type=Path, required=True)
    chosen = options.parse_args(arguments)
    found = record(chosen.out / "runs", chosen.server)
    (chosen.out / "truth.json").write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
