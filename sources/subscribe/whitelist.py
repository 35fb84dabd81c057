"""Filters rows by the instance that made them, for a daemon with the option `origins`.

Rows of other instances become NOPs, so that the spool's vclock equals the master's. Rows that register instances,
define spaces, or confirm or roll back transactions are kept: other rows depend on them. The rows of `_cluster` say
which instance a replica id belongs to. A relay filters before it sends (`sources.relay`); rows of a Tarantool are
filtered here. With `feed: own_peer`, a new instance's rows and the row of `_cluster` that registers it come in
different streams, so the rows may come first. Such rows are of no known instance, and become NOPs.
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
    """Decides for each replica id whether its rows are kept.

    `origins` are the uuids of the instances whose rows are kept; if it is empty, all rows are kept.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self.origins = frozenset(origins)
        self.treatments: Ints = np.full(VCLOCK_MAX, SENT, np.int64)
        """int64[32]: `SENT` or `AS_NOP` of `kernels.wire`, by replica id; updated in place."""
        self._owners: dict[int, str] = {}

    def load(self, directory: Path, cluster: Mapping[int, str]) -> None:
        """Read which instance each replica id means at the end of a spool.

        `cluster` is {replica id: instance uuid} as a peer reports it now. It is used for ids that the spool does not
        register, since a spool without a snapshot lacks the older rows of `_cluster`.
        """
        if not self.origins:
            return
        catalog = SpoolCatalog(directory)
        catalog.refresh()
        self._owners = {**cluster, **catalog.last_owners}
        self._update_treatments()

    def apply_registrations(self, rows: bytes) -> None:
        """Apply rows of `_cluster` in a transaction, whose rows are encoded as in a log."""
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
