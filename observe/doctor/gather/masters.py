"""Gathers facts of the masters: connects, logs in, and sends the requests that a subscriber sends first.

The right to replicate is tested with two requests that leave nothing behind: a SELECT of `_priv`, since the right to
replicate is the right to read the universe; and a SUBSCRIBE that no server can begin, by a replica that is neither
registered nor anonymous (`box_process_subscribe` in `src/box/box.cc`; up to 2.11 the right is checked first).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from config.subscribe import ReplicasetConfig, Subscribe, seconds
from observe.doctor.masters import Followed, PeerFacts
from schemas.errors import (
    AggregatorError,
    ConfigurationError,
    ConnectionLostError,
    IprotoError,
    PeerError,
    ProtocolError,
    ServerBusyError,
)
from schemas.iproto import Command, MessageKey
from sources.iproto.address import Peer as Target
from sources.iproto.client import Connection, connect
from sources.iproto.messages import ANONYMOUS_SINCE, Ballot, version_number
from sources.iproto.wire import ACCESS_DENIED, NO_USER, PASSWORD, TOO_EARLY, UNKNOWN_REPLICA
from sources.spool.state import check_own, read_state

TURNS = 3
"""Number of iterations of the event loop until an abandoned connection, also with TLS, has closed its socket."""

_BY_CODE = {
    ACCESS_DENIED: "no_right_to_replicate",
    NO_USER: "no_such_user",
    PASSWORD: "wrong_password",
}
_ONE_PRIVILEGE: dict[int, Any] = {
    MessageKey.SPACE_ID: 312,
    MessageKey.INDEX_ID: 0,
    MessageKey.LIMIT: 1,
    MessageKey.OFFSET: 0,
    MessageKey.ITERATOR: 2,
    MessageKey.KEY: [],
}
"""`_priv` is space 312; only the roles `replication` and `super` may read it."""


def followed(section: Subscribe, block: int) -> list[Followed]:
    """Return the facts of the masters of a configuration and of their spools; all masters are asked at once."""
    timeout = seconds(section.answer)
    peers = asyncio.run(_asked(section, timeout))
    return [_followed(one, said, block) for one, said in zip(section.replicasets, peers, strict=True)]


async def _asked(section: Subscribe, timeout: float) -> Sequence[Sequence[PeerFacts]]:
    async def of_one(replicaset: ReplicasetConfig) -> Sequence[PeerFacts]:
        return await asyncio.gather(*(ask(replicaset.peer(text), timeout) for text in replicaset.peers))

    found = await asyncio.gather(*(of_one(replicaset) for replicaset in section.replicasets))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return found


def _followed(replicaset: ReplicasetConfig, peers: Sequence[PeerFacts], block: int) -> Followed:
    spool = Path(replicaset.spool)
    try:
        check_own(spool)
        if not spool.is_dir():
            return Followed(replicaset.name, tuple(peers))
        state = read_state(spool, block)
    except (AggregatorError, OSError) as error:
        return Followed(replicaset.name, tuple(peers), str(error))
    return Followed(replicaset.name, tuple(peers), None, state.vclock, state.replicaset_uuid)


async def ask(target: Target, timeout: float) -> PeerFacts:
    """Return the facts of a master.

    Parameters
    ----------
    target : Peer
    timeout : float
        Seconds to wait for each answer.

    """
    try:
        connection = await connect(target, timeout)
    except (AggregatorError, OSError) as error:
        return PeerFacts(target.name, _fault(error), str(error))
    version = connection.greeting.version
    try:
        if version < ANONYMOUS_SINCE:
            text = f"Tarantool {'.'.join(map(str, version))} does not support anonymous subscribers"
            return PeerFacts(target.name, "peer_version", text, version)
        ballot = await connection.vote()
        if ballot.is_loading:
            return PeerFacts(target.name, "peer_loading", "the server is loading its data", version)
        return await _may_replicate(connection, ballot)
    except (AggregatorError, OSError) as error:
        return PeerFacts(target.name, _fault(error), str(error), version)
    finally:
        connection.close()


async def _may_replicate(connection: Connection, ballot: Ballot) -> PeerFacts:
    version, instance = connection.greeting.version, connection.greeting.instance_uuid
    replicaset = await connection.replicaset_uuid()
    if not await connection.is_relay():
        await connection.cluster()
        await connection.request(Command.SELECT, _ONE_PRIVILEGE)
        try:
            await connection.request(Command.SUBSCRIBE, _impossible(replicaset, version))
        except IprotoError as error:
            if error.fields.get("code") not in (UNKNOWN_REPLICA, TOO_EARLY):
                raise
    vclock, gc_vclock = dict(ballot.vclock), dict(ballot.gc_vclock)
    return PeerFacts(connection.peer.name, None, None, version, instance, replicaset, vclock, gc_vclock)


def _impossible(replicaset_uuid: str, version: tuple[int, int, int]) -> dict[int, Any]:
    return {
        MessageKey.REPLICASET_UUID: replicaset_uuid,
        MessageKey.INSTANCE_UUID: str(uuid4()),
        MessageKey.VCLOCK: {},
        MessageKey.SERVER_VERSION: version_number(version),
        MessageKey.REPLICA_ANON: False,
    }


def _fault(error: Exception) -> str:
    code = error.fields.get("code") if isinstance(error, AggregatorError) else None
    if code in _BY_CODE:
        return _BY_CODE[code]
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "peer_tls"
        cause = cause.__cause__
    kinds: tuple[tuple[type[Exception], str], ...] = (
        (ConfigurationError, "password_missing"),
        (ServerBusyError, "peer_loading"),
        (ProtocolError, "not_tarantool"),
        (ConnectionLostError, "peer_unreachable"),
        (PeerError, "peer_refuses"),
        (OSError, "peer_unreachable"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "peer_refuses")
