"""The log of one Delta table: the live files of a version with their actions, and the commits between two versions.

delta-rs reads the log too, but shows neither the descriptors of deletion vectors nor the text of statistics, and both
are needed to write a file's action again. So this module reads the log by itself: the newest checkpoint at or before a
version, then each commit after it (Delta protocol, "Action Reconciliation"). A file is named by its path; a version has
at most one action of a path that counts.

Not here: writing commits (`warehouse.delta.log_commit`), and checkpoints, which delta-rs writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import WarehouseError
from warehouse.delta.deletion_vectors import Descriptor
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.log_files import LOG_FOLDER, checkpoints_of, commit_path, commits_of, names_in_log

Action = Mapping[str, Any]
"""One action of a commit: an object with one key, the kind of the action."""

_MAPS = frozenset({"partitionValues", "tags", "configuration", "options"})
"""The parts of actions that are maps; Arrow returns a map as a list of pairs."""

_CHECKPOINT_COLUMNS = ("txn", "add", "metaData", "protocol", "sidecar")


@dataclass(frozen=True)
class LogState:
    """What the log says about one version of a table."""

    version: int
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The action `metaData`: the schema and the properties of the table."""
    adds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The action `add` of each live file, by its path."""
    transactions: Mapping[str, int] = field(default_factory=dict)
    """The newest version of each application's transactions."""

    @property
    def features(self) -> frozenset[str]:
        """The table features that readers or writers must support."""
        kinds = ("readerFeatures", "writerFeatures")
        return frozenset(name for kind in kinds for name in self.protocol.get(kind) or ())

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table."""
        found: Mapping[str, str] = self.metadata.get("configuration") or {}
        return found

    def vector_of(self, path: str) -> Descriptor | None:
        """Return the descriptor of the deletion vector of a live file; None if it has none."""
        return Descriptor.of_action(self.adds[path])

    def vectors(self) -> dict[str, Descriptor]:
        """Return the deletion vectors of all live files that have one, by path."""
        found = {path: Descriptor.of_action(add) for path, add in self.adds.items()}
        return {path: vector for path, vector in found.items() if vector is not None}

    def after(self, version: int, actions: Iterable[Action]) -> LogState:
        """Return the state of the next version, whose commit has these actions."""
        protocol, metadata = self.protocol, self.metadata
        adds, transactions = dict(self.adds), dict(self.transactions)
        added: dict[str, Mapping[str, Any]] = {}
        for action in actions:
            if add := action.get("add"):
                added[add["path"]] = add
            elif remove := action.get("remove"):
                adds.pop(remove["path"], None)
            elif transaction := action.get("txn"):
                transactions[transaction["appId"]] = int(transaction["version"])
            protocol = action.get("protocol") or protocol
            metadata = action.get("metaData") or metadata
        # A commit may remove a file and add it again with another vector, in any order.
        adds.update(added)
        return LogState(version, protocol, metadata, adds, transactions)


def read_log(location: WarehouseLocation, table: str, version: int | None = None) -> LogState:
    """Return what the log says about a version, by default the newest; raise WarehouseError if it lacks it."""
    names = names_in_log(location.fs, location.at(table, LOG_FOLDER))
    commits, checkpoints = commits_of(names), checkpoints_of(names)
    newest = max([*commits, *checkpoints], default=-1)
    wanted = newest if version is None else version
    begin = max((number for number in checkpoints if number <= wanted), default=-1)
    state = _read_checkpoint(location, table, begin, checkpoints[begin]) if begin >= 0 else LogState(-1)
    following = [number for number in commits if begin < number <= wanted]
    if wanted < 0 or wanted > newest or following != list(range(begin + 1, wanted + 1)):
        raise WarehouseError(
            f"the log of the table does not have version {max(wanted, 0)}",
            table=table,
            warehouse=location.root,
        )
    for number in following:
        state = state.after(number, read_commit(location, table, number) or ())
    return state


def read_commit(location: WarehouseLocation, table: str, version: int) -> list[Action] | None:
    """Return the actions of a commit, None if the log lacks it; raise WarehouseError if it is damaged."""
    path = location.at(table, commit_path(version))
    try:
        with location.fs.open_input_stream(path) as stream:
            text = stream.read()
    except FileNotFoundError:
        return None
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise WarehouseError(f"a commit is damaged: {error}", table=table, file=path) from error


def _read_checkpoint(location: WarehouseLocation, table: str, version: int, names: Sequence[str]) -> LogState:
    """Return the state in a checkpoint, without tombstones (`remove`), which name no live file."""
    actions: list[Action] = []
    for name in names:
        actions += _checkpoint_actions(location, location.at(table, LOG_FOLDER, name), table)
    for action in list(actions):
        if sidecar := action.get("sidecar"):
            path = location.at(table, LOG_FOLDER, "_sidecars", sidecar["path"])
            actions += _checkpoint_actions(location, path, table)
    return LogState(-1).after(version, actions)


def _checkpoint_actions(location: WarehouseLocation, path: str, table: str) -> list[Action]:
    try:
        if path.endswith(".json"):
            with location.fs.open_input_stream(path) as stream:
                return [json.loads(line) for line in stream.read().splitlines() if line.strip()]
        with location.fs.open_input_file(path) as file:
            parquet = pq.ParquetFile(file)
            wanted = [name for name in _CHECKPOINT_COLUMNS if name in parquet.schema_arrow.names]
            rows = parquet.read(columns=wanted)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise WarehouseError(
            f"a checkpoint of the log is damaged: {error}", table=table, file=path
        ) from error
    found: list[Action] = []
    for name in wanted:
        column = rows[name].drop_null() if rows[name].null_count else rows[name]
        found += [{name: _plain(value)} for value in column.to_pylist()]
    return found


def _plain(value: Any) -> Any:
    """Return a value of a checkpoint as a commit's JSON has it: maps as objects, and without missing parts."""
    if not isinstance(value, Mapping):
        return value
    given = {name: part for name, part in value.items() if part is not None}
    return {name: dict(part) if name in _MAPS else _plain(part) for name, part in given.items()}
