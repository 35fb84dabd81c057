"""Writes logs of vshard's storages with the rows that vshard writes (`schemas.vshard` names its sources)."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgpack

from pipeline.batch import MakeDistributed
from schemas.iproto import BodyKey, RequestType, SystemSpace
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment

BUCKET, USERS, ORDERS, SETTINGS = 512, 600, 601, 700
BUCKET_FORMAT = (("id", "unsigned"), ("status", "string"), ("destination", "string"))
FIELDS = (("id", "unsigned"), ("bucket_id", "unsigned"), ("value", "integer"))
CHUNK = 3
"""Rows per transaction of a move; vshard itself has 1000."""


class Storage(Node):
    """A storage: a replicaset of one member. `bucket_by_key` has the bucket of each tuple, by space id and key."""

    def begin(self, buckets: Sequence[int]) -> None:
        """Create vshard's `_bucket` with some active buckets, the sharded spaces, and one that is not sharded."""
        self.bucket_by_key: dict[tuple[int, int], Any] = {}
        self.define(BUCKET, "_bucket", BUCKET_FORMAT)
        for space_id, name in ((USERS, "users"), (ORDERS, "orders")):
            self.define(space_id, name, FIELDS)
            self._insert(
                SystemSpace.INDEX, [space_id, 1, "bucket_id", "tree", {"unique": False}, [[1, "unsigned"]]]
            )
        self.define(SETTINGS, "settings", (("id", "unsigned"), ("value", "integer")))
        for bucket in buckets:
            self.insert(BUCKET, bucket, "active")

    def insert(self, space_id: int, *fields: Any, at: float = 1.0) -> Self:
        self.bucket_by_key[space_id, fields[0]] = fields[1]
        self.row(RequestType.INSERT, space_id, {int(BodyKey.TUPLE): list(fields)}, at)
        return self

    def put(self, space_id: int, *fields: Any, at: float = 1.0) -> Self:
        self.bucket_by_key[space_id, fields[0]] = fields[1]
        return super().put(space_id, *fields, at=at)

    def delete(self, space_id: int, key: Any, at: float = 1.0) -> Self:
        self.bucket_by_key.pop((space_id, key), None)
        return super().delete(space_id, key, at)

    def set_status(self, bucket: int, *fields: Any, at: float) -> None:
        self.put(BUCKET, bucket, *fields, at=at)


class Cluster:
    """Some storages with buckets and tuples; `rows` has the tuples that a client of the cluster must see.

    Args:
        count: Number of replicasets.
        buckets: Number of buckets.
    """

    def __init__(self, folder: Path, seed: int = 1, count: int = 2, buckets: int = 6) -> None:
        self.dice, self.at = random.Random(seed), 1.0
        self.names = [f"{letter}1" for letter in "abcd"[:count]]
        self.uuids = replicasets_of(*self.names)
        self.storages = {name: Storage(folder / "logs", name) for name in self.names}
        self.owner = {bucket: self.names[bucket % count] for bucket in range(1, buckets + 1)}
        self.rows: dict[tuple[int, int], list[int]] = {}
        self.received: set[tuple[str, int]] = set()
        self.collected: set[tuple[str, int]] = set()
        self.garbage: list[tuple[str, int]] = []
        for name, storage in self.storages.items():
            storage.is_apart = True
            storage.begin([bucket for bucket, own in self.owner.items() if own == name])

    def _now(self) -> float:
        self.at += 1
        return self.at

    def put(self, space_id: int, key: int, bucket: int | None = None) -> Self:
        """Write a tuple, as a client does, to the storage that has its bucket."""
        bucket = 1 + key % len(self.owner) if bucket is None else bucket
        self.rows[space_id, key] = [key, bucket, self.dice.randrange(1000)]
        self.storages[self.owner[bucket]].put(space_id, *self.rows[space_id, key], at=self._now())
        return self

    def change(self, space_id: int, key: int) -> None:
        """Change or delete a tuple as a client does."""
        row = self.rows[space_id, key]
        storage = self.storages[self.owner[row[1]]]
        if self.dice.random() < 0.3:
            storage.delete(space_id, key, at=self._now())
            del self.rows[space_id, key]
        else:
            row[2] += 1
            storage.update(space_id, key, ["+", 2, 1], at=self._now())

    def write(self, count: int) -> None:
        """Write, change or delete some tuples, as clients do."""
        for _ in range(count):
            space_id, key = self.dice.choice((USERS, ORDERS)), self.dice.randrange(40)
            (self.change if (space_id, key) in self.rows else self.put)(space_id, key)

    def tuples_of_bucket(self, bucket: int) -> dict[int, list[list[int]]]:
        return {
            space_id: [
                list(row)
                for (space, _), row in sorted(self.rows.items())
                if space == space_id and row[1] == bucket
            ]
            for space_id in (USERS, ORDERS)
        }

    def send(self, bucket: int, target: str, *, fails_after: int | None = None) -> None:
        """Send a bucket as `bucket_send_xc` and `bucket_recv_xc` do; abort the move after `fails_after` tuples."""
        source, destination = self.storages[self.owner[bucket]], self.storages[target]
        source.set_status(bucket, "sending", self.uuids[target], at=self._now())
        self.write_elsewhere(bucket)
        if fails_after == 0:
            self._recover(bucket, target, began=False)
            return
        destination.insert(BUCKET, bucket, "receiving", self.uuids[self.owner[bucket]], at=self._now())
        sent = 0
        for space_id, tuples in self.tuples_of_bucket(bucket).items():
            for fields in tuples:
                destination.insert(space_id, *fields, at=self._now())
                self.received.add((target, destination._lsn))
                sent += 1
                if fails_after is not None and sent >= fails_after:
                    self._recover(bucket, target, began=True)
                    return
                if sent % CHUNK == 0:
                    self.write_elsewhere(bucket)
        if fails_after is not None:
            self._recover(bucket, target, began=True)
            return
        destination.set_status(bucket, "active", at=self._now())
        before, self.owner[bucket] = self.owner[bucket], target
        source.set_status(bucket, "sent", self.uuids[target], at=self._now())
        self.garbage.append((before, bucket))

    def _recover(self, bucket: int, target: str, *, began: bool) -> None:
        """End an aborted move: the bucket becomes active again in the source, and garbage in the target."""
        if began:
            self.garbage.append((target, bucket))
            self.storages[target].update(BUCKET, bucket, ["=", 1, "garbage"], at=self._now())
        self.storages[self.owner[bucket]].update(BUCKET, bucket, ["=", 1, "active"], at=self._now())

    def write_elsewhere(self, bucket: int) -> None:
        """Maybe change a tuple of another bucket; clients cannot write to one that is moving."""
        keys = [(space, key) for (space, key), row in self.rows.items() if row[1] != bucket]
        if keys and self.dice.random() < 0.5:
            self.change(*self.dice.choice(keys))

    def collect(self) -> None:
        """Delete the tuples of buckets that were sent, and the buckets, as `gc_bucket_in_space_xc` does."""
        for name, bucket in self.garbage:
            storage = self.storages[name]
            storage.update(BUCKET, bucket, ["=", 1, "garbage"], at=self._now())
            for space_id, keys in self.keys_of_bucket(name, bucket).items():
                for key in keys:
                    storage.delete(space_id, key, at=self._now())
                    self.collected.add((name, storage._lsn))
                self.write_elsewhere(bucket)
            storage.delete(BUCKET, bucket, at=self._now())
        self.garbage = []

    def keys_of_bucket(self, name: str, bucket: int) -> dict[int, list[int]]:
        """Return the keys in a storage that belong to a bucket, by space id."""
        buckets = self.storages[name].bucket_by_key
        return {
            space: sorted(key for (own, key), at in buckets.items() if own == space and at == bucket)
            for space in (USERS, ORDERS)
        }

    def close(self, *names: str) -> None:
        for name in names or self.names:
            if self.storages[name].is_open:
                self.storages[name].close()

    def deployment(
        self, folder: Path, executor: MakeDistributed | None = None, **settings: Any
    ) -> Deployment:
        return Deployment.of(folder, *self.storages.values(), distributed=executor, **settings)

    def aggregated(self, folder: Path, **settings: Any) -> Deployment:
        """Return a deployment that has read all."""
        return Deployment.aggregated(folder, *self.storages.values(), **settings)


def marked_rows(deployment: Deployment, kind: str) -> set[tuple[int, int]]:
    """Return the rows of `_changelog` with a value of `moved`, as (replicaset id, lsn)."""
    rows = deployment.rows("_changelog", ["replicaset_id", "lsn", "moved"])
    return {(row["replicaset_id"], row["lsn"]) for row in rows if row["moved"] == kind}


def unpacked_tuples(rows: list[dict[str, Any]]) -> list[list[int]]:
    return sorted(msgpack.unpackb(row["_tuple"]) for row in rows)
