"""Gathers facts of the masters that the daemon subscribes to, and checks whether each answers, and lets it replicate.

It connects, logs in, and sends the first requests of a subscriber. Two requests test the right to replicate; they
change nothing on the server:

1. A SELECT of `_priv`: a user with the right to replicate may read it, since that right includes reading everything.
2. A SUBSCRIBE as a replica that is neither registered nor anonymous, which every server refuses
   (`box_process_subscribe` in `src/box/box.cc`). Versions up to 2.11 check the right first, so the error says whether
   it is missing.
"""

import asyncio
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from config.subscribe import ReplicasetConfig, Subscribe, seconds
from observe.doctor.findings import Finding, fail, ok, warn
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

ADVICE: Mapping[str, str] = {
    "peer_unreachable": "is the server up, the address right (box.cfg.listen), a firewall between?",
    "peer_tls": "correct ca_file, cert_file, server_name; is the server's port one that talks TLS?",
    "not_tarantool": "name the port of box.cfg.listen, not a console's or another service's",
    "password_missing": "set the variable, or write the file, that `subscribe` names",
    "no_such_user": "box.schema.user.create on the master, or correct the user's name",
    "wrong_password": "correct the password, or the user: the server does not say which of the two is wrong",
    "no_right_to_replicate": "box.schema.user.grant(USER, 'replication') on the master",
    "peer_version": "2.4.1 is the first version with anonymous subscribers; read its log folder as a source instead",
    "peer_loading": "wait until the server has loaded its data",
    "peer_refuses": "see the message, and the server's own log",
}
"""By name of a fault, what the operator should do."""


@dataclass(frozen=True)
class PeerFacts:
    """The facts of one master."""

    address: str
    fault: str | None = None
    """Name of what is wrong with the master, a key of `ADVICE`; None if nothing is wrong."""
    error: str | None = None
    """The error message; None if there is no fault."""
    version: tuple[int, ...] = ()
    """Tarantool's version; empty if the master did not answer."""
    instance_uuid: str | None = None
    replicaset_uuid: str | None = None
    """Uuids of the master and of its replicaset; None if there is a fault."""
    vclock: Mapping[int, int] = field(default_factory=dict)
    oldest_log_vclock: Mapping[int, int] = field(default_factory=dict)
    """The master's vclock, and the vclock at the start of its oldest log (older ones are garbage-collected)."""


@dataclass(frozen=True)
class SubscribedReplicaset:
    """The facts of one entry of `subscribe.replicasets`: its masters and its spool."""

    name: str
    peers: tuple[PeerFacts, ...]
    spool_error: str | None = None
    """Damage of the spool, or why the folder is not a spool."""
    spool_vclock: Mapping[int, int] | None = None
    """The vclock at the spool's end; None if the spool is empty."""
    spool_replicaset_uuid: str | None = None


def check_masters(replicasets: Sequence[SubscribedReplicaset]) -> list[Finding]:
    """Return the findings about the masters and spools."""
    checks = (_check_peers, _check_spool, _check_same_replicaset)
    return [finding for replicaset in replicasets for check in checks for finding in check(replicaset)]


def _check_peers(replicaset: SubscribedReplicaset) -> Iterator[Finding]:
    for peer in replicaset.peers:
        subject = f"peer {peer.address}"
        if peer.fault is not None:
            # The daemon can read from another peer in the meantime.
            has_other = any(other.fault is None for other in replicaset.peers)
            is_temporary = has_other and peer.fault in ("peer_unreachable", "peer_loading")
            yield (warn if is_temporary else fail)(peer.fault, subject, peer.error or "", ADVICE[peer.fault])
            continue
        version = ".".join(map(str, peer.version))
        vclock = ", ".join(f"{i}: {lsn}" for i, lsn in sorted(peer.vclock.items()))
        text = f"Tarantool {version}, instance {peer.instance_uuid}, at {{{vclock}}}; the user may replicate"
        yield ok("peer", subject, text)


def _check_spool(replicaset: SubscribedReplicaset) -> Iterator[Finding]:
    subject = f"spool {replicaset.name}"
    if replicaset.spool_error is not None:
        advice = "name another folder, or move this one away: the daemon begins a new spool"
        yield fail("spool_damaged", subject, replicaset.spool_error, advice)
        return
    if replicaset.spool_vclock is None:
        yield ok("spool", subject, "empty: it will begin with a snapshot, or after the rows in the tables")
        return
    answering = [peer for peer in replicaset.peers if peer.fault is None]
    behind = [
        p
        for p in answering
        if any(lsn > replicaset.spool_vclock.get(i, 0) for i, lsn in p.oldest_log_vclock.items())
    ]
    if answering and len(behind) == len(answering):
        text = "no master has the next logs any more: the spool continues with a new snapshot"
        yield warn("logs_collected", subject, text, "nothing; docs/semantics.md, A generation")
        return
    shown = ", ".join(f"{i}: {lsn}" for i, lsn in sorted(replicaset.spool_vclock.items()))
    yield ok("spool", subject, f"it continues at {{{shown}}}")


def _check_same_replicaset(replicaset: SubscribedReplicaset) -> Iterator[Finding]:
    uuids = {
        peer.replicaset_uuid: peer.address for peer in replicaset.peers if peer.replicaset_uuid is not None
    }
    if len(uuids) > 1:
        replicasets = ", ".join(f"{address} is of {uuid}" for uuid, address in sorted(uuids.items()))
        text = f"its peers are of different replicasets: {replicasets}"
        yield fail("mixed_peers", f"replicaset {replicaset.name}", text, "list peers of one replicaset only")
    elif (
        uuids
        and replicaset.spool_replicaset_uuid is not None
        and replicaset.spool_replicaset_uuid not in uuids
    ):
        text = (
            f"the spool has rows of {replicaset.spool_replicaset_uuid}, its peers are of {next(iter(uuids))}"
        )
        yield fail(
            "mixed_peers", f"replicaset {replicaset.name}", text, "correct `peers`, or name another spool"
        )


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
