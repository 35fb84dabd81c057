"""The tables of spaces as the configuration masks them now: done once, before the first batch of a start.

A mask that is new, other than before, or gone rewrites the table that readers see, from the exact one; all of them in
one epoch. Older versions of that table go with maintenance. Not here: a mask whose field appears in a format while the
stream runs (`pipeline.write.prepare`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from config.deployment import Config
from pipeline.commit.epoch import commit_epoch
from pipeline.encode.columns import TableEncoding, encoding_of
from pipeline.encode.masks import PROPERTY
from pipeline.plan.tables import current_table_plan
from pipeline.state import State
from pipeline.write.prepare import Prepared, mask_again, masks_differ, prepare_table
from pipeline.write.rewrite import write_rows
from schemas.errors import UnsupportedError
from schemas.names import exact_table, is_of_space
from warehouse.commits import OpenTables
from warehouse.data_files import opened
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)

MASKED = "masked"
"""In `_epochs` the query of a start that changed masks."""


@dataclass(frozen=True)
class MaskChange:
    """A table that readers shall see in another way.

    Parameters
    ----------
    table : str
        The one that readers see.
    encoding : TableEncoding or None
        How it is masked from now on; None where it is not masked any more.
    was_masked : bool

    """

    table: str
    encoding: TableEncoding | None
    was_masked: bool

    @property
    def exact(self) -> str:
        """The table that holds the exact tuples while it is masked."""
        return exact_table(self.table)


def mask_changes(tables: OpenTables, config: Config, state: State) -> Iterator[MaskChange]:
    """Yield the tables that a start writes again because their masks changed; writes nothing.

    Raises
    ------
    UnsupportedError
        A mask cannot hold.

    """
    for table in filter(is_of_space, state.versions):
        was = exact_table(table) in state.versions
        if not was and not config.spaces.masks:
            continue
        try:
            plan = current_table_plan(state, config, table)
        except UnsupportedError as error:
            raise UnsupportedError(f"{table}: {error.reason}", advice="see spaces.masks") from error
        if plan is None:
            if was:
                log.warning("%s stays masked as it is: its space was dropped", table)
        elif plan.mask is not None:
            encoding = encoding_of(plan)
            if not was or masks_differ(tables, encoding):
                yield MaskChange(table, encoding, was)
        elif was:
            yield MaskChange(table, None, was)


def apply_masks(warehouse: Warehouse, config: Config, state: State) -> State:
    """Bring all tables into the form that the masks ask for, and return the state after it."""
    tables = warehouse.open_tables
    changed: dict[str, int] = {}
    gone: list[str] = []
    for one in mask_changes(tables, config, state):
        if one.encoding is not None:
            prepare_table(tables, one.encoding, Prepared())
            changed[one.table] = mask_again(tables, one.encoding)
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
    """Give a table the exact rows, and return its version."""
    exact = exact_table(table)
    added = []
    for file in tables.files(exact):
        with opened(tables.place, exact, file.path) as parquet:
            added += write_rows(tables.place, table, parquet.read())
    tables.replace(table, added, tables.columns(exact))
    return tables.set_properties(table, {PROPERTY: "{}"})
