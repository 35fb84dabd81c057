"""Checks the masters that the daemon subscribes to: whether each answers, and lets the user replicate. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from observe.doctor.findings import Finding, fail, ok, warn

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
    """Uuid of the replicaset whose rows are in the spool."""


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
