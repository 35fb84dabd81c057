"""Build a second table of a space under another configuration, compare the two, swap them, or discard it.

All but the swap is done by this process alone, from the tables of the newest epoch, without the writer lock. The swap
is a request: the holder of the lock does it between two batches (`pipeline.requests.beside`).
"""

from functools import partial

from config.deployment import Config
from jobs.aggregate import check_custom_functions
from jobs.backfill import request_and_wait
from jobs.runtime.output import say, say_lines
from jobs.runtime.session import log_reading_session
from jobs.runtime.steps import log_step
from observe.beside_comparison import compare
from pipeline.commit.load import load_state
from pipeline.requests.beside import BesideTable, discard
from schemas.states import RequestKind, RequestState
from warehouse.copies.primary import require_primary
from warehouse.warehouse import EpochWarehouse, Warehouse


def rebuild_beside(config: Config, space: str, action: str) -> int:
    """Do one action on the second table of a space: `beside`, `compare`, `swap` or `discard`."""
    check_custom_functions(config)
    warehouse = Warehouse(None, config.warehouse, config.database)
    warehouse.require_tables()
    actions = {"beside": build, "compare": show_comparison, "swap": ask_for_swap, "discard": discard_table}
    return actions[action](config, warehouse, space)


def newest(config: Config, space: str) -> BesideTable:
    """Return the second table of a space, as of the newest epoch."""
    warehouse = EpochWarehouse(None, config.warehouse, config.database)
    return BesideTable.of(warehouse.open_tables, load_state(warehouse), config, space)


def build(config: Config, _warehouse: Warehouse, space: str) -> int:
    """Build the second table, or bring it to the newest epoch."""
    newest(config, space).bring_up(log_step)
    table = newest(config, space)  # building a large table takes so long that the stream has gone on
    table.bring_up(log_step)
    say(
        f"{space} is built beside, as of epoch {table.state.epoch}: {table.tables.location.uri(table.plan.name)}"
    )
    return 0


def show_comparison(config: Config, _warehouse: Warehouse, space: str) -> int:
    """Bring the second table to the newest epoch, and print how it differs from the table of that epoch."""
    table = newest(config, space)
    table.require_built()
    table.bring_up(log_step)
    log_step("comparing")
    say(f"as of epoch {table.state.epoch}:")
    say_lines(compare(table.plan.name, table.source, table.tables).lines())
    return 0


def ask_for_swap(config: Config, warehouse: Warehouse, space: str) -> int:
    """Bring the second table to the newest epoch, and ask the holder of the writer lock to swap it in."""
    require_primary(warehouse)
    table = newest(config, space)
    table.require_built()
    table.bring_up(log_step)
    log_step("copying files")
    table.copy_files()
    sections = {
        name: getattr(config, name).model_dump(mode="json", exclude_unset=True)
        for name in ("spaces", "types", "policies")
    }
    session = partial(log_reading_session, config, "swap")
    request = request_and_wait(config, warehouse, RequestKind.SWAP, {"space": space, **sections}, session)
    say(f"{request.kind}: {request.message}")
    return 0 if request.state == RequestState.DONE else 1


def discard_table(config: Config, warehouse: Warehouse, space: str) -> int:
    """Remove the second table."""
    was_there = discard(warehouse.location, config.spaces.table(space))
    say("what was built beside is removed" if was_there else "nothing was built beside")
    return 0
