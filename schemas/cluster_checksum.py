"""Computes the checksum of a replicaset's instances, by which a subscriber and the relay find whether their ids differ.

The subscription daemon (`sources.subscribe`) sends the checksum of the (replica id, uuid) pairs that it knows to the
relay (`jobs/relay.py`). If the relay's checksum is equal, neither sends its pairs. The project's document on server ids
asks for a crc32 over these pairs; docs/formats.md defines its bytes, so that a daemon in another language computes the
same sum.
"""

from collections.abc import Mapping

import crcmod

_CRC32 = crcmod.mkCrcFun(0x104C11DB7, initCrc=0, rev=True, xorOut=0xFFFFFFFF)
"""CRC-32 of ISO 3309, as zlib, gzip and PNG have it; not the CRC-32C of Tarantool's log."""


def checksum_input(instances: Mapping[int, str]) -> bytes:
    """Return the bytes to sum: `<replica_id>:<uuid>` and a line feed each, in ASCII, by ascending replica id."""
    return b"".join(
        f"{replica_id}:{instances[replica_id].lower()}\n".encode("ascii") for replica_id in sorted(instances)
    )


def checksum(instances: Mapping[int, str]) -> int:
    """Return the crc32 of a replicaset's instances; 0 for none."""
    return int(_CRC32(checksum_input(instances)))
