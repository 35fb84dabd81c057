"""Which tables a batch touches, and what is known of their rows before they are looked at.

Pure: state, plan and configuration in, a `Survey` out. It decides which way each table's rows take.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.batch.apply import Target
from jobs.batch.changes import Traits
from jobs.batch.columns import target_of
from jobs.batch.layouts import Layout, Move
from jobs.batch.plan import Plan
from jobs.batch.state import State, Writers
from config.deployment import Config
from config.policies import Policy
from schemas.errors import UnsupportedError

log = logging.getLogger(__name__)

CHANGES = ("INSERT", "REPLACE", "UPDATE", "UPSERT", "DELETE")


@dataclass(frozen=True)
class Survey:
    """What a batch has to do with tables of spaces.

    Parameters
    ----------
    numbers : mapping of str to int
        Table to the number that stands for it in the batch's frames.
    targets : mapping of int to Target
        Tables that get rows, columns, or come to be.
    policies : mapping of int to Policy
        Of the targets.
    traits : sequence of Traits
        Of the targets that get rows.
    refused : mapping of str to str
        Tables that cannot be written any more, with the reason.

    """

    numbers: Mapping[str, int]
    targets: Mapping[int, Target]
    policies: Mapping[int, Policy]
    traits: Sequence[Traits]
    refused: Mapping[str, str]

    def writes(self, plan: Plan, layout: Layout) -> bool:
        """Whether rows of a layout go to their table."""
        return layout.table not in self.refused and not _is_refused(plan, layout)

    def stops(self, plan: Plan, move: Move) -> bool:
        """Whether a space cannot go on where it moves to."""
        layout = plan.routes.layouts[move.layout]
        return move.ends.table in self.refused or not self.writes(plan, layout)


def uuid_of(plan: Plan, replicaset_id: int) -> str:
    """Return the uuid of a replicaset."""
    return next(uuid for uuid, one in plan.state.replicasets.items() if one.id == replicaset_id)


def survey(config: Config, state: State, plan: Plan) -> Survey:
    """Look over a batch.

    Parameters
    ----------
    config : Config
    state : State
        Before the batch.
    plan : Plan

    """
    layouts = plan.routes.layouts
    numbers = {name: i for i, name in enumerate(dict.fromkeys(layout.table for layout in layouts))}
    known = frozenset(name for name, writers in state.writers.items() if writers.replicasets)
    targets: dict[int, Target] = {}
    refused: dict[str, str] = {}
    for name in _touched(state, plan):
        try:
            targets[numbers[name]] = target_of(numbers[name], name, plan.state, config, layouts, known)
        except UnsupportedError as error:
            log.error("the table %s is not written any more: %s", name, error)
            refused[name] = str(error)
    policies = {number: config.policies.of(target.layout.space) for number, target in targets.items()}
    traits = [_traits(state, plan, target) for target in targets.values()]
    return Survey(numbers, targets, policies, [t for t in traits if t is not None], refused)


def _is_refused(plan: Plan, layout: Layout) -> bool:
    return layout.space.id in plan.state.replicasets[uuid_of(plan, layout.replicaset_id)].refused


def _touched(state: State, plan: Plan) -> list[str]:
    layouts = plan.routes.layouts
    touched = {layouts[r.layout].table for r in plan.routes.routes if _kinds(plan, layouts[r.layout])}
    touched |= {wipe.table for wipe in plan.routes.wipes}
    touched |= {layouts[move.layout].table for move in plan.routes.moves}
    # A change of definition alone creates the table, or gives it its new columns.
    current = [layouts[i] for i in plan.routes.current.values()]
    return sorted(touched | {layout.table for layout in current if _is_new(state, layout)})


def _is_new(state: State, layout: Layout) -> bool:
    before = next((one for one in state.replicasets.values() if one.id == layout.replicaset_id), None)
    rows = before.spaces.get(layout.space.id) if before is not None else None
    return layout.table not in state.versions or rows is None or rows.decoded() != layout.space


def _kinds(plan: Plan, layout: Layout) -> set[str]:
    counts = plan.summaries.get(uuid_of(plan, layout.replicaset_id))
    if counts is None:
        return set()
    return {kind for _, space_id, kind in counts.counts if space_id == layout.space.id and kind in CHANGES}


def _traits(state: State, plan: Plan, target: Target) -> Traits | None:
    own = [one for one in plan.routes.layouts if one.table == target.name and not _is_refused(plan, one)]
    kinds: set[str] = set().union(*(_kinds(plan, one) for one in own))
    arriving = {
        one.ends.replicaset_id
        for one in plan.routes.moves
        if plan.routes.layouts[one.layout].table == target.name
    }
    kinds |= {"REPLACE"} if arriving else set()
    wiped = any(wipe.table == target.name for wipe in plan.routes.wipes)
    if not kinds and not wiped:
        return None
    before = state.writers.get(target.name, Writers())
    now = {one.replicaset_id for one in own if _kinds(plan, one)} | arriving
    return Traits(
        target.number,
        target.name,
        deletes="DELETE" in kinds or wiped,
        operations=bool(kinds & {"UPDATE", "UPSERT"}),
        contended=len(before.replicasets | now) > 1 or before.unfit,
    )
