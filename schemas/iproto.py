"""Tarantool's IPROTO constants: request types, header and body keys, flags, system spaces, in one place.

Source: `src/box/iproto_constants.h`, `src/box/schema_def.h` and `src/box/xrow.c` of Tarantool 2.6 to 3.x.
This module has numbers and names only; it neither encodes nor decodes.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class RequestType(IntEnum):
    """The values of header key `TYPE`: the request of a row."""

    OK = 0
    SELECT = 1
    INSERT = 2
    REPLACE = 3
    UPDATE = 4
    DELETE = 5
    UPSERT = 9
    NOP = 12
    INSERT_ARROW = 17
    DELETE_RANGE = 18
    RAFT = 30
    RAFT_PROMOTE = 31
    RAFT_DEMOTE = 32
    RAFT_CONFIRM = 40
    RAFT_ROLLBACK = 41
    RUNINFO = 100  # these three are rows of vinyl's .index and .run files only
    PAGEINFO = 101
    ROWINDEX = 102


class Command(IntEnum):
    """Requests and answers of the replication protocol that are not rows; the project never sends JOIN or REGISTER."""

    SELECT = 0x01
    AUTH = 0x07
    EVAL = 0x08
    PING = 0x40
    SUBSCRIBE = 0x42
    VOTE = 0x44
    FETCH_SNAPSHOT = 0x45
    JOIN_META = 0x47
    JOIN_SNAPSHOT = 0x48
    ID = 0x49
    CLUSTER_INFO = 0x78  # not Tarantool's, only `jobs/relay.py` uses it: docs/formats.md


FIRST_COMMAND = int(Command.PING)
"""Types from this one on are requests and answers of the protocol, not rows of a log."""

TYPE_ERROR = 0x8000
"""An answer of this type plus a code is an error (`IPROTO_TYPE_ERROR`)."""


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
    """Keys of an xrow's body map that occur in logs."""

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
    ARROW = 0x36  # of INSERT_ARROW: Arrow IPC in an extension
    BEGIN_KEY = 0x37  # of DELETE_RANGE
    END_KEY = 0x38
    TERM = 0x53


class MessageKey(IntEnum):
    """Keys of the bodies of requests and answers; those from 0x70 on are those of `jobs/relay.py`, not Tarantool's."""

    REPLICA_ID = 0x02
    SERVER_VERSION = 0x06
    SPACE_ID = 0x10
    INDEX_ID = 0x11
    LIMIT = 0x12
    OFFSET = 0x13
    ITERATOR = 0x14
    KEY = 0x20
    TUPLE = 0x21
    USER_NAME = 0x23
    EXPRESSION = 0x27
    INSTANCE_UUID = 0x24
    REPLICASET_UUID = 0x25
    VCLOCK = 0x26
    BALLOT = 0x29
    DATA = 0x30
    ERROR_24 = 0x31  # the message alone; a stack of errors is under 0x52
    REPLICA_ANON = 0x50
    ID_FILTER = 0x51
    VERSION = 0x54
    FEATURES = 0x55
    REPLICASET_NAME = 0x5C  # 3.0
    RELAY_EXTENSIONS_VERSION = 0x70
    CLUSTER_CRC32 = 0x71
    CLUSTER_LENGTH = 0x72
    ORIGINS = 0x73
    SERVER_VERSIONS = 0x74


class BallotKey(IntEnum):
    """Keys of the ballot, a server's answer to VOTE; a comment says where the meaning depends on the version."""

    IS_RO_CFG = 0x01
    VCLOCK = 0x02
    GC_VCLOCK = 0x03
    IS_LOADING = 0x04  # read-only or loading; from 2.7.3 on IS_RO
    IS_ANON = 0x05
    IS_BOOTED = 0x06


class RowFlag(IntFlag):
    """Bits of header key `FLAGS`."""

    COMMIT = 1
    WAIT_SYNC = 2
    WAIT_ACK = 4


class SystemSpace(IntEnum):
    """Ids of the system spaces whose rows are in logs."""

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
    FK_CONSTRAINT = 356
    CK_CONSTRAINT = 364
    FUNC_INDEX = 372
    GC_CONSUMERS = 388
    RECOVERY_POINT = 396


CHANGE_TYPE_MAX = int(RequestType.RAFT) - 1
"""The highest type that may be a change of a space.

No version assigns the types from 19 to this one yet; a row of such a type counts as a change that is not known."""

SYSTEM_SPACE_ID_MAX = 511
"""Spaces with an id up to this are Tarantool's own (`BOX_SYSTEM_ID_MAX`)."""

VCLOCK_MAX = 32
"""A vclock has components 0..31; component 0 counts local changes (`VCLOCK_MAX`)."""

LSN_MAX = 2**63 - 1
"""The highest lsn."""

GROUP_LOCAL = 1
"""The value of the header key `GROUP_ID` in rows of local spaces (`GROUP_LOCAL`)."""

GROUP_CLUSTER = 2
"""The value of the header key `GROUP_ID` in the aggregator's own rows of `_cluster` (`GROUP_CLUSTER` of document 001).

No server of Tarantool writes it.
"""


_UNKNOWN_PREFIX = "TYPE_"


def type_name(code: int) -> str:
    """Return the name that the column `type` shows for a request type: `TYPE_n` for an unknown code n."""
    try:
        return RequestType(code).name
    except ValueError:
        return f"{_UNKNOWN_PREFIX}{code}"


def is_unknown_type(name: str) -> bool:
    """Return whether a name from `type_name` is that of a code that is not in `RequestType`."""
    return name.startswith(_UNKNOWN_PREFIX)


def type_code(name: str) -> int:
    """Return the request type of a name from `type_name`."""
    if is_unknown_type(name):
        return int(name.removeprefix(_UNKNOWN_PREFIX))
    return int(RequestType[name])
