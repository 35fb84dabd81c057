"""A server's directory from which logs are collected while nobody reads them: what is left begins with a snapshot."""

import shutil
from pathlib import Path
from random import Random


class CollectedDirectory:
    """A copy of a server's directory, at two moments.

    Args:
        folder: Of the copy.
        server: A server's directory with all its logs from the first one on, and at least two snapshots.
        dice: Chooses the snapshot, and which logs are read before those up to it are gone.
    """

    def __init__(self, folder: Path, server: Path, dice: Random) -> None:
        self.folder, self._server = folder, server
        first, *later = sorted(server.glob("*.snap"))
        self._snapshots = first, dice.choice(later)
        logs = sorted(server.glob("*.xlog"))
        before = [path for path in logs if path.stem < self._snapshots[1].stem]
        self._read = before[: dice.randint(1, len(before))]
        self._rest = logs[len(before) :]

    @staticmethod
    def can_be_made(server: Path) -> bool:
        """Return whether the server has a snapshot besides its first one."""
        return len(list(server.glob("*.snap"))) > 1

    def write_first(self) -> None:
        """Write the server's first snapshot, and some logs."""
        self._write(self._snapshots[0], self._read)

    def write_rest(self) -> None:
        """Write a later snapshot, and the logs behind it, in the place of all others."""
        if self.folder.exists():
            for path in self.folder.glob("*.*"):
                path.unlink()
        self._write(self._snapshots[1], self._rest)

    def _write(self, snapshot: Path, logs: list[Path]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        described = snapshot.with_suffix(".vylog")
        for path in (snapshot, *logs, *([described] if described.exists() else [])):
            shutil.copy(path, self.folder)
        for path in self._server.iterdir():
            if path.is_dir():
                shutil.copytree(path, self.folder / path.name, dirs_exist_ok=True)
