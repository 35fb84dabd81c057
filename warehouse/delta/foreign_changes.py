"""Refuses tables that somebody else has changed: their rows are not those that the logs of the replicasets give."""

import logging
from collections.abc import Iterator
from typing import Any

from schemas.errors import ForeignChangeError, WarehouseError
from warehouse.delta.commit_actions import USER_METADATA
from warehouse.delta.fence import APP_ID
from warehouse.delta.foreign_commits import ForeignCommit, columns_of, foreign_commit
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_log import Action, read_commit, read_log

log = logging.getLogger(__name__)

ADVICE = "`aggregator status` says how it is mended; version {version} is the last one without the change"


def foreign_commits(
    location: WarehouseLocation, table: str, before: int, after: int
) -> Iterator[ForeignCommit]:
    """Yield the commits of others after one version of a table, up to another one.

    A commit whose file is gone is left out: it was removed with the log's old entries.
    """
    columns = None
    for version in range(before + 1, after + 1):
        actions = read_commit(location, table, version)
        if actions is None or is_of_a_writer(actions):
            continue
        if columns is None and any(action.get("metaData") for action in actions):
            columns = _columns_at(location, table, before)
        yield foreign_commit(version, actions, columns)


def _columns_at(location: WarehouseLocation, table: str, version: int) -> dict[str, Any] | None:
    try:
        return columns_of(read_log(location, table, version).metadata)
    except WarehouseError:
        return None


def is_of_a_writer(actions: list[Action]) -> bool:
    """Return whether a commit is of the aggregator: it has a writer's mark (`warehouse.delta.fence`), or says so."""
    return any(
        (action.get("txn") or {}).get("appId") == APP_ID
        or (action.get("commitInfo") or {}).get("userMetadata") == USER_METADATA
        for action in actions
    )


def refuse_foreign_changes(location: WarehouseLocation, table: str, before: int, after: int) -> None:
    """Raise ForeignChangeError if somebody else has changed rows or columns of a table between two versions.

    Changes that were undone since, such as by a RESTORE, do not count.
    """
    harmful = None
    for commit in foreign_commits(location, table, before, after):
        log.info("%s: %s; the writer looks again", table, commit)
        if harmful is None and not commit.effect.is_harmless:
            harmful = commit
    if harmful is not None and not are_equal(location, table, before, after):
        raise foreign_change_error(table, harmful, harmful.version - 1)


def foreign_change_error(table: str, commit: ForeignCommit, version: int) -> ForeignChangeError:
    """Return the error that somebody else has changed a table; `version` is the one to take it back to."""
    return ForeignChangeError(
        f"somebody else has changed the table: {commit}",
        table=table,
        advice=ADVICE.format(version=version),
    )


def are_equal(location: WarehouseLocation, table: str, before: int, after: int) -> bool:
    """Return whether two versions of a table have the same files, deletion vectors and columns.

    A further column in the later one does not count. If the log does not have one of them, they count as different.
    """
    try:
        one, other = (read_log(location, table, version) for version in (before, after))
    except WarehouseError:
        return False
    return (
        one.adds.keys() == other.adds.keys()
        and one.vectors() == other.vectors()
        and columns_of(one.metadata).items() <= columns_of(other.metadata).items()
    )
