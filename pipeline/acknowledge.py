"""Acknowledges to local spools which rows are in the tables, so that the subscription daemon may remove old files.

After the commit of a batch, each local spool of its replicasets gets an acknowledgement (`sources.spool.acks`): the
vclock in the header of the file in which that batch *began*, limited to the settled vclock: the last lsn of each
replica id in `_changelog`. The rows from there on may be read again: a killed job repeats the batch, another instance
of the replicaset continues from that file, or the checkpoint is lost and the stream starts from the settled vclock. So
the files of the last batch stay while a stream is idle.

Neither Spark nor delta-rs syncs its commits to the disk, but the daemon removes a file that every reader has
acknowledged. So the file system of a local warehouse is synced before each acknowledgement that differs from the last
one. An object store is durable by itself.
"""

import ctypes
import logging
import os
import zlib
from pathlib import Path

from config.deployment import Config, SourceConfig
from pipeline.state import ReplicasetState, State
from schemas.errors import AggregatorError
from sources.spool.acks import is_spool, renew_ack, write_ack
from sources.xlog.directory.offset import Offset
from sources.xlog.format.vclock import Vclock
from sources.xlog.stream.identity import replicaset_uuid_of
from sources.xlog.stream.log_stream import LogStream

log = logging.getLogger(__name__)


def sync_file_system(path: Path) -> None:
    """Sync the file system of a path to the disk (`syncfs`); raise OSError if data could not be written."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(file) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(file)


def reader_name(config: Config) -> str:
    """Return the reader's name in acknowledgements of a deployment: it is unique for each warehouse."""
    return config.reader or f"{config.database}-{zlib.crc32(config.warehouse.encode()):08x}"


def acknowledged_vclock(
    file_vclock: Vclock, replicaset: ReplicasetState, source: SourceConfig
) -> dict[int, int]:
    """Return the vclock up to which a source is never read again, in the source's replica ids.

    An instance that the source's whitelist (`origins`) excludes has its lsn in `file_vclock`, the vclock in the header
    of the file in which the last batch began.
    """
    ids = replicaset.id_translations.get(source.name, {})
    found = {}
    for replica_id, lsn in file_vclock.items():
        translated = ids.get(replica_id, replica_id)
        is_read = not source.origins or replicaset.cluster.get(translated) in source.origins
        found[replica_id] = min(lsn, replicaset.settled.get(translated, 0)) if is_read else lsn
    return found


class Acknowledger:
    """Acknowledges rows to the local spools of a deployment."""

    def __init__(self, config: Config, log_stream: LogStream) -> None:
        self._reader = reader_name(config)
        self._sources = [source for source in config.sources if "://" not in source.path]
        self._log_stream = log_stream
        self._replicaset_uuid_by_source: dict[str, str] = {}
        warehouse = config.warehouse.removeprefix("file://")
        self._warehouse = None if "://" in warehouse else Path(warehouse)
        self._acknowledged_by_source: dict[str, dict[int, int]] = {}

    def __call__(self, began: Offset, state: State) -> None:
        """Acknowledge to all local spools the rows up to the last batch."""
        for source in self._sources:
            spool = Path(source.path)
            try:
                uuid = self._replicaset_uuid(source) if is_spool(spool) else ""
                if uuid in began and uuid in state.replicasets:
                    vclock = acknowledged_vclock(began[uuid].vclock, state.replicasets[uuid], source)
                    self._acknowledge(source.name, spool, vclock)
            except (OSError, AggregatorError) as error:
                log.warning("source %s: %s was not acknowledged: %s", source.name, spool, error)

    def _acknowledge(self, source_name: str, spool: Path, vclock: dict[int, int]) -> None:
        if self._acknowledged_by_source.get(source_name) == vclock and renew_ack(spool, self._reader):
            return
        if self._warehouse is not None and self._warehouse.exists():
            sync_file_system(self._warehouse)
        write_ack(spool, self._reader, vclock)
        self._acknowledged_by_source[source_name] = vclock

    def _replicaset_uuid(self, source: SourceConfig) -> str:
        if source.name not in self._replicaset_uuid_by_source:
            directory = self._log_stream.directory(source.name)
            self._replicaset_uuid_by_source[source.name] = replicaset_uuid_of(
                directory, directory.listing(), None
            )
        return self._replicaset_uuid_by_source[source.name]
