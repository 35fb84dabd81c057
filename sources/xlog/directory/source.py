"""A source, as the configuration and the options of a reader name it. Plain data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A source of xrows: a directory of `.snap` and `.xlog` files, or one file of any type."""

    name: str
    """Name of the source in offsets, rows, and messages."""
    path: str
    """A local path or any URI that `pyarrow.fs` opens; a path of the option `path` or `paths` may be a glob."""
    replicaset: str | None = None
    """The replicaset's uuid, if the files do not have it."""
    origin_uuids: frozenset[str] = frozenset()
    """Uuids of the instances whose rows are read; if it is empty, rows of all instances are read."""
