"""Recordings of real Tarantools and what their servers themselves reported: one loader for every recording.

The repository's own recording (`tests/recordings/<version>`) is always there. Others of the same layout are
found below the directory that the environment variable `AGGREGATOR_RECORDINGS` names, or below
`../shared/recordings`; tests that need one of those are skipped by name where it is absent. Not here: what
the logs themselves say (`tests.oracle`).
"""

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from schemas.space import Space, space_of

REPOSITORY = Path(__file__).resolve().parents[1]
OWN_ROOT = REPOSITORY / "tests" / "recordings"
SYSTEM_SPACE_ID_MAX = 511


@dataclass(frozen=True)
class Info:
    """What `box.info` of one member said when its truth was taken."""

    name: str
    """The member's directory: a1, a2, b1, b2, anon."""
    replica_id: int
    """0 for an anonymous replica."""
    instance_uuid: str
    replicaset_uuid: str
    version: str
    """As reported."""
    vclock: Mapping[int, int]
    """{replica id: lsn}, with component 0 where the server has one."""
    cluster: Mapping[int, str]
    """`_cluster`: {replica id: instance uuid}."""


@dataclass(frozen=True)
class Recording:
    """One recording: two replicasets, A (a1, a2 and perhaps anon) and B (b1, b2)."""

    name: str
    """For test ids: `own-2.6.0`, `shared-3.8.0`."""
    root: Path
    """Holds a directory a member, `hot/` and `truth/`."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the members that have both a directory and a truth, in order."""
        found = (path.parent.name for path in (self.root / "truth").glob("*/info.json"))
        return tuple(sorted(node for node in found if (self.root / node).is_dir()))

    @property
    def hot(self) -> tuple[str, ...]:
        """Names of the members of which a copy was taken while they ran (no EOF marker in the last log)."""
        return tuple(sorted(path.name for path in (self.root / "hot").glob("*") if path.is_dir()))

    def side(self, side: str) -> tuple[str, ...]:
        """Return the registered members of replicaset `A` or `B`."""
        return tuple(node for node in self.nodes if node.startswith(side.lower()) and node != "anon")

    def directory(self, node: str) -> Path:
        """Return the directory of a member's logs; `hot/a1` gives the running one's copy."""
        return self.root / node

    def logs(self, node: str) -> tuple[Path, ...]:
        """Return a member's `.xlog` files in the order of their signatures."""
        return tuple(sorted(self.directory(node).glob("*.xlog")))

    def snapshots(self, node: str) -> tuple[Path, ...]:
        """Return a member's `.snap` files in the order of their signatures."""
        return tuple(sorted(self.directory(node).glob("*.snap")))

    def info(self, node: str) -> Info:
        """Return what the server said of itself."""
        raw = json.loads((self._truth(node) / "info.json").read_text(encoding="utf-8"))
        return Info(
            name=raw["name"],
            replica_id=raw["id"],
            instance_uuid=raw["uuid"],
            replicaset_uuid=raw.get("replicaset_uuid") or raw["cluster_uuid"],
            version=raw["version"].split("-")[0],
            vclock={int(component): lsn for component, lsn in raw["vclock"].items()},
            cluster={int(row[0]): row[1] for row in raw["_cluster"]},
        )

    def spaces(self, node: str) -> Mapping[str, Space]:
        """Return the definitions of a member's user spaces by name, as `_space` and `_index` hold them."""
        primary = {row[0]: row for row in self.system(node, "_index") if row[1] == 0}
        rows = [row for row in self.system(node, "_space") if row[0] > SYSTEM_SPACE_ID_MAX]
        return {row[2]: space_of(row, primary.get(row[0])) for row in rows}

    def global_spaces(self, node: str) -> Mapping[str, Space]:
        """Return those that belong to the replicaset: neither local, nor temporary, nor views."""
        kept = self.spaces(node).items()
        return {name: s for name, s in kept if not (s.is_local or s.is_temporary or s.is_view)}

    def kept_spaces(self, node: str) -> Mapping[str, Space]:
        """Return the spaces that a log holds all of: the global and the local ones, not temporary ones or views."""
        kept = self.spaces(node).items()
        return {name: s for name, s in kept if not (s.is_temporary or s.is_view)}

    def has_truth(self, node: str) -> bool:
        """Say whether the server's report was kept (of a `hot/...` copy: at the moment of copying)."""
        return (self._truth(node) / "info.json").is_file()

    def tuples(self, node: str, space: str) -> list[bytes]:
        """Return a user space's final tuples in the order of its primary key, as exact MessagePack."""
        lines = (self._truth(node) / f"{space}.mpb64").read_text(encoding="ascii").split()
        return [base64.b64decode(line) for line in lines]

    def system(self, node: str, space: str) -> list[list[Any]]:
        """Return a system space's tuples, decoded from the server's JSON."""
        text = (self._truth(node) / f"{space}.json").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line]

    def conflicts(self) -> list[dict[str, Any]]:
        """Return which side wrote a key of `accounts` first and second (`a`, `b`), a key and round."""
        found: list[dict[str, Any]] = json.loads((self.root / "truth" / "conflicts.json").read_bytes())
        return found

    def _truth(self, node: str) -> Path:
        return self.root / "truth" / node


def shared_root() -> Path | None:
    """Return where further recordings lie, or None."""
    root = Path(os.environ.get("AGGREGATOR_RECORDINGS", REPOSITORY.parent / "shared" / "recordings"))
    return root if root.is_dir() else None


def _below(root: Path, prefix: str) -> list[Recording]:
    found = sorted(path.parent for path in root.glob("*/truth"))
    return [Recording(f"{prefix}-{path.name}", path) for path in found]


@cache
def recordings() -> tuple[Recording, ...]:
    """Return all recordings at hand: the repository's own first, then the further ones."""
    further = shared_root()
    return tuple(_below(OWN_ROOT, "own") + (_below(further, "shared") if further else []))


def own() -> Recording:
    return recordings()[0]


def rows_of_truth(root: Path) -> list[bytes]:
    """Return the tuples of the only space of a recording, as its servers held them in the end."""
    (line,) = (root / "truth.jsonl").read_text(encoding="utf-8").splitlines()
    return sorted(map(base64.b64decode, json.loads(line)["rows"]))
