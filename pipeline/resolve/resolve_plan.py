"""What a task needs to know of a batch to resolve its versions: policies, formats, uuids. Picklable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from config.policies import Policy
from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.spaces.tables import TablePlan
from pipeline.state import State
from udfs.before_replace.policies import POLICIES
from udfs.before_replace.policy import Formats, PolicyKind, PolicyOptions


@dataclass(frozen=True)
class TablePolicy:
    """How the versions of one table are resolved."""

    name: str
    policy_name: str
    options: PolicyOptions
    formats: Formats
    format_indices: NDArray[np.int32]
    """For each replicaset id, the index in `formats` of its format, -1 if it has none (int32[ids])."""
    compares_deleted: bool
    """Whether deleted versions take part (`deletes: all`)."""

    @property
    def policy(self) -> PolicyKind:
        """The implementation of the policy."""
        return POLICIES[self.policy_name]

    def format_indices_of(self, replicasets: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the index of each version's format, by its replicaset id (negative for a tuple that a policy made)."""
        numbers = np.abs(replicasets)
        known = np.append(self.format_indices, np.int32(-1))
        found: NDArray[np.int32] = known[np.minimum(numbers, len(self.format_indices))]
        return found


@dataclass(frozen=True)
class ResolvePlan:
    """What a task needs to know of a batch to resolve its versions."""

    epoch: int
    decided_at: datetime
    tables: tuple[TablePolicy, ...]
    """By the number of a table (its index in the batch's plan)."""
    is_contended: tuple[bool, ...]
    """By the number of a table, as in `pipeline.plan.spaces.tables.TablePlan`."""
    replicaset_uuids: Sequence[str]
    instance_uuids: Sequence[str]
    """The uuid of each replicaset by its id, and of each instance by its global id; "" for an unused id."""


def policy_options(policy: Policy, priority: Sequence[str]) -> PolicyOptions:
    """Convert the configuration of a policy for `udfs.before_replace`; `priority` lists replicaset uuids."""
    return PolicyOptions(
        policy.sequence, tuple(priority), policy.column, policy.fields, policy.columns, policy.function
    )


def table_policy(table: TablePlan, policy: Policy, priority: Sequence[str]) -> TablePolicy:
    """Return how the versions of a table are resolved by a policy."""
    format_indices = np.full(max(table.format_indices, default=0) + 1, -1, np.int32)
    for replicaset_id, index in table.format_indices.items():
        format_indices[replicaset_id] = index
    return TablePolicy(
        table.name,
        policy.policy,
        policy_options(policy, priority),
        Formats(table.layout.space, table.definitions),
        format_indices,
        policy.deletes == "all",
    )


def resolve_plan(plan: BatchPlan) -> ResolvePlan:
    """Return what the tasks of a batch need to resolve its versions."""
    tables = tuple(table_policy(one, one.policy, one.priority) for one in plan.tables.values())
    contended = tuple(one.is_contended for one in plan.tables.values())
    return build_resolve_plan(plan.after, plan.epoch, tables, contended)


def build_resolve_plan(
    state: State, epoch: int, tables: tuple[TablePolicy, ...], contended: tuple[bool, ...]
) -> ResolvePlan:
    """Return a `ResolvePlan` with the uuids of a state."""
    replicasets = {one.id: uuid for uuid, one in state.replicasets.items()}
    return ResolvePlan(
        epoch,
        datetime.now(UTC),
        tables,
        contended,
        _uuid_list(replicasets),
        _uuid_list(state.instance_uuids),
    )


def _uuid_list(uuids: Mapping[int, str]) -> list[str]:
    return [uuids.get(number, "") for number in range(max(uuids, default=0) + 1)]
