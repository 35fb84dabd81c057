"""The tables of spaces as the configuration masks them now: done once, before the first batch of a start.

A mask that is new, other than before, or gone rewrites the table that readers see, of the exact one beside it; all of
them in one epoch. What stands in older versions of that table goes with maintenance. Also looked at: spaces of which no
row comes. Not here: a mask whose field appears in a format while the stream runs (`jobs.batch.prepare`).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from jobs.batch.columns import current_spaces, target_of
from jobs.batch.commit import commit
from jobs.batch.masks import PROPERTY
from jobs.batch.prepare import prepare_table
from jobs.batch.state import State
from config.deployment import Config
from schemas.errors import UnsupportedError
from schemas.names import EXACT, exact_table, is_of_space
from tables.warehouse import Warehouse

log = logging.getLogger(__name__)

MASKED = "masked"
"""In `_epochs` the query of a start that changed masks."""


def remasked(warehouse: Warehouse, config: Config, state: State) -> State:
    """Bring all tables into the form that the masks ask for, and return the state after it."""
    changed: set[str] = set()
    versions = dict(state.versions)
    for table in filter(is_of_space, state.versions):
        was = exact_table(table) in state.versions
        if not was and not config.spaces.masks:
            continue
        if not current_spaces(state, config, table):
            if was:
                log.warning("%s stays masked as it is: its space was dropped", table)
            continue
        try:
            target = target_of(0, table, state, config, (), frozenset([table]))
        except UnsupportedError as error:
            raise UnsupportedError(f"{table}: {error.reason}", advice="see spaces.masks") from error
        if target.mask is not None and (prepare_table(warehouse, target) or not was):
            changed |= {*target.tables}
        elif target.mask is None and was:
            log.warning("%s is not masked any more", table)
            warehouse.overwrite(table, warehouse.read(exact_table(table)))
            warehouse.set_property(table, PROPERTY, "{}")
            del versions[exact_table(table)]
            changed.add(table)
    if not changed:
        return state
    after = commit(warehouse, replace(state, versions=versions), sorted(changed), (MASKED, state.epoch + 1))
    for table in state.versions.keys() - versions.keys():
        assert table.startswith(EXACT), table
        warehouse.drop(table)
    return after
