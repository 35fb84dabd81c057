"""Gathers facts of the masters: connects, logs in, and sends the first requests of a subscriber.

Two requests test the right to replicate; they change nothing on the server:

1. A SELECT of `_priv`: a user with the right to replicate may read it, since that right includes reading everything.
2. A SUBSCRIBE as a replica that is neither registered nor anonymous, which every server refuses
   (`box_process_subscribe` in `src/box/box.cc`). Versions up to 2.11 check the right first, so the error says whether
   it is missing.
"""

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from config.subscribe import ReplicasetConfig, Subscribe, seconds
from observe.doctor.masters import PeerFacts, SubscribedReplicaset
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
from sources.iproto.address import Peer
from sources.iproto.client import Connection, connect
from sources.iproto.messages import ANONYMOUS_SINCE, Ballot, version_number
from sources.iproto.wire import ACCESS_DENIED, NO_USER, PASSWORD, TOO_EARLY, UNKNOWN_REPLICA
from sources.spool.state import read_state, refuse_foreign_directory

CLOSING_LOOP_ITERATIONS = 3
"""Number of iterations of the event loop to wait after connections are closed: then their sockets are closed, too."""

_FAULT_BY_ERROR_CODE = {
    ACCESS_DENIED: "no_right_to_replicate",
    NO_USER: "no_such_user",
    PASSWORD: "wrong_password",
}
_SELECT_OF_PRIV: dict[int, Any] = {
    MessageKey.SPACE_ID: 312,
    MessageKey.INDEX_ID: 0,
    MessageKey.LIMIT: 1,
    MessageKey.OFFSET: 0,
    MessageKey.ITERATOR: 2,
    MessageKey.KEY: [],
}
"""`_priv` is space 312; only the roles `replication` and `super` may read it."""


def gather_masters(section: Subscribe, max_block_bytes: int) -> list[SubscribedReplicaset]:
    """Return, by entry of `subscribe.replicasets`, the facts of its masters and of its spool."""
    peers = asyncio.run(_ask_all(section, seconds(section.answer)))
    return [
        _with_spool(replicaset, facts, max_block_bytes)
        for replicaset, facts in zip(section.replicasets, peers, strict=True)
    ]


async def _ask_all(section: Subscribe, timeout: float) -> Sequence[Sequence[PeerFacts]]:
    async def ask_members(replicaset: ReplicasetConfig) -> Sequence[PeerFacts]:
        return await asyncio.gather(
            *(ask_master(replicaset.peer(text), timeout) for text in replicaset.peers)
        )

    facts = await asyncio.gather(*(ask_members(replicaset) for replicaset in section.replicasets))
    for _ in range(CLOSING_LOOP_ITERATIONS):
        await asyncio.sleep(0)
    return facts


def _with_spool(
    replicaset: ReplicasetConfig, peers: Sequence[PeerFacts], max_block_bytes: int
) -> SubscribedReplicaset:
    """Return the facts of a replicaset: `peers`, and those of its spool, which are read here."""
    spool = Path(replicaset.spool)
    try:
        refuse_foreign_directory(spool)
        if not spool.is_dir():
            return SubscribedReplicaset(replicaset.name, tuple(peers))
        state = read_state(spool, max_block_bytes)
    except (AggregatorError, OSError) as error:
        return SubscribedReplicaset(replicaset.name, tuple(peers), str(error))
    return SubscribedReplicaset(replicaset.name, tuple(peers), None, state.vclock, state.replicaset_uuid)


async def ask_master(peer: Peer, timeout: float) -> PeerFacts:
    """Return the facts of a master; wait up to `timeout` seconds for each answer."""
    try:
        connection = await connect(peer, timeout)
    except (AggregatorError, OSError) as error:
        return PeerFacts(peer.name, _fault_name(error), str(error))
    version = connection.greeting.version
    try:
        if version < ANONYMOUS_SINCE:
            text = f"Tarantool {'.'.join(map(str, version))} does not support anonymous subscribers"
            return PeerFacts(peer.name, "peer_version", text, version)
        ballot = await connection.request_ballot()
        if ballot.is_loading:
            return PeerFacts(peer.name, "peer_loading", "the server is loading its data", version)
        return await _check_right_to_replicate(connection, ballot)
    except (AggregatorError, OSError) as error:
        return PeerFacts(peer.name, _fault_name(error), str(error), version)
    finally:
        connection.close()


async def _check_right_to_replicate(connection: Connection, ballot: Ballot) -> PeerFacts:
    version, instance = connection.greeting.version, connection.greeting.instance_uuid
    replicaset = await connection.replicaset_uuid()
    if not await connection.is_relay():
        await connection.cluster()
        await connection.request(Command.SELECT, _SELECT_OF_PRIV)
        try:
            await connection.request(Command.SUBSCRIBE, _refused_subscribe_body(replicaset, version))
        except IprotoError as error:
            if error.fields.get("code") not in (UNKNOWN_REPLICA, TOO_EARLY):
                raise
    vclock, gc_vclock = dict(ballot.vclock), dict(ballot.gc_vclock)
    return PeerFacts(connection.peer.name, None, None, version, instance, replicaset, vclock, gc_vclock)


def _refused_subscribe_body(replicaset_uuid: str, version: tuple[int, int, int]) -> dict[int, Any]:
    """Return the body of a SUBSCRIBE of an unknown replica, which every server refuses."""
    return {
        MessageKey.REPLICASET_UUID: replicaset_uuid,
        MessageKey.INSTANCE_UUID: str(uuid4()),
        MessageKey.VCLOCK: {},
        MessageKey.SERVER_VERSION: version_number(version),
        MessageKey.REPLICA_ANON: False,
    }


def _fault_name(error: Exception) -> str:
    code = error.fields.get("code") if isinstance(error, AggregatorError) else None
    if code in _FAULT_BY_ERROR_CODE:
        return _FAULT_BY_ERROR_CODE[code]
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
