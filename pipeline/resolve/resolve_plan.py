"""What a task needs to know of a batch to resolve its versions: policies, formats, uuids. Picklable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from config.policies import Policy
from pipeline.plan.plan import BatchPlan
from pipeline.plan.tables import TablePlan
from pipeline.state import State
from udfs.before_replace.policies import POLICIES
from udfs.before_replace.policy import Formats, PolicyKind, PolicyOptions


@dataclass(frozen=True)
class TablePolicy:
    """How the versions of one table are resolved.

    Parameters
    ----------
    name : str
        The table's.
    kind : PolicyKind
    options : PolicyOptions
    formats : Formats
    by_replicaset : int32[ids]
        Replicaset id to the index of its format, -1 where it has none.
    takes_deleted : bool
        Whether deleted versions take part (`deletes: all`).

    """

    name: str
    kind: str
    options: PolicyOptions
    formats: Formats
    by_replicaset: NDArray[np.int32]
    takes_deleted: bool

    @property
    def policy(self) -> PolicyKind:
        """The policy."""
        return POLICIES[self.kind]

    def format_of(self, replicasets: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the format of each version, by its replicaset; a policy's tuple has minus its last writer's id."""
        numbers = np.abs(replicasets)
        known = np.append(self.by_replicaset, np.int32(-1))
        found: NDArray[np.int32] = known[np.minimum(numbers, len(self.by_replicaset))]
        return found


@dataclass(frozen=True)
class ResolvePlan:
    """A batch as the resolution needs it.

    Parameters
    ----------
    epoch : int
    decided_at : datetime
    tables : tuple of TablePolicy
        By the number of a table.
    is_contended : tuple of bool
        By table.
    replicasets, instances : sequence of str
        Uuids by replicaset id and by global id, "" for a number that is not given.

    """

    epoch: int
    decided_at: datetime
    tables: tuple[TablePolicy, ...]
    is_contended: tuple[bool, ...]
    replicasets: Sequence[str]
    instances: Sequence[str]


def options_of(policy: Policy, priority: Sequence[str]) -> PolicyOptions:
    """Return the configuration of a policy as before_replace takes it."""
    return PolicyOptions(
        policy.sequence, tuple(priority), policy.column, policy.fields, policy.columns, policy.function
    )


def table_policy(table: TablePlan, policy: Policy, priority: Sequence[str]) -> TablePolicy:
    """Return how the versions of a table are resolved by a policy."""
    by_replicaset = np.full(max(table.formats, default=0) + 1, -1, np.int32)
    for replicaset_id, index in table.formats.items():
        by_replicaset[replicaset_id] = index
    return TablePolicy(
        table.name,
        policy.policy,
        options_of(policy, priority),
        Formats(table.layout.space, table.spaces),
        by_replicaset,
        policy.deletes == "all",
    )


def resolve_plan(plan: BatchPlan) -> ResolvePlan:
    """Return a batch as the resolution needs it."""
    tables = tuple(table_policy(one, one.policy, one.priority) for one in plan.tables.values())
    contended = tuple(one.is_contended for one in plan.tables.values())
    return plan_of(plan.after, plan.epoch, tables, contended)


def plan_of(
    state: State, epoch: int, tables: tuple[TablePolicy, ...], contended: tuple[bool, ...]
) -> ResolvePlan:
    """Return the plan of a resolution, with the uuids of a state."""
    replicasets = {one.id: uuid for uuid, one in state.replicasets.items()}
    instances = {number: uuid for uuid, number in state.global_ids.items()}
    return ResolvePlan(
        epoch, datetime.now(UTC), tables, contended, _by_number(replicasets), _by_number(instances)
    )


def _by_number(uuids: Mapping[int, str]) -> list[str]:
    return [uuids.get(number, "") for number in range(max(uuids, default=0) + 1)]
