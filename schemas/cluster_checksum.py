"""The checksum of a replicaset's instances: where two sides have the same one, neither sends its ids to the other.

Document 000: crc32 over the local_id:uuid pairs. It leaves the bytes open; here they are those that docs/formats.md
lays down, so that a daemon written in another language gets the same sum. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

import crcmod

_CRC32 = crcmod.mkCrcFun(0x104C11DB7, initCrc=0, rev=True, xorOut=0xFFFFFFFF)
"""CRC-32 of ISO 3309, as zlib, gzip and PNG have it; not the CRC-32C of Tarantool's log."""


def pairs_of(instances: Mapping[int, str]) -> bytes:
    """Return the bytes that are summed: `<local_id>:<uuid>` and a line feed for each, by rising local_id.

    Parameters
    ----------
    instances : mapping of int to str
        Instance uuids by replica id.

    Returns
    -------
    bytes
        ASCII: the id in decimal without leading zeros, the uuid in lower case.

    """
    return b"".join(
        f"{local_id}:{instances[local_id].lower()}\n".encode("ascii") for local_id in sorted(instances)
    )


def checksum(instances: Mapping[int, str]) -> int:
    """Return the crc32 of a replicaset's instances; 0 for none.

    Parameters
    ----------
    instances : mapping of int to str
        Instance uuids by replica id: those that are registered now.

    """
    return int(_CRC32(pairs_of(instances)))
