"""Compares each table with the version of it that an epoch names: lost, taken back, or changed by somebody else.

`status`, `doctor`, `plan`, `validate` and each start ask the same function, so none of them is silent where another one
speaks. It opens a table only if it is not at the version that the epoch names. Writes nothing.

A few of the aggregator's own tables are named by no epoch (`NEVER_ROLLED_BACK`). Of these, the commits of others since
the aggregator's last change are read. Not here: what one commit does (`warehouse.delta.foreign_commits`), and rolling
back (`warehouse.system_tables.epochs`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from textwrap import shorten
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from schemas.errors import AggregatorError, ForeignChangeError, UnsupportedError, WarehouseError
from schemas.names import EXACT_PREFIX, exact_table, is_space_table
from warehouse.delta.foreign_changes import are_equal, foreign_commits, is_of_a_writer
from warehouse.delta.foreign_commits import ForeignCommit
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.log_files import ends_at
from warehouse.delta.newest_epoch import EPOCHS, last_epoch
from warehouse.delta.read import newest, rows_of
from warehouse.delta.table_files import check_features
from warehouse.delta.table_log import Action, read_commit

VCLOCK, CLUSTER, APPLIER_MAP = "_vclock", "_cluster", "_applier_map"

KEPT_TABLES = frozenset({CLUSTER, APPLIER_MAP})
"""Tables that no epoch names, and whose rows nothing else has."""

LOST_ADVICE = (
    "put the folder back from a copy of the same time (docs/corrections.md, Backups); without one, begin again with an "
    "empty warehouse and a new checkpoint"
)
REBUILD_ADVICE = (
    "its rows wait in _changelog, and the other tables go on; `aggregator rebuild SPACE` takes it back, and reads what "
    "it lacks (docs/foreign-changes.md)"
)
RESTORE_ADVICE = "take the table back: RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}"


class TableState(Enum):
    """How a table compares with the version that an epoch names."""

    EQUAL = "as the epoch names it"
    UNFINISHED = "with commits of a batch that is in no epoch yet"
    RESTORED = "taken back by the aggregator to what the epoch names, at a later version"
    LOST = "not there"
    OLDER = "older than the epoch"
    CHANGED = "changed by somebody else"
    UNUSABLE = "with a feature that the aggregator does not write"

    @property
    def is_difference(self) -> bool:
        """Whether a start refuses the table."""
        return self not in (TableState.EQUAL, TableState.UNFINISHED, TableState.RESTORED)


@dataclass(frozen=True)
class TableDifference:
    """How one table differs from the version that the newest epoch names."""

    table: str
    state: TableState
    text: str
    """What was found, in one sentence."""
    advice: str

    @property
    def stops_job(self) -> bool:
        """Whether no batch is possible with it; a table of a space is set aside, and the others continue."""
        return not is_space_table(self.table) and not self.table.startswith(EXACT_PREFIX)

    def error(self) -> AggregatorError:
        """Return the error by which a start refuses the table."""
        kinds = {TableState.CHANGED: ForeignChangeError, TableState.UNUSABLE: UnsupportedError}
        return kinds.get(self.state, WarehouseError)(self.text, table=self.table, advice=self.advice)


def _unreadable(table: str, error: Exception) -> TableDifference:
    text = f"the log of the table cannot be read: {shorten(str(error), SHOWN_ERROR)}"
    if isinstance(error, WarehouseError):
        text = error.reason
    return TableDifference(table, TableState.LOST, text, _lost_advice(table))


def tables_of_spaces(location: WarehouseLocation, differences: Iterable[TableDifference]) -> dict[str, str]:
    """Return the differing tables of spaces, by the name that readers see, with what was found.

    Such a table is set aside: it stays as it is, and the others continue. Differences of other tables are left out.
    """
    texts = {one.table: one.text for one in differences}
    named = filter(is_space_table, {*texts, *location.tables()}) if texts else ()
    found = {table: texts.get(table) or texts.get(exact_table(table)) for table in named}
    return {table: text for table, text in found.items() if text is not None}


AS_NAMED = TableDifference("", TableState.EQUAL, "", "")

SHOWN_ERROR = 120
"""How many characters of an error of Delta are shown: what follows are all fields of its structures."""


def table_differences(
    location: WarehouseLocation, row: Mapping[str, Any] | None
) -> Iterator[TableDifference]:
    """Yield the tables that differ from what an epoch names."""
    names = set(location.tables())
    if row is None:
        yield from _epochs_without_rows(location, names)
        return
    versions = {str(table): int(version) for table, version in _pairs(row["versions"])}
    for table in sorted((versions.keys() | KEPT_TABLES) - names):
        text = f"the table is not there any more, and epoch {row['epoch']} has it"
        yield TableDifference(table, TableState.LOST, text, _lost_advice(table))
    for table, version in sorted(versions.items()):
        if table in names:
            found = compare_table(location, table, version)
            if found.state.is_difference:
                yield found
    yield from _differences_of_unnamed_tables(location, names, row)


def _pairs(versions: Any) -> Any:
    return versions.items() if isinstance(versions, Mapping) else versions


def compare_table(
    location: WarehouseLocation, table: str, version: int, opened: DeltaTable | None = None
) -> TableDifference:
    """Return how a table compares with a version of it, which an epoch names."""
    if opened is None:
        if ends_at(location.fs, location.at(table), location.uri(table), version):
            return AS_NAMED
        try:
            opened = location.open(table)
        except (WarehouseError, DeltaError) as error:
            return _unreadable(table, error)
    if opened is None:
        return TableDifference(table, TableState.LOST, "the table is not there any more", _lost_advice(table))
    now = int(opened.version())
    if now < version:
        text = f"the table is at version {now}, the newest epoch has version {version}: its folder is an older one"
        return TableDifference(table, TableState.OLDER, text, _lost_advice(table))
    if now == version:
        return AS_NAMED
    return _compare_commits(location, table, version, opened)


def _compare_commits(
    location: WarehouseLocation, table: str, version: int, opened: DeltaTable
) -> TableDifference:
    now, advice = int(opened.version()), restore_advice(location, table, version)
    harmful = next(
        (one for one in foreign_commits(location, table, version, now) if not one.effect.is_harmless), None
    )
    if harmful is not None:
        if are_equal(location, table, version, now):
            return AS_NAMED
        return TableDifference(table, TableState.CHANGED, foreign_change_text(harmful), advice)
    try:
        check_features(opened, table)
    except UnsupportedError as error:
        return TableDifference(table, TableState.UNUSABLE, error.reason, advice)
    own = [number for number in range(version + 1, now + 1) if _is_own(location, table, number)]
    if not own:
        return AS_NAMED
    if _restores(read_commit(location, table, now), version):
        return TableDifference(table, TableState.RESTORED, "an unfinished batch was rolled back", "")
    return TableDifference(table, TableState.UNFINISHED, "an unfinished batch has written to it", "")


def _is_own(location: WarehouseLocation, table: str, version: int) -> bool:
    actions = read_commit(location, table, version)
    return actions is not None and is_of_a_writer(actions)


def _restores(actions: list[Action] | None, version: int) -> bool:
    if actions is None or not is_of_a_writer(actions):
        return False
    info: Mapping[str, Any] = next((one["commitInfo"] for one in actions if one.get("commitInfo")), {})
    restored = (info.get("operationParameters") or {}).get("version")
    return info.get("operation") == "RESTORE" and str(restored) == str(version)


def foreign_change_text(commit: ForeignCommit) -> str:
    """Return what a message says about a commit of somebody else that changes a table."""
    return f"somebody else has changed the table: {commit}"


def _lost_advice(table: str) -> str:
    return REBUILD_ADVICE if is_space_table(table) or table.startswith(EXACT_PREFIX) else LOST_ADVICE


def restore_advice(location: WarehouseLocation, table: str, version: int) -> str:
    """Return how to take a table back to a version."""
    if is_space_table(table) or table.startswith(EXACT_PREFIX):
        return REBUILD_ADVICE
    return RESTORE_ADVICE.format(path=location.uri(table), version=version)


def _epochs_without_rows(location: WarehouseLocation, names: set[str]) -> Iterator[TableDifference]:
    changed = change_since_own(location, EPOCHS) if EPOCHS in names else None
    if changed is not None:
        yield changed
        return
    epoch = _newest_vclock_epoch(location, names)
    if epoch > 0:
        text = f"the table is lost: it has no epoch, but {VCLOCK} has rows of epoch {epoch}"
        yield TableDifference(EPOCHS, TableState.LOST, text, LOST_ADVICE)


def _newest_vclock_epoch(location: WarehouseLocation, names: set[str]) -> int:
    opened = None
    with suppress(WarehouseError):  # its log lacks a commit, which is named by itself
        opened = location.open(VCLOCK) if VCLOCK in names else None
    row = None if opened is None else newest(opened, "epoch")
    return -1 if row is None or row["epoch"] is None else int(row["epoch"])


def _differences_of_unnamed_tables(
    location: WarehouseLocation, names: set[str], row: Mapping[str, Any]
) -> Iterator[TableDifference]:
    found = (change_since_own(location, table) for table in sorted(names & {EPOCHS, *KEPT_TABLES}))
    changed = {one.table: one for one in found if one is not None}
    yield from changed.values()
    # A batch that is not finished may have written rows of the next epoch, and a stream may have gone on meanwhile.
    epoch, reached = int(row["epoch"]), _newest_vclock_epoch(location, names)
    if EPOCHS not in changed and reached > epoch + 1 and reached > last_epoch(location) + 1:
        text = f"its newest epoch is {epoch}, but {VCLOCK} has rows of epoch {reached}: its folder is an older one"
        yield TableDifference(EPOCHS, TableState.OLDER, text, LOST_ADVICE)
    opened = location.open(CLUSTER) if CLUSTER in names - changed.keys() else None
    if opened is not None:
        known = {one["replicaset_uuid"] for one in rows_of(opened, ["replicaset_uuid"])}
        missing = sorted(json.loads(row["vclock"] or "{}").keys() - known)
        if missing:
            text = f"the table lacks the replicasets {', '.join(missing)}, which epoch {epoch} has"
            yield TableDifference(CLUSTER, TableState.OLDER, text, LOST_ADVICE)


def change_since_own(location: WarehouseLocation, table: str) -> TableDifference | None:
    """Return how others have changed a table that no epoch names since the aggregator's last change; None if not."""
    try:
        opened = location.open(table)
    except WarehouseError as error:
        return _unreadable(table, error)
    if opened is None:
        return None
    now = int(opened.version())
    base = now
    while base > 0 and not _changes_rows(read_commit(location, table, base)):
        base -= 1
    harmful = next(
        (one for one in foreign_commits(location, table, base, now) if not one.effect.is_harmless), None
    )
    if harmful is None or are_equal(location, table, base, now):
        return None
    advice = restore_advice(location, table, base)
    return TableDifference(table, TableState.CHANGED, foreign_change_text(harmful), advice)


def _changes_rows(actions: list[Action] | None) -> bool:
    """Return whether a commit is the aggregator's and changes rows, or is not in the log any more."""
    if actions is None:
        return True
    return is_of_a_writer(actions) and any(one.get("add") or one.get("remove") for one in actions)
