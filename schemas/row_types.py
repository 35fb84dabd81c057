"""The table of row types that change a tuple: a new one is an entry here, and its number in `schemas.iproto`."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from schemas.iproto import RequestType


class RowAction(IntEnum):
    """What a row does to the version of its key; the numbers are those of `udfs.versions.kernels.lives`."""

    PUT = 0
    DELETE = 1
    OPERATION = 2


CHANGE_ACTIONS: Mapping[RequestType, RowAction] = MappingProxyType(
    {
        RequestType.INSERT: RowAction.PUT,
        RequestType.REPLACE: RowAction.PUT,
        RequestType.UPDATE: RowAction.OPERATION,
        RequestType.UPSERT: RowAction.OPERATION,
        RequestType.DELETE: RowAction.DELETE,
        RequestType.DELETE_RANGE: RowAction.DELETE,
    }
)
"""The types of rows that change a tuple. A row of any other type changes no table; unless it is known to have no
effect (NOP), its space is held."""

CHANGE_TYPES = tuple(one.name for one in CHANGE_ACTIONS)
"""Their names, in the order of `CHANGE_ACTIONS`."""
