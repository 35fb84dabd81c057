"""Looks up how many bytes of the sources' logs are beyond the newest epoch, apart from the stream's reader.

Only sizes and headers of files are read, so it costs little, and it does not hang where the reader's process hangs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from config.deployment import SourceConfig
from sources.xlog.directory.directory import SOURCE_ERRORS, Directory
from sources.xlog.directory.listing import LogFile
from sources.xlog.directory.source import Source
from sources.xlog.format.block import EOF_MARKER
from sources.xlog.format.damage import Mode


class LogEnds:
    """Looks up the ends of the logs of some sources, again and again; headers of files are read once."""

    def __init__(self, sources: Sequence[SourceConfig]) -> None:
        self._directories = {
            one.name: Directory(Source(one.name, one.path, one.replicaset), Mode.DROPMALFORMED)
            for one in sources
        }

    def unread_bytes(self, positions: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
        """Return, by source that the stream reads, the number of bytes of its logs beyond the positions of an offset.

        A source that cannot be listed, or no longer has the file of its position, is left out.
        """
        found = {}
        for position in positions.values():
            directory = self._directories.get(position["leader"])
            if directory is None:
                continue
            try:
                logs = directory.listing().logs
            except SOURCE_ERRORS:
                continue
            unread = _bytes_after(logs, str(position["file"]), int(position["position"]))
            if unread is not None:
                found[str(position["leader"])] = unread
        return found


def _bytes_after(logs: Sequence[LogFile], name: str, position: int) -> int | None:
    """Return the bytes of blocks after a position in a file; None if neither the file nor a later one is there."""
    stem = name.partition(".")[0]
    rest = [file for file in logs if file.name == name or file.name.partition(".")[0] > stem]
    if not rest:
        return None if name.endswith(".xlog") else 0
    return sum(_rows_bytes(file, position if file.name == name else 0) for file in rest)


def _rows_bytes(file: LogFile, position: int) -> int:
    size = max(0, file.size - max(position, file.header_bytes))
    return 0 if size <= len(EOF_MARKER) else size
