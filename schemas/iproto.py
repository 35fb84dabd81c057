"""Tarantool's IPROTO constants: request types, header and body keys, flags, system spaces, in one place.

Source: `src/box/iproto_constants.h`, `src/box/schema_def.h` and `src/box/xrow.c` of Tarantool 2.6 to 3.x.
This module holds numbers and names only; it neither encodes nor decodes.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class RequestType(IntEnum):
    """The value of header key `TYPE`: what one row does."""

    OK = 0
    SELECT = 1
    INSERT = 2
    REPLACE = 3
    UPDATE = 4
    DELETE = 5
    UPSERT = 9
    NOP = 12
    INSERT_ARROW = 17
    RAFT = 30
    RAFT_PROMOTE = 31
    RAFT_DEMOTE = 32
    RAFT_CONFIRM = 40
    RAFT_ROLLBACK = 41


class HeaderKey(IntEnum):
    """Keys of an xrow's header map."""

    TYPE = 0x00
    SYNC = 0x01
    REPLICA_ID = 0x02
    LSN = 0x03
    TIMESTAMP = 0x04
    SCHEMA_VERSION = 0x05
    SERVER_VERSION = 0x06
    GROUP_ID = 0x07
    TSN = 0x08  # encoded as lsn - tsn
    FLAGS = 0x09
    STREAM_ID = 0x0A


class BodyKey(IntEnum):
    """Keys of an xrow's body map, as far as a log holds them."""

    REPLICA_ID = 0x02
    LSN = 0x03
    SPACE_ID = 0x10
    INDEX_ID = 0x11
    INDEX_BASE = 0x15
    KEY = 0x20
    TUPLE = 0x21  # also the operations of an UPDATE
    VCLOCK = 0x26
    OPS = 0x28  # the operations of an UPSERT
    TUPLE_META = 0x2A
    OLD_TUPLE = 0x2C
    NEW_TUPLE = 0x2D
    TERM = 0x53


class RowFlag(IntFlag):
    """Bits of header key `FLAGS`."""

    COMMIT = 1
    WAIT_SYNC = 2
    WAIT_ACK = 4


class SystemSpace(IntEnum):
    """Ids of the system spaces that the aggregator reads."""

    VINYL_DEFERRED_DELETE = 257
    SCHEMA = 272
    COLLATION = 276
    SPACE = 280
    SEQUENCE = 284
    SEQUENCE_DATA = 285
    INDEX = 288
    FUNC = 296
    USER = 304
    PRIV = 312
    CLUSTER = 320
    TRIGGER = 328
    TRUNCATE = 330
    SPACE_SEQUENCE = 340


SYSTEM_ID_MAX = 511
"""Spaces with an id up to this are Tarantool's own (`BOX_SYSTEM_ID_MAX`)."""

VCLOCK_MAX = 32
"""A vclock has components 0..31; component 0 counts local changes (`VCLOCK_MAX`)."""

GROUP_LOCAL = 1
"""Header key `GROUP_ID` of rows of local spaces (`GROUP_LOCAL`)."""


def type_name(code: int) -> str:
    """Return the name that the column `type` shows for a request type.

    An unknown code n reads `TYPE_n`.
    """
    try:
        return RequestType(code).name
    except ValueError:
        return f"TYPE_{code}"
