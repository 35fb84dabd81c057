"""Maps a server's error codes to errors that say what to do and whether to retry.

Source: Tarantool's `src/box/errcode.h`; the meanings were observed on 2.6.0 or read in later versions.
"""

from __future__ import annotations

from schemas.errors import (
    AccessError,
    GapError,
    IprotoError,
    PeerError,
    ProtocolError,
    ServerBusyError,
    ServerError,
)
from schemas.iproto import MessageKey
from sources.iproto.messages import shown
from sources.iproto.packet import Packet

ACCESS_DENIED, NO_USER, PASSWORD = 42, 45, 47
WAL_MODE_NONE, ILLEGAL_PARAMS, INVALID_MSGPACK = 5, 1, 20
LOADING, LOADING_OLD, TIMED_OUT = 116, 32, 115
UNKNOWN_REQUEST = 48
XLOG_GAP = 219  # before 2.6.1: 32 (ER_PROC_LUA), with this text
SYNC_ROLLBACK = 217
TOO_EARLY = 220
"""The same as `UNKNOWN_REPLICA` from 2.7 on: a replica that is not anonymous subscribes before it has joined."""
DUPLICATE, UNKNOWN_REPLICA, OTHER_REPLICASET, SAME_UUID, NIL_UUID = 59, 62, 63, 117, 264
_GAP_TEXT = "Missing .xlog file"

_KNOWN: dict[int, tuple[type[IprotoError], str | None]] = {
    ACCESS_DENIED: (AccessError, "grant the role `replication` to the user"),
    NO_USER: (AccessError, "create the user, or correct its name"),
    PASSWORD: (AccessError, "correct the password"),
    LOADING: (ServerBusyError, None),
    SYNC_ROLLBACK: (ServerBusyError, None),
    TIMED_OUT: (ServerBusyError, None),
    DUPLICATE: (ServerBusyError, "another subscriber has the same uuid: give each daemon its own spool"),
    INVALID_MSGPACK: (ProtocolError, None),
    UNKNOWN_REQUEST: (PeerError, "this version of Tarantool does not know the request"),
    WAL_MODE_NONE: (PeerError, "the server writes no log (wal_mode = 'none')"),
    OTHER_REPLICASET: (PeerError, "list peers of one replicaset only"),
    SAME_UUID: (PeerError, "the spool has the server's own uuid: it is a copy of its log directory"),
    NIL_UUID: (ProtocolError, None),
}


def error_of(packet: Packet, peer: str) -> IprotoError:
    """Return the error for an error packet."""
    code = packet.error_code or 0
    message = packet.body.get(MessageKey.ERROR_24, "no message")
    text = shown(message)
    if code == XLOG_GAP or _GAP_TEXT in text:
        return GapError(f"the server no longer has the logs: {text}", peer=peer, code=code)
    kind, advice = _KNOWN.get(code, (ServerError, None))
    return kind(f"the server answered: {text}", peer=peer, code=code, advice=advice)
