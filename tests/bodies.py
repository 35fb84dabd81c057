"""Encodes bodies of rows. Source: `xrow_encode_dml` in Tarantool's `src/box/xrow.c`."""

import msgpack

from schemas.iproto import BodyKey


def encode_body(
    *,
    space_id: int | None = None,
    index_base: int | None = None,
    key: bytes | None = None,
    tuple_: bytes | None = None,
    operations: bytes | None = None,
    is_update: bool = False,
) -> bytes:
    """Return the body of an INSERT, REPLACE, UPDATE, DELETE or UPSERT.

    Args:
        space_id, index_base: Left out of the body if None.
        key, tuple_, operations: MessagePack arrays, copied as they are.
        is_update: Whether to write the operations under the key TUPLE, as an UPDATE has them.
    """
    operations_key = BodyKey.TUPLE if is_update else BodyKey.OPS
    pairs = [
        (BodyKey.SPACE_ID, None if space_id is None else msgpack.packb(space_id)),
        (BodyKey.INDEX_BASE, None if index_base is None else msgpack.packb(index_base)),
        (BodyKey.KEY, key),
        (operations_key, operations) if is_update else (BodyKey.TUPLE, tuple_),
        (BodyKey.TUPLE, None) if is_update else (operations_key, operations),
    ]
    present = [bytes([name]) + value for name, value in pairs if value is not None]
    return bytes([0x80 | len(present)]) + b"".join(present)
