"""Compares the standby copies of a deployment with its warehouse."""

from dataclasses import dataclass

from config.deployment import Config
from udfs.rid.comparison import Verdict
from udfs.rid.value import EMPTY_ULID, Rid
from warehouse.copies.generations import ComparedRid, compare_warehouses, read_compared_rid
from warehouse.copies.standbys import STANDBY_FAILURES
from warehouse.delta.location import WarehouseLocation, location_of


@dataclass(frozen=True)
class StandbyOverview:
    """The current state of a standby copy."""

    root: str
    is_up_to_date: bool
    """Whether the copy has all epochs, except perhaps the one that is being copied."""
    state: str
    """The comparison with the primary, in words."""


def standby_overview(primary: ComparedRid, standby: WarehouseLocation) -> StandbyOverview:
    """Return the state of a standby copy, compared with the RID and the epoch of the primary."""
    try:
        standby_rid = read_compared_rid(standby)
    except STANDBY_FAILURES as error:
        return StandbyOverview(standby.root, False, f"cannot be read: {error}")
    if standby_rid.node.rid == Rid():
        return StandbyOverview(standby.root, False, "is empty")
    found = compare_warehouses(primary, standby_rid)
    behind = (primary.epoch or 0) - (standby_rid.epoch or 0)
    is_copy = found.verdict is Verdict.SAME or found.target == "b"
    if standby_rid.node.rid.incoming != EMPTY_ULID:
        return StandbyOverview(
            standby.root, False, f"a copy into it has not ended, at epoch {standby_rid.epoch}"
        )
    if is_copy and standby_rid.node.rid.primary:
        return StandbyOverview(standby.root, False, "is a primary, too")
    if is_copy:
        return StandbyOverview(
            standby.root, behind <= 1, f"{behind} epochs behind" if behind else "has all epochs"
        )
    return StandbyOverview(
        standby.root, False, "is newer" if found.target == "a" else found.verdict.replace("_", " ")
    )


def standbys_overview(config: Config) -> tuple[StandbyOverview, ...]:
    """Return the states of all standby copies of a deployment, compared with its warehouse."""
    if not config.standby.peers:
        return ()
    primary = read_compared_rid(location_of(config.warehouse, config.database))
    return tuple(
        standby_overview(primary, location_of(standby, config.database)) for standby in config.standby.peers
    )
