"""Reads whole `.xlog` and `.snap` files into rows, and rows into transactions.

Strict and simple: a file is read to its EOF marker or, where it has none, to its last whole block.
Checksums are not looked at.

Source: `src/box/xlog.c` (text header, fixed block header of 19 bytes, marker), `src/box/xrow.c` (keys of a
row).
"""

import functools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from tests.oracle import mp

FIXED_HEADER_SIZE = 19
ROW_MAGIC = bytes.fromhex("d5ba0bab")
ZROW_MAGIC = bytes.fromhex("d5ba0bba")
EOF_MAGIC = bytes.fromhex("d510aded")

INSERT, REPLACE, UPDATE, DELETE, UPSERT, NOP = 2, 3, 4, 5, 9, 12
DELETE_RANGE = 18
PROMOTE, DEMOTE, CONFIRM, ROLLBACK = 31, 32, 40, 41
COMMIT_FLAG, WAIT_SYNC_FLAG, WAIT_ACK_FLAG = 1, 2, 4


@dataclass(frozen=True)
class Row:
    type: int
    replica_id: int
    group_id: int
    lsn: int
    timestamp: float
    """Seconds since the epoch."""
    tsn: int | None
    """lsn of the transaction's first row; None for a transaction of one row."""
    flags: int
    """As in the header; 0 where the header lacks them."""
    body: dict[int, bytes]
    """Each value's raw MessagePack by body key."""

    def number(self, key: int, default: int = 0) -> int:
        return int(mp.decode(self.body[key])) if key in self.body else default


@dataclass(frozen=True)
class Transaction:
    """Rows that stand or fall together."""

    rows: tuple[Row, ...]

    @property
    def replica_id(self) -> int:
        """The origin: that of the rows which are not local (0 where all are)."""
        return max(row.replica_id for row in self.rows)

    @property
    def last_lsn(self) -> int:
        """The lsn of the last row which is not local; 0 where all are."""
        return max((row.lsn for row in self.rows if row.group_id == 0), default=0)


def read_log(path: Path) -> Iterator[Row]:
    for block in blocks(path):
        yield from _rows(block)


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the blocks of one file, each one some rows one after another."""
    data = path.read_bytes()
    position = data.index(b"\n\n") + 2
    while position < len(data):
        magic = data[position : position + 4]
        if magic == EOF_MAGIC:
            return
        if position + FIXED_HEADER_SIZE > len(data) or not magic.strip(b"\0"):
            return
        if magic not in (ROW_MAGIC, ZROW_MAGIC):
            raise ValueError(f"{path}: {magic.hex()} at {position} starts no block")
        size = int(mp.decode(data[position + 4 : position + FIXED_HEADER_SIZE]))
        start = position + FIXED_HEADER_SIZE
        if start + size > len(data):
            return
        block = data[start : start + size]
        yield decompress(block) if magic == ZROW_MAGIC else block
        position = start + size


def meta(path: Path) -> dict[str, str]:
    """Return the keys of a file's text header."""
    lines = path.read_bytes().split(b"\n\n", 1)[0].decode().splitlines()
    return {key: value for key, _, value in (line.partition(": ") for line in lines[2:])}


def vclock(path: Path) -> dict[int, int]:
    """Return a file's `VClock`; component 0 counts local rows."""
    pairs = (one.split(":") for one in meta(path)["VClock"].strip("{}").split(",") if one.strip())
    return {int(component): int(lsn) for component, lsn in pairs}


def version(path: Path) -> tuple[int, int]:
    """Return the major and minor version of the server that wrote a file."""
    major, minor, *_ = meta(path)["Version"].split(".")
    return int(major), int(minor)


def decompress(block: bytes) -> bytes:
    """Return a zstd frame's content; Tarantool's frames do not tell its size."""
    made: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(block)
    return made


def _rows(block: bytes) -> Iterator[Row]:
    pieces = mp.split_objects(block)
    index = 0
    while index < len(pieces):
        header = mp.decode(pieces[index])
        has_body = header.get(0) != NOP and index + 1 < len(pieces)
        body = mp.split_map(pieces[index + 1]) if has_body else []
        index += 2 if has_body else 1
        lsn = header.get(3, 0)
        yield Row(
            type=header.get(0, 0),
            replica_id=header.get(2, 0),
            group_id=header.get(7, 0),
            lsn=lsn,
            timestamp=header.get(4, 0.0),
            tsn=lsn - header[8] if 8 in header else None,
            flags=header.get(9, 0),
            body={mp.decode(key): value for key, value in body},
        )


def transactions(rows: Iterable[Row]) -> Iterator[Transaction]:
    """Group rows: a transaction's rows stand side by side, its last one has the commit flag."""
    open_rows: list[Row] = []
    for row in rows:
        open_rows.append(row)
        if row.tsn is None or row.flags & COMMIT_FLAG:
            yield Transaction(tuple(open_rows))
            open_rows = []


_Seen = tuple[int, int, int]
"""Of a transaction: its position, the lsn of its last row, the flags of its rows."""


def rolled_back(log: Iterable[Transaction]) -> set[int]:
    """Return the positions of the transactions that a ROLLBACK or PROMOTE took back.

    A ROLLBACK names the owner and the lsn of the first transaction's *last* row: all later ones of the
    owner stood behind it in the queue (`src/box/txn_limbo.c`). A PROMOTE or DEMOTE keeps what is up to its
    lsn and takes back what waits beyond; which ones wait, the rows say themselves there (flag WAIT_SYNC,
    since 2.8.1). Asynchronous ones in the queue (without WAIT_ACK) are committed with the one before them.
    """
    lost: set[int] = set()
    seen: dict[int, list[_Seen]] = {}
    for position, transaction in enumerate(log):
        row = transaction.rows[0]
        if row.type in (CONFIRM, ROLLBACK, PROMOTE, DEMOTE):
            owner, lsn = row.number(2), row.number(3)
            waiting = seen.pop(owner, [])
            if row.type == ROLLBACK:
                lost |= {at for at, last, _ in waiting if last >= lsn}
                seen[owner] = [one for one in waiting if one[1] < lsn]
            elif row.type == CONFIRM:
                seen[owner] = _unconfirmed(waiting, lsn)
            else:
                lost |= {at for at, last, flags in waiting if flags & WAIT_SYNC_FLAG and last > lsn}
        elif transaction.last_lsn:
            flags = functools.reduce(operator.or_, (one.flags for one in transaction.rows))
            seen.setdefault(transaction.replica_id, []).append((position, transaction.last_lsn, flags))
    return lost


def _unconfirmed(waiting: list[_Seen], lsn: int) -> list[_Seen]:
    """Return what waits after a CONFIRM: all from the first one on that is beyond its lsn and not asynchronous."""
    for number, (_, last, flags) in enumerate(waiting):
        if last > lsn and (not flags & WAIT_SYNC_FLAG or flags & WAIT_ACK_FLAG):
            return waiting[number:]
    return []
