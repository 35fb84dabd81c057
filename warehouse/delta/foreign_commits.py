"""What a commit of somebody else does to a table: whether its rows are still those that the last epoch names. Pure.

Users compact, describe, restore, alter and delete in the tables. A commit that moves rows to other files, or describes
the table, does no harm: the writer looks again and continues. After a commit that changes rows, the table differs from
what the logs of the replicasets give, and a commit that changes columns makes it another table: both are refused by
name. Whether rows change is what the commit itself says (`dataChange`, Delta protocol, "Add File and Remove
File").
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from warehouse.delta.table_log import Action

RESTORE = "RESTORE"

_VALUE_KEYS = frozenset(
    {"CURRENT_DEFAULT", "EXISTS_DEFAULT", "delta.generationExpression", "delta.identity.start"}
)
"""Keys of a column's metadata by which rows get a value that is not written."""


class Effect(Enum):
    """What a commit changes, from the least to the most."""

    NOTHING = "nothing that the aggregator reads"
    FILES = "where rows are"
    METADATA = "properties or a comment"
    OWN_COLUMN = "columns, by adding one of their own"
    PROTOCOL = "the table's protocol"
    ROWS = "rows"
    RESTORED = "rows, by taking the table back to an earlier version"
    COLUMNS = "columns"

    @property
    def is_harmless(self) -> bool:
        """Whether the table still has the rows of the last epoch."""
        return self not in (Effect.ROWS, Effect.RESTORED, Effect.COLUMNS)


@dataclass(frozen=True)
class ForeignCommit:
    """A commit that is not of the aggregator."""

    version: int
    effect: Effect
    operation: str
    """As the commit names itself, such as `OPTIMIZE`."""
    committed_at: datetime | None
    user: str | None
    """The user or the program, if the commit names one."""

    def __str__(self) -> str:
        when = "" if self.committed_at is None else f" at {self.committed_at:%Y-%m-%d %H:%M:%S} UTC"
        who = "" if not self.user else f" by {self.user}"
        return f"version {self.version}, {self.operation}{when}{who}, which changes {self.effect.value}"


def foreign_commit(
    version: int, actions: Sequence[Action], columns: Mapping[str, Any] | None
) -> ForeignCommit:
    """Return what somebody's commit does.

    Args:
        columns: The type of each column before the commit, as in the schema of Delta's log; None if it is not known
            any more: then columns are taken to be as before.
    """
    info: Mapping[str, Any] = next((one["commitInfo"] for one in actions if one.get("commitInfo")), {})
    operation = str(info.get("operation") or "an unnamed operation")
    moment = info.get("timestamp")
    return ForeignCommit(
        version,
        _effect(actions, operation, columns),
        operation,
        datetime.fromtimestamp(moment / 1000, UTC) if isinstance(moment, int) else None,
        info.get("userName") or info.get("userId") or info.get("engineInfo") or info.get("clientVersion"),
    )


def columns_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of each column in an action `metaData`."""
    return {one["name"]: one["type"] for one in json.loads(metadata["schemaString"])["fields"]}


def _effect(actions: Iterable[Action], operation: str, columns: Mapping[str, Any] | None) -> Effect:
    found = Effect.NOTHING
    order = list(Effect)
    for action in actions:
        effect = _effect_of_action(action, operation, columns)
        if order.index(effect) > order.index(found):
            found = effect
    return found


def _effect_of_action(action: Action, operation: str, columns: Mapping[str, Any] | None) -> Effect:
    file = action.get("add") or action.get("remove")
    if file:
        # A RESTORE changes rows, whatever it says of its files.
        if operation == RESTORE:
            return Effect.RESTORED
        return Effect.ROWS if file.get("dataChange", True) else Effect.FILES
    if metadata := action.get("metaData"):
        return Effect.METADATA if columns is None else _effect_of_metadata(metadata, columns)
    return Effect.PROTOCOL if action.get("protocol") else Effect.NOTHING


def _effect_of_metadata(metadata: Mapping[str, Any], columns: Mapping[str, Any]) -> Effect:
    """Return the effect of new metadata on a table with some columns; a further nullable column is NULL in all rows."""
    found = columns_of(metadata)
    if found == columns:
        return Effect.METADATA
    fields = {one["name"]: one for one in json.loads(metadata["schemaString"])["fields"]}
    new = [fields[name] for name in found.keys() - columns.keys()]
    has_values = any(not one["nullable"] or _VALUE_KEYS & (one.get("metadata") or {}).keys() for one in new)
    is_further = {name: found.get(name) for name in columns} == columns and not has_values
    return Effect.OWN_COLUMN if is_further else Effect.COLUMNS
