"""Builds the bodies of an anonymous replica's requests, and parses the bodies of the answers.

No request can register a replica: there is no JOIN and no REGISTER. Differences between server versions are described
at each function. Source: `xrow_encode_*` and `xrow_decode_*` in Tarantool's `src/box/xrow.c`, and observation of 2.6.0.
`packet` adds lengths and headers; `sources.subscribe` decides which vclock to send.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from schemas.errors import ProtocolError
from schemas.iproto import VCLOCK_MAX, BallotKey, MessageKey, SystemSpace
from sources.iproto.packet import Packet

Version = tuple[int, int, int]

ANONYMOUS_SINCE: Version = (2, 4, 1)
"""First version with ID_FILTER; anonymous replicas themselves came in 2.3.1."""

VCLOCK_ACKS_SINCE: Version = (2, 10, 0)
"""Before this version an anonymous replica's acknowledgements count for `replication_synchro_quorum`, so they must
stay empty."""

KEEPS_LOGS_SINCE: Version = (3, 3, 0)
"""From this version on a server retains its logs for an anonymous replica, by its uuid (`_gc_consumers`)."""

BALLOT_IS_RO_SINCE: Version = (2, 7, 3)

REPLICA_IDS = range(1, VCLOCK_MAX)

_LSN_END = 1 << 63
_SHOWN_CHARACTERS = 500
"""Maximum number of characters of a peer's text that our messages show."""

EXCLUDING_LSN = 1 << 60
"""An lsn in a start vclock that excludes all rows of a replica id, however many the server has."""


def version_number(version: Version) -> int:
    """Return a version as the protocol's number: one byte each for major, minor and patch."""
    return version[0] << 16 | version[1] << 8 | version[2]


@dataclass(frozen=True)
class Ballot:
    """A server's state as of its answer to VOTE, a request that needs no authentication."""

    vclock: Mapping[int, int]
    """The server's vclock, without replica id 0."""
    gc_vclock: Mapping[int, int]
    """The vclock at which the server's oldest log begins."""
    is_loading: bool
    """Whether the server still starts, and cannot send rows to a replica yet."""


def vclock_to_send(vclock: Mapping[int, int]) -> dict[int, int]:
    """Return a vclock as it is sent: sorted, without replica id 0 and without zeros.

    Raises:
        ProtocolError: An id is 32 or more, for which servers before 3.3 write beyond the end of an array; or an lsn has
            more than 63 bits.
    """
    if any(not 0 <= id_ < VCLOCK_MAX or not 0 <= lsn < 1 << 63 for id_, lsn in vclock.items()):
        raise ProtocolError(f"not a vclock: {dict(vclock)}")
    return {id_: vclock[id_] for id_ in sorted(vclock) if id_ != 0 and vclock[id_] > 0}


def auth_body(user: str, scramble: bytes) -> dict[int, Any]:
    """Return the body of AUTH; the bytes of the scramble become a string, because servers expect one."""
    text = scramble.decode("utf-8", errors="surrogateescape")
    return {MessageKey.USER_NAME: user, MessageKey.TUPLE: ["chap-sha1", text]}


def select_body(space: SystemSpace, key: Sequence[Any] = ()) -> dict[int, Any]:
    """Return the body of a SELECT from a system space by its primary key; an empty key selects all tuples."""
    return {
        MessageKey.SPACE_ID: int(space),
        MessageKey.INDEX_ID: 0,
        MessageKey.LIMIT: 0xFFFFFFFF,
        MessageKey.OFFSET: 0,
        MessageKey.ITERATOR: 0 if key else 2,  # EQ, ALL
        MessageKey.KEY: list(key),
    }


def fetch_snapshot_body(instance_uuid: str, version: Version) -> dict[int, Any]:
    """Return the body of FETCH_SNAPSHOT for a server of this version.

    From 3.3 on the body has the subscriber's uuid, which registers the daemon as a consumer of logs: until SUBSCRIBE
    the server retains the logs after the snapshot. For older servers the body is an empty map: 2.6 ignores it, and from
    2.11.4 on it is obligatory. If the body had a SERVER_VERSION, the server would send other kinds of rows. Source:
    `box_process_fetch_snapshot` in `src/box/box.cc` of 3.3.
    """
    return {MessageKey.INSTANCE_UUID: instance_uuid} if version >= KEEPS_LOGS_SINCE else {}


@dataclass(frozen=True)
class Subscription:
    """The parameters of a SUBSCRIBE request."""

    replicaset_uuid: str
    instance_uuid: str
    """Uuid of the server's replicaset, and of the subscriber. That of the subscriber is neither nil nor that of the
    server."""
    vclock: Mapping[int, int]
    """The server sends the rows above this vclock. The vclock must also have an lsn for each excluded id:
    `EXCLUDING_LSN`, or any lsn above the one in the server's gc vclock. Otherwise the server may refuse, because it no
    longer has the logs with rows of these ids."""
    version: Version
    """The server's version, from its greeting; it is sent back as the subscriber's version. It must be at least 1.7.4,
    because a server takes the start vclock of an older subscriber as an acknowledgement."""
    sent_ids: frozenset[int] | None = None
    """Replica ids whose rows are sent; None: all."""
    cluster_crc32: int | None = None
    """For a relay only: the checksum of {replica id: instance uuid} as the subscriber knows it. If the checksum of the
    relay's map differs, the relay sends its map."""
    origins: frozenset[str] | None = None
    """For a relay only: uuids of the instances whose rows are sent. Rows of others become NOPs, except rows that
    register instances, define spaces, or confirm or roll back transactions."""

    def body(self) -> dict[int, Any]:
        """Return the body of the request; raise ProtocolError if the subscriber's uuid is nil."""
        if UUID(self.instance_uuid).int == 0:
            raise ProtocolError("a subscriber needs a uuid: the nil uuid can crash a server")
        body: dict[int, Any] = {
            MessageKey.REPLICASET_UUID: self.replicaset_uuid,
            MessageKey.INSTANCE_UUID: self.instance_uuid,
            MessageKey.VCLOCK: vclock_to_send(self.vclock),
            MessageKey.SERVER_VERSION: version_number(self.version),
            MessageKey.REPLICA_ANON: True,
        }
        if self.cluster_crc32 is not None:
            body[MessageKey.CLUSTER_CRC32] = self.cluster_crc32
        if self.origins:
            body[MessageKey.ORIGINS] = sorted(self.origins)
        if self.sent_ids is not None:
            body[MessageKey.ID_FILTER] = excluded_ids(self.sent_ids)
        return body


def excluded_ids(ids: Iterable[int]) -> list[int]:
    """Return all replica ids of 1..31 except these: the value of ID_FILTER, whose rows a server does not send."""
    included = frozenset(ids)
    if not included <= frozenset(REPLICA_IDS):
        raise ProtocolError(f"replica ids are 1..{VCLOCK_MAX - 1}, not {sorted(included)}")
    return [id_ for id_ in REPLICA_IDS if id_ not in included]


def ack_body(vclock: Mapping[int, int], version: Version, *, to_relay: bool = False) -> dict[int, Any]:
    """Return the body of an acknowledgement.

    Its vclock is empty for a server that would count the acknowledgement for its quorum (`VCLOCK_ACKS_SINCE`); a relay
    never does (`to_relay`).
    """
    has_vclock = to_relay or version >= VCLOCK_ACKS_SINCE
    return {MessageKey.VCLOCK: vclock_to_send(vclock) if has_vclock else {}}


def answer_vclock(packet: Packet) -> dict[int, int]:
    """Return the vclock of an answer, without replica id 0."""
    return parse_vclock_map(packet.body.get(MessageKey.VCLOCK))


def parse_vclock_map(value: object) -> dict[int, int]:
    """Check a decoded vclock and return it without replica id 0.

    Raises:
        ProtocolError: The value is not a vclock, or its signature (the sum of its lsns) has more than 63 bits: the
            limit of Tarantool and of a file's name.
    """
    if not isinstance(value, Mapping) or not all(
        type(id_) is int and type(lsn) is int and 0 <= id_ < VCLOCK_MAX and 0 <= lsn < _LSN_END
        for id_, lsn in value.items()
    ):
        raise ProtocolError(f"not a vclock: {printable(value)}")
    if sum(value.values()) >= _LSN_END:
        raise ProtocolError(f"not a vclock, its sum is too large: {printable(value)}")
    return {id_: lsn for id_, lsn in value.items() if id_ != 0}


def parse_uuid(value: object) -> str:
    """Return a uuid in canonical form; raise ProtocolError for any other value.

    A uuid is written into headers of files, where a line break in it would begin a new line.
    """
    try:
        if isinstance(value, str):
            return str(UUID(value))
    except ValueError:
        pass
    raise ProtocolError(f"not a uuid: {printable(value)}")


def printable(value: object) -> str:
    """Return a value from a peer as one line of printable characters and bounded length, for messages and logs."""
    text = value if isinstance(value, str) else repr(value)
    line = "".join(
        sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text[:_SHOWN_CHARACTERS]
    )
    return line if len(text) <= _SHOWN_CHARACTERS else f"{line}…"


def parse_replica_id(value: object) -> int:
    """Return a decoded replica id of 1..31; raise ProtocolError for any other value."""
    if type(value) is not int or value not in REPLICA_IDS:
        raise ProtocolError(f"not a replica id: {printable(value)}")
    return value


def parse_ballot(packet: Packet, version: Version) -> Ballot:
    """Return the ballot in a server's answer to VOTE; raise ProtocolError if there is none.

    `version` is the server's version. Before 2.7.3 it says that it is read-only (`is_ro`) under the key that means
    loading: a replica, or a master without its peers, says so for ever (`box_process_vote` in `src/box/box.cc` of 2.6).
    So only a server without any row counts as loading there; one that loads rows refuses the next request.
    """
    ballot = packet.body.get(MessageKey.BALLOT)
    if not isinstance(ballot, Mapping):
        raise ProtocolError("the answer to VOTE has no ballot")
    vclock = parse_vclock_map(ballot.get(BallotKey.VCLOCK))
    if version >= BALLOT_IS_RO_SINCE:
        is_loading = ballot.get(BallotKey.IS_BOOTED) is False
    else:
        is_loading = bool(ballot.get(BallotKey.IS_LOADING)) and not vclock
    return Ballot(vclock, parse_vclock_map(ballot.get(BallotKey.GC_VCLOCK)), is_loading)


def parse_tuples(packet: Packet) -> list[Any]:
    """Return the tuples in an answer to SELECT; raise ProtocolError if it has no data."""
    data = packet.body.get(MessageKey.DATA)
    if not isinstance(data, list):
        raise ProtocolError("the answer to SELECT has no data")
    return data


def parse_cluster_info(packets: Sequence[Packet]) -> dict[int, str] | None:
    """Return the {replica id: instance uuid} that a relay sent; None if it sent none: the checksums are equal."""
    if not packets:
        return None
    length = packets[0].body.get(MessageKey.CLUSTER_LENGTH)
    if length == 0:
        return None
    cluster = parse_cluster(
        [p.body.get(MessageKey.REPLICA_ID), p.body.get(MessageKey.INSTANCE_UUID)] for p in packets
    )
    if len(cluster) != length:
        raise ProtocolError(f"{len(cluster)} instances where {printable(length)} were announced")
    return cluster


def parse_cluster(tuples: Iterable[Any]) -> dict[int, str]:
    """Return {replica id: instance uuid} from tuples of `_cluster`; raise ProtocolError if an id comes twice."""
    cluster: dict[int, str] = {}
    for row in tuples:
        if not isinstance(row, list) or len(row) < 2:
            raise ProtocolError(f"not a tuple of _cluster: {printable(row)}")
        id_ = parse_replica_id(row[0])
        if id_ in cluster:
            raise ProtocolError(f"replica id {id_} comes twice")
        cluster[id_] = parse_uuid(row[1])
    return cluster


def parse_gc_consumer(tuples: Sequence[Any]) -> dict[int, int] | None:
    """Return the vclock after which the server retains logs, from a tuple of `_gc_consumers`; None without a tuple."""
    return parse_vclock_map(_second_field(tuples, "_gc_consumers")) if tuples else None


def parse_replicaset_uuid(tuples: Sequence[Any]) -> str | None:
    """Return the replicaset's uuid in a tuple of `_schema`; None without a tuple."""
    return parse_uuid(_second_field(tuples, "_schema")) if tuples else None


def _second_field(tuples: Sequence[Any], space: str) -> object:
    if not isinstance(tuples[0], list) or len(tuples[0]) < 2:
        raise ProtocolError(f"not a tuple of {space}: {printable(tuples[0])}")
    return tuples[0][1]
