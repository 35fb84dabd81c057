"""Acknowledgements to the spools among the sources: what the tables hold, so that their daemon may remove files.

After the commit of a batch each local spool of its replicasets gets an acknowledgement (`sources.spool.acks`): the
vclock at which the file begins in which that batch *began*, as far as it is settled. A job that was killed begins the
same batch again, another member begins at that file, a lost checkpoint at what is settled. So an idle stream keeps the
files of its last batch.

Neither Spark nor delta-rs forces to the disk what it commits, and a file that every reader has passed is removed: so
the file system of a local warehouse is synced before a spool gets a later position. An object store is durable by
itself.

An acknowledgement that cannot be written is a warning: no row waits for it. Not here: removing anything.
"""

from __future__ import annotations

import ctypes
import logging
import os
import zlib
from pathlib import Path

from config.deployment import Config, SourceConfig
from pipeline.state import ReplicasetState, State
from schemas.errors import AggregatorError
from sources.spool.acks import is_spool, renew_ack, write_ack
from sources.xlog.directory.identity import identity_of
from sources.xlog.directory.offset import Offset
from sources.xlog.format.vclock import Vclock
from sources.xlog.stream.follow import Follower

log = logging.getLogger(__name__)


def sync_file_system(path: Path) -> None:
    """Force to the disk whatever was written to the file system that a path is on.

    Raises
    ------
    OSError
        The path is missing, or something could not be written.

    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(file) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(file)


def reader_name(config: Config) -> str:
    """Return the name under which a deployment acknowledges: two warehouses have two."""
    return config.reader or f"{config.database}-{zlib.crc32(config.warehouse.encode()):08x}"


def passed_vclock(header: Vclock, one: ReplicasetState, source: SourceConfig) -> dict[int, int]:
    """Return the vclock up to which a source is never read again, in the source's own replica ids.

    Parameters
    ----------
    header : Vclock
        Of the file where the last batch began.
    one : ReplicasetState
        After it.
    source : SourceConfig
        Instances that its whitelist leaves out are passed as far as the header says.

    """
    ids = one.id_translations.get(source.name, {})
    found = {}
    for local_id, lsn in header.items():
        meant = ids.get(local_id, local_id)
        is_wanted = not source.origins or one.cluster.get(meant) in source.origins
        found[local_id] = min(lsn, one.settled.get(meant, 0)) if is_wanted else lsn
    return found


class Acknowledger:
    """Acknowledges to the local spools of a deployment what has been passed.

    Parameters
    ----------
    config : Config
    follower : Follower
        Of the same sources; asked to which replicaset a spool belongs.

    """

    def __init__(self, config: Config, follower: Follower) -> None:
        self._reader = reader_name(config)
        self._sources = [source for source in config.sources if "://" not in source.path]
        self._follower = follower
        self._uuids: dict[str, str] = {}
        warehouse = config.warehouse.removeprefix("file://")
        self._warehouse = None if "://" in warehouse else Path(warehouse)
        self._acknowledged: dict[str, dict[int, int]] = {}

    def __call__(self, began: Offset, state: State) -> None:
        """Acknowledge to all spools.

        Parameters
        ----------
        began : Offset
            Where the batch that was committed last began.
        state : State
            After it.

        """
        for source in self._sources:
            spool = Path(source.path)
            try:
                uuid = self._replicaset(source) if is_spool(spool) else ""
                if uuid in began and uuid in state.replicasets:
                    vclock = passed_vclock(began[uuid].vclock, state.replicasets[uuid], source)
                    self._acknowledge(source.name, spool, vclock)
            except (OSError, AggregatorError) as error:
                log.warning("source %s: %s was not acknowledged: %s", source.name, spool, error)

    def _acknowledge(self, name: str, spool: Path, vclock: dict[int, int]) -> None:
        if self._acknowledged.get(name) == vclock and renew_ack(spool, self._reader):
            return
        if self._warehouse is not None and self._warehouse.exists():
            sync_file_system(self._warehouse)
        write_ack(spool, self._reader, vclock)
        self._acknowledged[name] = vclock

    def _replicaset(self, source: SourceConfig) -> str:
        if source.name not in self._uuids:
            directory = self._follower.directory(source.name)
            self._uuids[source.name] = identity_of(directory, directory.listing(), None)
        return self._uuids[source.name]
