"""The errors of the project, each with a class that a caller can catch.

Every error says what is wrong, where (file, offset, space), and what to do. Errors are raised in Spark's Python workers
as well as in the driver, so each must survive pickling: `__reduce__` rebuilds an error from its reason and its fields.
Entry points show errors and turn them into exit codes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _rebuild(cls: type[AggregatorError], reason: str, fields: dict[str, Any]) -> AggregatorError:
    return cls(reason, **fields)


class AggregatorError(Exception):
    """Base of all errors of this project.

    Args:
        reason: What is wrong, in one sentence.
        **fields: Where it is wrong (`file`, `offset`, `space`, `source`, ...) and `advice`: what to do.
    """

    def __init__(self, reason: str, **fields: Any) -> None:
        self.reason = reason
        self.fields = {name: value for name, value in fields.items() if value is not None}
        super().__init__(self.__str__())

    def __str__(self) -> str:
        advice = self.fields.get("advice")
        where = ", ".join(f"{name} {value}" for name, value in self.fields.items() if name != "advice")
        text = f"{self.reason} ({where})" if where else self.reason
        return f"{text}: {advice}" if advice else text

    def __reduce__(self) -> tuple[Callable[..., AggregatorError], tuple[Any, ...]]:
        return _rebuild, (type(self), self.reason, self.fields)


class ConfigurationError(AggregatorError):
    """The configuration or the command line is wrong. Field: `path` (of the mistake in the YAML)."""


class ExpressionError(AggregatorError):
    """An SQL expression of the configuration is not one, or does not fit the columns of its table."""


class UnsupportedError(AggregatorError):
    """Something valid that this version does not support; the reason names it."""


class XlogError(AggregatorError):
    """A log file cannot be read. Fields: `file`, `offset` (bytes)."""


class XlogMetaError(XlogError):
    """The text header of a log file is damaged, truncated, or of an unknown type or version."""


class XlogMetaIncompleteError(XlogMetaError):
    """The file ends inside its text header: a growing file is not readable yet, a closed one is damaged."""


class XlogMagicError(XlogError):
    """The bytes at the start of a block are not a block's magic."""


class XlogHeaderError(XlogError):
    """A block's fixed header is invalid: an impossible length, or not MessagePack."""


class XlogChecksumError(XlogError):
    """The checksum of a block does not match its bytes."""


class XlogCompressionError(XlogError):
    """A zstd block cannot be decompressed, or grows beyond the allowed size."""


class XlogRowError(XlogError):
    """A row inside a valid block is not valid MessagePack or not an xrow."""


class XlogTruncatedError(XlogError):
    """A closed file ends inside a block."""


class XlogRewrittenError(XlogError):
    """A file has another content before a position than the one that was read: its history has changed."""


class XlogMissingError(XlogError):
    """A file that was seen before is gone."""


class XlogGapError(XlogError):
    """Rows are missing between two files of one directory."""


class SourceError(AggregatorError):
    """A source cannot be followed. Field: `source`."""


class UnknownInstanceError(SourceError):
    """A whitelist cannot decide about a row, because the instance of its replica id is not known. Field: `lsn`."""


class BackupError(AggregatorError):
    """A storage of backups, or an archive in it, is not as `tt backup` makes it.

    Fields: `storage`, `backup`, `file`.
    """


class OffsetError(AggregatorError):
    """A stream's offset is not one that this source wrote."""


class TupleError(AggregatorError):
    """A tuple or an operation is not what Tarantool would accept. Fields: `space`, `code` (Tarantool's)."""


class PolicyError(AggregatorError):
    """A policy cannot decide between versions as configured. Fields: `space`, `function`."""


class LockError(AggregatorError):
    """Another writer has the warehouse's writer lock, or this one has lost it."""


class WarehouseError(AggregatorError):
    """The tables of the warehouse contradict each other or the configuration."""


class TableMovedError(WarehouseError):
    """Somebody else has moved rows of a table to other files since they were looked up. Fields: `table`, `file`."""


class ForeignChangeError(WarehouseError):
    """Somebody else has changed rows or columns of a table. Fields: `table`, `version`, `advice`."""


class IprotoError(AggregatorError):
    """A live server, or the connection to it, fails. Fields: `peer`, `code` (Tarantool's)."""


class ConnectionLostError(IprotoError):
    """The connection broke, was refused, or had no traffic for too long."""


class ProtocolError(IprotoError):
    """The bytes break the protocol."""


class ServerError(IprotoError):
    """The server refused a request for a reason without a class of its own."""


class ServerBusyError(ServerError):
    """The server cannot answer yet: it is loading, or a synchronous transaction was rolled back meanwhile."""


class AccessError(ServerError):
    """Wrong user or password, or a right is missing."""


class PeerError(IprotoError):
    """The server is the wrong one: another replicaset, or a version that lacks a needed feature."""


class GapError(IprotoError):
    """The server has removed logs that the aggregator has not received.

    Fields: `replica_id`, `wanted` (the first lsn that is missing), `oldest` (the first lsn that the server still has).
    """


class StreamGapError(ProtocolError):
    """Rows are missing in a server's stream, or a transaction is incomplete. Fields: `replica_id`, `lsn`, `wanted`."""


class RewindError(IprotoError):
    """The server has fewer rows of an instance than were received: it was restored from an older state."""


class TransactionLimitError(AggregatorError):
    """A transaction is larger than the configured limit, so no reader would accept it. Field: `limit` (bytes)."""


class SpoolError(AggregatorError):
    """A spool is damaged, has the wrong content, or cannot be written. Fields: `spool`, `file`.

    A spool is a directory of `.snap` and `.xlog` files that a daemon writes with the rows of a live server.
    """


class SpoolBrokenError(SpoolError):
    """A failed write left the end of a spool's log uncertain: no write is possible before it is truncated."""


class SpoolFullError(SpoolError):
    """The disk has no room for received rows; none is lost, because the server still has them."""


class RidError(AggregatorError):
    """A text is not a RID. Fields: `rid`, `part`."""


class RidStateError(AggregatorError):
    """An operation is not allowed in the current state of a warehouse's RID. Fields: `warehouse`, `rid`."""


class SyncError(AggregatorError):
    """A warehouse cannot be copied in its present state, or the copy is not correct. Fields: `table`, `file`."""
