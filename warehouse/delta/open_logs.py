"""What a writer knows of the logs of its open tables: read once, and continued by each commit."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql.types import StructType

from warehouse.delta.location import WarehouseLocation
from warehouse.delta.table_files import LiveFiles, TableFile, live_files
from warehouse.delta.table_log import Action, LogState, read_commit, read_log


@dataclass
class OpenLogs:
    """The states of tables' logs."""

    location: WarehouseLocation
    _states: dict[str, LogState] = field(default_factory=dict)
    _files: dict[str, LiveFiles] = field(default_factory=dict)
    _columns: dict[str, tuple[str, StructType]] = field(default_factory=dict)
    """By table: the text of its columns in the log, and the columns."""

    def state(self, table: str, version: int) -> LogState:
        """Return what the log says about a version of a table; only commits that are not known are read."""
        known = self._states.get(table)
        if known is None or known.version > version:
            known = read_log(self.location, table, version)
        while known.version < version:
            actions = read_commit(self.location, table, known.version + 1)
            known = (
                read_log(self.location, table, version)
                if actions is None
                else known.after(known.version + 1, actions)
            )
        self._states[table] = known
        return known

    def files(self, table: str, version: int) -> list[TableFile]:
        """Return the files of a version of a table."""
        return live_files(self.state(table, version), self._files.setdefault(table, {}))

    def columns(self, table: str, version: int) -> StructType:
        """Return the columns of a version of a table."""
        text = self.state(table, version).metadata["schemaString"]
        known, columns = self._columns.get(table, ("", StructType()))
        if text != known:
            columns = StructType.fromJson(json.loads(text))
            self._columns[table] = text, columns
        return columns

    def is_at(self, table: str, version: int) -> bool:
        """Return whether the log of a table is known up to a version, and no further."""
        known = self._states.get(table)
        return known is not None and known.version == version

    def continue_by(self, table: str, version: int, actions: Sequence[Action]) -> None:
        """Continue the log of a table by a commit that was just made."""
        known = self._states.get(table)
        if known is not None and known.version == version - 1:
            self._states[table] = known.after(version, actions)

    def forget(self, table: str | None = None) -> None:
        """Forget the log of a table, by default of all tables."""
        if table is None:
            self._states.clear()
            self._files.clear()
            self._columns.clear()
        else:
            self._states.pop(table, None)
            self._files.pop(table, None)
            self._columns.pop(table, None)
