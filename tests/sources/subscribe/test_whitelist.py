"""A whitelist keeps each wanted row: also one that comes before the row of `_cluster` that registers its instance."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ServerBusyError, UnknownInstanceError
from schemas.iproto import BodyKey, HeaderKey, RequestType, SystemSpace
from sources.iproto.row_stream import TransactionChunk
from sources.spool.options import SpoolOptions
from sources.spool.spool import Spool
from sources.subscribe.whitelist import FilteredRows, OriginWhitelist, RowSender
from sources.xlog.format.encode import encode_row
from tests.bodies import encode_body
from tests.sources.relay.spools import write_spool
from tests.sources.relay.test_relay import serving
from tests.sources.relay.test_whitelist import WrittenSpool
from tests.sources.subscribe.following import await_until, following, kept_rows, options

A, B, C, OLD = (f"{letter}0000000-0000-4000-8000-000000000001" for letter in "abcd")
INSERT, REPLACE, DELETE, NOP = (
    RequestType.INSERT,
    RequestType.REPLACE,
    RequestType.DELETE,
    RequestType.NOP,
)
PLAIN = encode_body(space_id=512, tuple_=msgpack.packb([1, "a value that a NOP lacks"]))
DEFINES = encode_body(space_id=SystemSpace.SPACE, tuple_=msgpack.packb([512, 1, "s"]))

Write = tuple[int, int, bytes]
"""Replica id, request type and body of a row that is a transaction of its own."""


def put(origin: int) -> Write:
    return origin, REPLACE, PLAIN


def registers(id_: int, uuid: str, origin: int = 1, kind: RequestType = INSERT) -> Write:
    return origin, kind, encode_body(space_id=SystemSpace.CLUSTER, tuple_=msgpack.packb([id_, uuid]))


def expels(id_: int) -> Write:
    return 1, DELETE, encode_body(space_id=SystemSpace.CLUSTER, key=msgpack.packb([id_]))


def renames(id_: int, uuid: str) -> Write:
    operations = msgpack.packb([["=", 1, uuid]])
    body = encode_body(space_id=SystemSpace.CLUSTER, key=msgpack.packb([id_]), tuple_=operations)
    return 1, RequestType.UPDATE, body


def chunk_of(*writes: Write) -> TransactionChunk:
    lsns: dict[int, int] = {}
    rows = []
    for origin, kind, body in writes:
        lsns[origin] = lsns.get(origin, 0) + 1
        rows.append(encode_row(kind, body, timestamp=1.5, replica_id=origin, lsn=lsns[origin]))
    replicas = np.array([origin for origin, _, _ in writes], np.int64)
    counts = {origin: 0 for origin, _, _ in writes}
    numbers = []
    for origin in replicas.tolist():
        counts[origin] += 1
        numbers.append(counts[origin])
    ends = np.cumsum([len(row) for row in rows]).astype(np.int64)
    times = np.full(len(rows), 1.5)
    buffer = np.frombuffer(b"".join(rows), np.uint8)
    return TransactionChunk(buffer, ends, times, replicas, np.array(numbers, np.int64))


def decoded(chunk: TransactionChunk) -> list[dict[int, Any]]:
    """Return the headers of a chunk's rows, with their bodies under the key -1; check that the ends match."""
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(chunk.rows.tobytes())
    rows, ends = [], []
    while unpacker.tell() < chunk.rows.size:
        header = unpacker.unpack()
        if header[HeaderKey.TYPE] != NOP:
            header[-1] = unpacker.unpack()
        rows.append(header)
        ends.append(unpacker.tell())
    assert set(chunk.ends.tolist()) <= set(ends)
    assert not ends or chunk.ends[-1] == ends[-1]
    return rows


def kept(filtered: FilteredRows) -> list[tuple[int, int]]:
    """Return (replica id, lsn) of the rows that are no NOPs; check that no lsn is missing."""
    rows = decoded(filtered.chunk)
    keys = [(row[HeaderKey.REPLICA_ID], row[HeaderKey.LSN]) for row in rows]
    for id_ in {id_ for id_, _ in keys}:
        lsns = [lsn for other, lsn in keys if other == id_]
        assert lsns == list(range(1, len(lsns) + 1))
    return [key for key, row in zip(keys, rows, strict=True) if row[HeaderKey.TYPE] != NOP]


def whitelist(*origins: str, owners: Mapping[int, str] | None = None) -> OriginWhitelist:
    found = OriginWhitelist(origins)
    found.owners = dict(owners or {1: A, 2: B})
    return found


def leader(cluster: Mapping[int, str] | None = None, *, is_relay: bool = False) -> list[RowSender]:
    return [RowSender(A, None, cluster or {}, is_relay)]


def own_peers(cluster: Mapping[int, str], *ids: int) -> list[RowSender]:
    """Return the senders of some ids, each with its instance's own stream."""
    return [RowSender(cluster[id_], frozenset({id_}), cluster) for id_ in ids]


def test_without_a_whitelist_the_chunk_is_unchanged() -> None:
    chunk = chunk_of(put(1), put(2))
    assert whitelist().filter(chunk, leader()) == FilteredRows(chunk, None)


def test_rows_of_other_instances_become_nops_and_a_registration_holds_from_its_row_on() -> None:
    chunk = chunk_of(put(1), put(2), registers(2, C), put(2), registers(2, B), put(2), put(1))
    keeper = whitelist(C)
    filtered = keeper.filter(chunk, leader())
    assert filtered.error is None
    assert kept(filtered) == [(1, 2), (2, 2), (1, 3)]
    assert keeper.owners == {1: A, 2: B}
    assert kept(keeper.filter(chunk_of(put(2), put(1)), leader())) == []


def test_an_instances_own_stream_needs_no_registration() -> None:
    """By the clocks, the rows of instance 3 are older than the row with which master 1 registered it."""
    cluster = {1: A, 2: B, 3: C}
    chunk = chunk_of(put(3), put(3), put(2), registers(3, C), put(3))
    assert kept(whitelist(C).filter(chunk, own_peers(cluster, 1, 2, 3))) == [(3, 1), (3, 2), (1, 1), (3, 3)]
    early = whitelist(C)
    assert kept(early.filter(chunk_of(put(3), put(2)), own_peers(cluster, 1, 2, 3))) == [(3, 1)]
    assert early.owners == {1: A, 2: B}


def test_an_id_that_passes_to_another_instance_is_of_the_one_whose_stream_it_is() -> None:
    """The spool names the old owner; its registration may even come while the new owner's rows come."""
    cluster = {1: A, 2: C}
    chunk = chunk_of(put(2), registers(2, OLD), put(2), registers(2, C), put(2))
    ours = [(2, 1), (1, 1), (2, 2), (1, 2), (2, 3)]
    assert kept(whitelist(C).filter(chunk, own_peers(cluster, 1, 2))) == ours
    assert kept(whitelist(OLD).filter(chunk, own_peers(cluster, 1, 2))) == [(1, 1), (1, 2)]


def test_in_another_instances_stream_registrations_decide() -> None:
    """A leader's log, and the log of a peer that sends an orphan's rows, have rows of both owners of an id."""
    chunk = chunk_of(put(2), registers(2, C), put(2))
    for senders in (leader({1: A, 2: C}), [RowSender(A, frozenset({1, 2}), {1: A, 2: C})]):
        assert kept(whitelist(B).filter(chunk, senders)) == [(2, 1), (1, 1)]
        assert kept(whitelist(C).filter(chunk, senders)) == [(1, 1), (2, 2)]


def test_a_row_of_an_unknown_instance_is_not_written() -> None:
    chunk = chunk_of(put(1), put(3), put(1))
    keeper = whitelist(A, C)
    filtered = keeper.filter(chunk, leader({1: A, 2: B}))
    assert isinstance(filtered.error, UnknownInstanceError)
    assert "no row of _cluster names the instance of replica id 3" in str(filtered.error)
    assert filtered.error.fields["lsn"] == 1
    assert kept(filtered) == [(1, 1)]
    assert filtered.chunk.last_lsns.tolist() == filtered.chunk.replica_ids.tolist() == [1]
    assert kept(keeper.filter(chunk, leader({1: A, 2: B, 3: C}))) == [(1, 1), (3, 1), (1, 2)]
    assert kept(whitelist(A).filter(chunk, leader({3: C}))) == [(1, 1), (1, 2)]


def test_an_unknown_first_row_leaves_nothing_to_write() -> None:
    filtered = whitelist(A).filter(chunk_of(put(3), put(1)), leader())
    assert filtered.error is not None
    assert filtered.chunk.last_lsns.size == filtered.chunk.rows.size == 0


def test_the_first_registration_decides_about_rows_before_it() -> None:
    """What a peer reports now may be a later owner."""
    chunk = chunk_of(put(3), registers(3, C), put(3), expels(3), registers(3, B), put(3))
    assert kept(whitelist(C).filter(chunk, leader({3: B}))) == [(3, 1), (1, 1), (3, 2), (1, 2), (1, 3)]
    assert kept(whitelist(B).filter(chunk, leader({3: B}))) == [(1, 1), (1, 2), (1, 3), (3, 3)]


@pytest.mark.parametrize(
    "changes", [[expels(3), registers(3, C)], [renames(3, C)], [registers(3, C, kind=REPLACE)]]
)
def test_a_row_that_takes_an_id_from_an_instance_does_not_name_it(changes: list[Write]) -> None:
    chunk = chunk_of(put(1), put(3), *changes, put(3))
    filtered = whitelist(A, C).filter(chunk, leader({3: C}))
    assert filtered.error is not None
    assert kept(filtered) == [(1, 1)]


def test_a_reported_instance_keeps_its_id_after_it_was_expelled() -> None:
    keeper = whitelist(C)
    assert kept(keeper.filter(chunk_of(put(3)), leader({3: C}))) == [(3, 1)]
    assert kept(keeper.filter(chunk_of(put(3), expels(3), put(3)), leader())) == [(3, 1), (1, 1), (3, 2)]


def test_rows_that_pass_any_whitelist_need_no_instance() -> None:
    nop = (3, NOP, b"")
    chunk = chunk_of((3, INSERT, DEFINES), nop, registers(4, C, origin=3), put(4))
    filtered = whitelist(C).filter(chunk, leader())
    assert filtered.error is None
    assert kept(filtered) == [(3, 1), (3, 3), (4, 1)]


def test_a_relay_has_decided_before() -> None:
    chunk = chunk_of(put(1), put(3))
    assert kept(whitelist(C).filter(chunk, leader(is_relay=True))) == [(1, 1), (3, 1)]


def test_owners_are_read_from_the_spool_until_it_is_written_by_others(tmp_path: Path) -> None:
    write_spool(tmp_path, members=([1, A], [2, B]))
    keeper = OriginWhitelist({A})
    keeper.load(tmp_path)
    assert keeper.owners == {1: A, 2: B}
    keeper.filter(chunk_of(registers(2, C)), leader())
    keeper.load(tmp_path)
    assert keeper.owners == {1: A, 2: C}
    keeper.invalidate()
    keeper.load(tmp_path)
    assert keeper.owners == {1: A, 2: B}


def test_a_daemon_waits_for_a_relay_that_does_not_know_an_instance(tmp_path: Path) -> None:
    """The relay refuses the rows until its spool names their instance; no new snapshot is fetched."""
    (tmp_path / "a").mkdir()
    spool_writer = WrittenSpool(tmp_path / "a")
    spool_writer.begin({1: A, 2: B}, {1: 10})
    spool_writer.put(1)
    spool_writer.put(3)
    spool_writer.spool.close()
    socket = tmp_path / "a.sock"
    how = options(tmp_path / "to_a", f"unix/:{socket}", origins=frozenset({C}))
    with serving(tmp_path / "a", socket), following(how) as daemon:
        (link,) = daemon.links
        await_until(lambda: isinstance(link.error, ServerBusyError), "the refusal")
        assert "no row of _cluster names the instance of replica id 3" in str(link.error)
        assert daemon.spool.vclock == {1: 11}
        with Spool(tmp_path / "a", SpoolOptions(compress=False)) as spool_writer.spool:
            spool_writer.register(3, C)
        await_until(lambda: daemon.spool.vclock == {1: 12, 3: 1}, "each row")
        assert daemon.progress.fetched_snapshots == 1
    assert kept_rows(tmp_path / "to_a", 3) == [1]


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["plain", "empty", "defines", "nop"]), st.integers(0, 300)),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(1, 3), min_size=6, max_size=6),
)
@settings(deadline=None)
def test_a_nop_has_the_header_of_its_row(shapes: list[list[tuple[str, int]]], origins: list[int]) -> None:
    """Transactions of several rows stay whole; a NOP may be longer than a row with an empty body."""
    lsns, rows, ends, expected = dict.fromkeys(range(1, 4), 0), b"", [], []
    for shape, origin in zip(shapes, origins, strict=False):
        tsn = lsns[origin] + 1
        for number, (what, size) in enumerate(shape, 1):
            lsns[origin] += 1
            kind = {"defines": INSERT, "nop": NOP}.get(what, REPLACE)
            plain = encode_body(space_id=512, tuple_=msgpack.packb(["x" * size]))
            body = {"defines": DEFINES, "nop": b"", "empty": b"\x80", "plain": plain}[what]
            last = number == len(shape)
            rows += encode_row(
                kind,
                body,
                timestamp=1.5,
                replica_id=origin,
                lsn=lsns[origin],
                tsn=tsn,
                is_commit=last,
            )
            is_nop = kind == NOP or (origin == 2 and what != "defines")
            expected.append((NOP if is_nop else kind, origin, lsns[origin], tsn, last and len(shape) > 1))
        ends.append(len(rows))
    chunk = TransactionChunk(
        np.frombuffer(rows, np.uint8),
        np.array(ends, np.int64),
        np.full(len(ends), 1.5),
        np.array(origins[: len(ends)], np.int64),
        np.ones(len(ends), np.int64),
    )
    filtered = whitelist(A, C, owners={1: A, 2: B, 3: C}).filter(chunk, leader())
    assert filtered.error is None
    found = [
        (
            row[HeaderKey.TYPE],
            row[HeaderKey.REPLICA_ID],
            row[HeaderKey.LSN],
            row[HeaderKey.LSN] - row.get(HeaderKey.TSN, 0),
            bool(row.get(HeaderKey.FLAGS, 0) & 1),
        )
        for row in decoded(filtered.chunk)
    ]
    assert found == expected
    assert all(row[HeaderKey.TIMESTAMP] == 1.5 for row in decoded(filtered.chunk))
    assert all(BodyKey.SPACE_ID in row[-1] or row[-1] == {} for row in decoded(filtered.chunk) if -1 in row)
    assert filtered.chunk.ends.size == len(ends)
