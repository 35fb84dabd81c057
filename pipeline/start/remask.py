"""Applies masks that changed in the configuration: once, before the first batch of a start.

If a mask was added, changed or removed, the table that readers see is rewritten from the exact one. One epoch commits
all such tables. Maintenance removes the old versions with the unmasked values. `pipeline.write.prepare` handles a mask
whose field appears in a format while the stream runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from config.deployment import Config
from pipeline.commit.epoch import commit_epoch
from pipeline.encode.columns import TableEncoding, encoding_of
from pipeline.encode.masks import MASKS_PROPERTY
from pipeline.plan.tables import current_table_plan
from pipeline.state import State
from pipeline.write.prepare import Prepared, masks_differ, prepare_table, rewrite_exact, rewrite_masked
from pipeline.write.rewrite import write_rows
from pipeline.write.table_change import TableChange
from schemas.errors import UnsupportedError
from schemas.names import exact_table, is_space_table
from warehouse.commits import OpenTables
from warehouse.data_files import opened
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)

MASKED = "masked"
"""The query id in `_epochs` of the epoch that changes masks."""


@dataclass(frozen=True)
class MaskChange:
    """A table whose masks change.

    Parameters
    ----------
    table : str
        The table that readers see.
    encoding : TableEncoding or None
        The encoding with the new masks; None if the table is not masked any more.
    was_masked : bool

    """

    table: str
    encoding: TableEncoding | None
    was_masked: bool

    @property
    def exact(self) -> str:
        """The table with the unmasked rows, which exists while the table is masked."""
        return exact_table(self.table)


def mask_changes(tables: OpenTables, config: Config, state: State) -> Iterator[MaskChange]:
    """Yield the tables whose masks a start must change; writes nothing.

    Raises
    ------
    UnsupportedError
        If a mask would not hide its field.

    """
    for table in filter(is_space_table, state.versions):
        was_masked = exact_table(table) in state.versions
        if not was_masked and not config.spaces.masks:
            continue
        try:
            plan = current_table_plan(state, config, table)
        except UnsupportedError as error:
            raise UnsupportedError(f"{table}: {error.reason}", advice="see spaces.masks") from error
        if plan is None:
            if was_masked:
                log.warning("%s stays masked as before: its space was dropped", table)
        elif plan.mask is not None:
            encoding = encoding_of(plan)
            if not was_masked or masks_differ(tables, encoding):
                yield MaskChange(table, encoding, was_masked)
        elif was_masked:
            yield MaskChange(table, None, was_masked)


def apply_masks(warehouse: Warehouse, config: Config, state: State) -> State:
    """Rewrite all tables whose masks changed, commit an epoch, and return the state after it."""
    tables = warehouse.open_tables
    changed: dict[str, int] = {}
    gone: list[str] = []
    for one in mask_changes(tables, config, state):
        if one.encoding is not None:
            prepared = Prepared()
            prepare_table(tables, one.encoding, prepared)
            if prepared.changes[one.exact] is TableChange.REWRITE:
                rewrite_exact(tables, one.encoding)
            changed[one.table] = rewrite_masked(tables, one.encoding)
            changed[one.exact] = tables.version(one.exact)
        else:
            log.warning("%s is not masked any more", one.table)
            changed[one.table] = _unmask(tables, one.table)
            gone.append(one.exact)
    if not changed:
        return state
    kept = {name: version for name, version in state.versions.items() if name not in gone}
    after = commit_epoch(tables, replace(state, versions=kept), changed, (MASKED, state.epoch + 1))
    for table in gone:
        warehouse.drop(table)
    return after


def _unmask(tables: OpenTables, table: str) -> int:
    """Replace a masked table's rows by the exact ones, and return its new Delta version."""
    exact = exact_table(table)
    added = []
    for file in tables.files(exact):
        with opened(tables.place, exact, file.path) as parquet:
            added += write_rows(tables.place, table, parquet.read())
    tables.replace(table, added, tables.columns(exact))
    return tables.set_properties(table, {MASKS_PROPERTY: "{}"})
