"""The table of row types that change a tuple: a new one is an entry here, and its number in `schemas.iproto`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType

from schemas.iproto import RequestType


class RowAction(IntEnum):
    """What a row does to the version of its key; the numbers are those of `udfs.versions.kernels.lives`."""

    PUT = 0
    DELETE = 1
    OPERATION = 2


class KeyPlace(Enum):
    """Where a row has its key."""

    TUPLE = "in the column `tuple`"
    KEY = "in the column `key`"
    RANGE = "nowhere: the body has the bounds of a range of keys"


@dataclass(frozen=True)
class ChangeType:
    """A type of rows that change a tuple."""

    action: RowAction
    key_place: KeyPlace = KeyPlace.TUPLE


CHANGES: Mapping[RequestType, ChangeType] = MappingProxyType(
    {
        RequestType.INSERT: ChangeType(RowAction.PUT),
        RequestType.REPLACE: ChangeType(RowAction.PUT),
        RequestType.UPDATE: ChangeType(RowAction.OPERATION, KeyPlace.KEY),
        RequestType.UPSERT: ChangeType(RowAction.OPERATION),
        RequestType.DELETE: ChangeType(RowAction.DELETE, KeyPlace.KEY),
        RequestType.DELETE_RANGE: ChangeType(RowAction.DELETE, KeyPlace.RANGE),
    }
)
"""The types of rows that change a tuple. A row of any other type changes no table; unless it is known to have no
effect (NOP), its space is held."""

CHANGE_TYPES = tuple(one.name for one in CHANGES)
"""Their names, in the order of `CHANGES`."""

ONE_KEY_TYPES = tuple(kind.name for kind, one in CHANGES.items() if one.key_place is not KeyPlace.RANGE)
"""The names of those that change one key."""

PUT_TYPES = tuple(kind.name for kind, one in CHANGES.items() if one.action is RowAction.PUT)
"""The names of those whose tuple is the key's new one."""

TYPES_WITH_KEY = tuple(kind.name for kind, one in CHANGES.items() if one.key_place is KeyPlace.KEY)
"""The names of those with the column `key`."""


def _type_for_one_key(kind: RequestType, change: ChangeType) -> str:
    if change.action is RowAction.DELETE:
        return "DELETE"
    if change.action is RowAction.PUT:
        return kind.name if kind is RequestType.INSERT else "REPLACE"
    return "UPDATE" if change.key_place is KeyPlace.KEY else "UPSERT"


TYPE_FOR_ONE_KEY = {kind.name: _type_for_one_key(kind, one) for kind, one in CHANGES.items()}
"""For each of `CHANGE_TYPES`: the type as which `udfs.versions.key_state` applies it to one key. A DELETE_RANGE is a
DELETE of each key in its range."""
