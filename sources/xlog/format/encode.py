"""Encodes rows as bytes, with keys in Tarantool's order: the inverse of `kernels.row`.

Pure. Source: `xrow_header_encode` in Tarantool's `src/box/xrow.c`.
"""

import msgpack

from schemas.iproto import HeaderKey, RequestType, RowFlag


def encode_row(
    kind: RequestType | int,
    body: bytes = b"",
    *,
    timestamp: float,
    replica_id: int | None = None,
    group_id: int | None = None,
    lsn: int | None = None,
    tsn: int | None = None,
    is_commit: bool = True,
    flags: int = 0,
) -> bytes:
    """Return one row: header and body.

    Args:
        body: The body's MessagePack map; empty for NOP.
        replica_id, group_id, lsn: Left out of the header if None, as Tarantool leaves out zeros.
        tsn: The lsn of the transaction's first row; by default the row's own.
        flags: Bits of `RowFlag` besides COMMIT.
    """
    header: dict[int, int | float] = {HeaderKey.TYPE: int(kind)}
    for key, value in (
        (HeaderKey.REPLICA_ID, replica_id),
        (HeaderKey.GROUP_ID, group_id),
        (HeaderKey.LSN, lsn),
    ):
        if value is not None:
            header[key] = value
    header[HeaderKey.TIMESTAMP] = float(timestamp)
    first = lsn if tsn is None else tsn
    if lsn is not None and first is not None and not (first == lsn and is_commit):
        header[HeaderKey.TSN] = (lsn - first) % 2**64
        flags |= RowFlag.COMMIT if is_commit else 0
    if flags:
        header[HeaderKey.FLAGS] = int(flags)
    return _packed_map(header) + body


def _pack(value: int | float) -> bytes:
    return bytes(msgpack.packb(value))


def _packed_map(values: dict[int, int | float]) -> bytes:
    return bytes([0x80 | len(values)]) + b"".join(
        bytes([key]) + _pack(value) for key, value in values.items()
    )
