"""Whose rows a daemon with `origins` keeps: by instance, as `_cluster` says it at each row.

Of the other instances NOPs are kept in the place of their rows, so that each vclock goes on as the master's does, and
the rows that register instances, define spaces or settle transactions: others wait for them. A relay does the same
before it sends (`sources.relay`); a Tarantool sends all rows, which are looked at here. With `feed: own_peer` a row of
`_cluster` comes in one stream and the rows of its instance in another, so that rows may come before it.
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


class Whitelist:
    """The instances whose rows are kept, and the replica ids that are theirs now.

    Parameters
    ----------
    origins : collection of str
        Uuids; empty keeps all rows.

    """

    def __init__(self, origins: Collection[str]) -> None:
        self.origins = frozenset(origins)
        self.wanted: Ints = np.full(VCLOCK_MAX, SENT, np.int64)
        """By replica id `SENT` or `AS_NOP`; changes in place."""
        self._holders: dict[int, str] = {}

    def load(self, directory: Path, cluster: Mapping[int, str]) -> None:
        """Take whose the ids are where a spool ends; a spool that begins without a snapshot may not say it.

        Parameters
        ----------
        directory : Path
            The spool.
        cluster : mapping
            Whose the ids are now, as a peer says.

        """
        if not self.origins:
            return
        catalog = SpoolCatalog(directory)
        catalog.refresh()
        self._holders = {**cluster, **catalog.holders}
        self._apply()

    def registered(self, rows: bytes) -> None:
        """Take what a transaction's rows, as they lie in a log, register."""
        for row in _rows_of_cluster(rows):
            found = registration(row)
            if found is not None:
                self._holders[found.replica_id] = found.instance_uuid
        self._apply()

    def _apply(self) -> None:
        self.wanted[:] = AS_NOP
        self.wanted[[id_ for id_, uuid in self._holders.items() if uuid in self.origins]] = SENT


def _rows_of_cluster(rows: bytes) -> list[dict[str, Any]]:
    unpacker = msgpack.Unpacker(strict_map_key=False, unicode_errors="surrogateescape", max_buffer_size=0)
    unpacker.feed(rows)
    found = []
    while unpacker.tell() < len(rows):
        kind = unpacker.unpack()[HeaderKey.TYPE]
        body = {} if kind == RequestType.NOP else unpacker.unpack()
        if body.get(BodyKey.SPACE_ID) == SystemSpace.CLUSTER:
            tuple_ = body.get(BodyKey.TUPLE)
            packed = None if tuple_ is None else msgpack.packb(tuple_, unicode_errors="surrogateescape")
            is_update = kind == RequestType.UPDATE
            found.append(
                {
                    "type": type_name(kind),
                    "position": 0,
                    "tuple": None if is_update else packed,
                    "operations": packed if is_update else None,
                    "key": msgpack.packb(body.get(BodyKey.KEY)),
                    "index_base": body.get(BodyKey.INDEX_BASE),
                }
            )
    return found
