"""Checks the arguments of requests: anybody who can write `_requests` can send any text."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.deployment import Types
from config.policies import Policies, Policy
from config.retention import Retention
from config.spaces import Spaces
from schemas.errors import ConfigurationError, UnsupportedError
from schemas.states import RequestKind

KEEP_DAYS = 7
"""The minimum number of days for which files of earlier table versions stay, since readers may still use them."""


class Arguments(BaseModel):
    """The arguments of one kind of request."""

    model_config = ConfigDict(frozen=True)


class BackfillArguments(Arguments):
    """Read a source's files again, all or those of a span of time; without a source, those of all sources."""

    source: str | None = None
    begin: datetime | None = Field(default=None, alias="from")
    end: datetime | None = Field(default=None, alias="to")


class HealArguments(Arguments):
    """Make the tables equal to a source's newest snapshot."""

    source: str


class SnapshotArguments(Arguments):
    """Read some spaces again from a snapshot."""

    spaces: tuple[str, ...] = Field(min_length=1)
    source: str | None = None


class RebuildArguments(Arguments):
    """Choose between the stored versions of a space again, by another policy."""

    space: str
    policy: Policy


class SwapArguments(Arguments):
    """Put the second table of a space in the place of its table; from then on these sections count."""

    space: str
    spaces: Spaces
    types: Types
    policies: Policies


class ConflictsArguments(Arguments):
    """Add conflicts that validation found to `_conflicts`."""

    rows: tuple[Mapping[str, Any], ...]


class MaintenanceArguments(Arguments):
    """Join small files and remove old rows and files."""

    keep_days: int = Field(ge=KEEP_DAYS)
    retention: Retention = Retention()
    sources: tuple[str, ...] = ()
    purge: bool = False
    """Whether no table has a deletion vector afterwards."""


KINDS: Mapping[str, type[Arguments]] = {
    RequestKind.BACKFILL: BackfillArguments,
    RequestKind.HEAL: HealArguments,
    RequestKind.SNAPSHOT: SnapshotArguments,
    RequestKind.REBUILD: RebuildArguments,
    RequestKind.SWAP: SwapArguments,
    RequestKind.CONFLICTS: ConflictsArguments,
    RequestKind.MAINTENANCE: MaintenanceArguments,
}


def parse_arguments(kind: str, arguments: Mapping[str, Any]) -> Arguments:
    """Check the arguments of a request."""
    if kind not in KINDS:
        raise UnsupportedError(f"this version does not know requests of the kind {kind!r}")
    try:
        return KINDS[kind].model_validate({name: one for name, one in arguments.items() if one is not None})
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"the request's argument {path!r} is wrong: {first['msg']}") from None
