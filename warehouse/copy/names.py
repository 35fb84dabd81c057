"""The files of a Delta table's log, by their names.

From Delta's protocol, "Delta Log Entries", "Checkpoints", "Log Compaction Files", "Version Checksum File":

    _delta_log/
      00000000000000000042.json                                    the commit of version 42
      00000000000000000042.checkpoint.parquet                      all state at 42, in one file
      00000000000000000042.checkpoint.0000000001.0000000003.parquet   or part 1 of 3
      00000000000000000042.checkpoint.<uuid>.parquet|json          or with sidecars
      _sidecars/<uuid>.parquet
      00000000000000000040.00000000000000000042.compacted.json     the commits of 40 to 42 in one
      00000000000000000042.crc                                     counts and sums at 42
      _last_checkpoint                                             a hint: where the newest checkpoint is

Hadoop keeps a checksum of each local file next to it (`.<name>.crc`); it is not part of the table, and wrong once
something other than Hadoop replaces the file. Pure: nothing is read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

LOG = "_delta_log"
SIDECARS = "_sidecars"
LAST_CHECKPOINT = "_last_checkpoint"

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint\.(?:parquet|\d{10}\.\d{10}\.parquet|[0-9a-fA-F-]{36}\.(?:parquet|json))"
)
_COMPACTED = re.compile(r"\d{20}\.(\d{20})\.compacted\.json")
_SUM = re.compile(r"(\d{20})\.crc")


@dataclass(frozen=True, order=True)
class DeltaLogFile:
    """One file of a table's log.

    Parameters
    ----------
    version : int
        The last version that the file describes.
    rank : int
        Order within a version: 0 the commit, then the files made from it.
    name : str

    """

    version: int
    rank: int
    name: str

    @property
    def is_commit(self) -> bool:
        """Whether the file is a commit."""
        return self.rank == 0

    @property
    def is_checkpoint(self) -> bool:
        """Whether the file is a checkpoint, or a part of one."""
        return self.rank == 1


def log_file(name: str) -> DeltaLogFile | None:
    """Return the kind and version of a file of `_delta_log`; None if its name has no version."""
    for rank, pattern in enumerate((_COMMIT, _CHECKPOINT, _COMPACTED, _SUM)):
        match = pattern.fullmatch(name)
        if match:
            return DeltaLogFile(int(match[1]), rank, name)
    return None


def log_files(names: Iterable[str]) -> list[DeltaLogFile]:
    """Return the files of a table's log among these names, in order of their versions."""
    return sorted(found for found in map(log_file, names) if found is not None)


def hadoop_sum(path: str) -> str:
    """Return the path of the checksum that Hadoop keeps of a local file."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"
