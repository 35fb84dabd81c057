"""Recordings of a Tarantool 3.9 that plays a script, with what it held at the end of each log or checkpoint.

    python -m tests.recordings.scripted ranges --server /path/of/tarantool-3.9 --out tests/recordings/3.9
    python -m tests.recordings.scripted runs --server /path/of/tarantool-3.9 --out tests/recordings/vinyl

`RANGES` has DELETE_RANGE over keys of every type, and two of the server's snapshots; `RUNS` has vinyl spaces whose runs
have several statements of one key. `SPLIT` has vinyl spaces with split ranges; tests play it on the servers that they
find, so it has no recording. `<out>/<name>` gets the server's directory; `<out>/truth.json` what the server held:
the exact MessagePack of each tuple in hex, in the order of the primary key, by space.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.live.server import Tarantool

HERE = Path(__file__).parent
Truth = dict[str, list[str]]


@dataclass(frozen=True)
class Scripted:
    """A recording of `lua/<name>.lua`."""

    name: str
    folder: Path
    settings: Mapping[str, int] = field(default_factory=dict)
    snapshots: tuple[int, ...] | None = None
    """Which snapshots stay, by their order; None: all."""

    @property
    def directory(self) -> Path:
        return self.folder / self.name

    def record(self, directory: Path, binary: str) -> list[Truth]:
        """Play the script on a server, and return what it held at the end of each log, or at each checkpoint."""
        cfg = {
            "replicaset_uuid": "a0000000-0000-4000-8000-000000000001",
            "instance_uuid": "b0000000-0000-4000-8000-000000000001",
            "checkpoint_interval": 0,
            "checkpoint_count": 100,
            **self.settings,
        }
        lua = f"{self.name} = require('{self.name}')"
        with Tarantool(directory, cfg=cfg, lua=lua, lua_path=HERE / "lua", binary=binary) as server:
            found: list[Truth] = server.eval(f"return {{{self.name}.play()}}")[0]
        for number, path in enumerate(sorted(directory.glob("*.snap"))):
            if self.snapshots is not None and number not in self.snapshots:
                path.unlink()
        return found

    def truths(self) -> list[Truth]:
        """Return what the recorded server held at the end of each log, or at each checkpoint and at the end."""
        found: list[Truth] = json.loads((self.folder / "truth.json").read_text())
        return found


RANGES = Scripted("ranges", HERE / "3.9", snapshots=(0, 6))
RUNS = Scripted("runs", HERE / "vinyl", settings={"vinyl_cache": 0})
SPLIT = Scripted("split", HERE / "vinyl", settings={"vinyl_cache": 0})


def main(arguments: Sequence[str] | None = None) -> int:
    """Record."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("name", choices=[RANGES.name, RUNS.name])
    options.add_argument("--server", required=True)
    options.add_argument("--out", type=Path, required=True)
    chosen = options.parse_args(arguments)
    (recording,) = (one for one in (RANGES, RUNS) if one.name == chosen.name)
    found = recording.record(chosen.out / recording.name, chosen.server)
    (chosen.out / "truth.json").write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
