"""Filters rows by instance for a daemon with `origins`, using the state of `_cluster` at each row.

Rows of other instances become NOPs, so that each vclock continues as the master's does. Rows that register instances,
define spaces or settle transactions are kept: other rows depend on them. A relay filters before it sends
(`sources.relay`); a Tarantool sends all rows, and they are filtered here. With `feed: own_peer`, rows of `_cluster`
and rows of the new instance come in different streams, so an instance's rows may come before the row that registers
it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from schemas.iproto import VCLOCK_MAX, BodyKey, HeaderKey, RequestType, SystemSpace, type_name
from sources.iproto.kernels.wire import AS_NOP, SENT
from sources.relay.catalog import SpoolCatalog
from sources.xlog.format.arrays import Ints
from sources.xlog.stream.origins import registration


class OriginWhitelist:
    """The instances whose rows are kept, and their replica ids so far.

    Parameters
    ----------
    origins : collection of str
        Uuids; empty keeps all rows.

    """

    def __init__(self, origins: Collection[str]) -> None:
        self.origins = frozenset(origins)
        self.treatments: Ints = np.full(VCLOCK_MAX, SENT, np.int64)
        """State of each replica id, `SENT` or `AS_NOP`; updated in place."""
        self._owners: dict[int, str] = {}

    def load(self, directory: Path, cluster: Mapping[int, str]) -> None:
        """Read the owners of ids at the end of a spool; a spool that begins without a snapshot may lack them.

        Parameters
        ----------
        directory : Path
            The spool.
        cluster : mapping
            The current owners of ids, as a peer reports them.

        """
        if not self.origins:
            return
        catalog = SpoolCatalog(directory)
        catalog.refresh()
        self._owners = {**cluster, **catalog.last_owners}
        self._update_treatments()

    def apply_registrations(self, rows: bytes) -> None:
        """Apply the registrations in a transaction's rows, in the form they have in a log."""
        for row in _rows_of_cluster(rows):
            registered = registration(row)
            if registered is not None:
                self._owners[registered.replica_id] = registered.instance_uuid
        self._update_treatments()

    def _update_treatments(self) -> None:
        self.treatments[:] = AS_NOP
        self.treatments[[id_ for id_, uuid in self._owners.items() if uuid in self.origins]] = SENT


def _rows_of_cluster(rows: bytes) -> list[dict[str, Any]]:
    unpacker = msgpack.Unpacker(strict_map_key=False, unicode_errors="surrogateescape", max_buffer_size=0)
    unpacker.feed(rows)
    cluster_rows = []
    while unpacker.tell() < len(rows):
        kind = unpacker.unpack()[HeaderKey.TYPE]
        body = {} if kind == RequestType.NOP else unpacker.unpack()
        if body.get(BodyKey.SPACE_ID) == SystemSpace.CLUSTER:
            tuple_ = body.get(BodyKey.TUPLE)
            packed = None if tuple_ is None else msgpack.packb(tuple_, unicode_errors="surrogateescape")
            is_update = kind == RequestType.UPDATE
            cluster_rows.append(
                {
                    "type": type_name(kind),
                    "position": 0,
                    "tuple": None if is_update else packed,
                    "operations": packed if is_update else None,
                    "key": msgpack.packb(body.get(BodyKey.KEY)),
                    "index_base": body.get(BodyKey.INDEX_BASE),
                }
            )
    return cluster_rows
