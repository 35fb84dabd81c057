"""Uuids by the numbers that stand for them in frames: what the order of versions falls back on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from udfs.literals import array_literal


@dataclass(frozen=True)
class Identities:
    """Uuids by number.

    Parameters
    ----------
    replicasets : sequence of str
        Uuid by replicaset id; position 0 is the aggregator's.
    instances : sequence of str
        Uuid by global id.

    """

    replicasets: Sequence[str]
    instances: Sequence[str]

    def order(self) -> list[Column]:
        """Return what decides between versions of one sequence."""
        return [
            F.get(array_literal(self.replicasets, "string"), F.col("replicaset_id")),
            F.get(array_literal(self.instances, "string"), F.col("global_id").cast("int")),
            F.col("lsn"),
        ]


def identities_of(replicasets: Mapping[int, str], instances: Mapping[int, str]) -> Identities:
    """Return the uuids of replicasets and instances; a number that nobody has stands for no uuid."""
    return Identities(
        [replicasets.get(i, "") for i in range(max(replicasets, default=0) + 1)],
        [instances.get(i, "") for i in range(max(instances, default=0) + 1)],
    )
