"""Checks the warehouse's location and tables: whether this release can write them, and who has the lock. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from observe.doctor.findings import STORES, Finding, fail, ok, warn
from warehouse.system_tables.table_differences import TableDifference, TableState


@dataclass(frozen=True)
class StoreFacts:
    """The facts of a warehouse's location."""

    location: str
    """Path or URI of the folder with the tables."""
    scheme_error: str | None = None
    """Why Spark and delta-rs cannot open the location; None if one of them can."""
    write_error: str | None = None
    rename_error: str | None = None
    """Why a test file could not be written, and why it could not be renamed; None if it could."""
    conditional_write_error: str | None = None
    """The error if two writers can create the same file in the store, so that one overwrites the commit of the other;
    None if the store refuses the second one (a conditional write).
    """
    checkpoint_error: str | None = None
    """Why the checkpoint's folder cannot be written; None if it can."""
    lock_holder: str | None = None
    """The current holder of the writer lock, as text; None if the lock is free."""
    sources_above: tuple[str, ...] = ()
    sources_within: tuple[str, ...] = ()
    """Names of the sources whose folder contains the warehouse's folder, and of those whose folder is within it."""


@dataclass(frozen=True)
class TableFacts:
    """The facts of the tables."""

    epoch: int = -1
    """The newest epoch; -1 without one."""
    table_count: int = 0
    """Number of tables in the newest epoch."""
    unreadable_tables: Mapping[str, str] = field(default_factory=dict)
    """By name of a table that cannot be read: the reason."""
    newer_release_error: str | None = None
    """The error message if a newer release of the aggregator has written the tables, else None."""
    unknown_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By name of one of the aggregator's own tables: its columns that this release does not know."""
    tables_ahead: tuple[str, ...] = ()
    """Tables with commits of an unfinished batch, after the newest epoch."""
    differences: tuple[TableDifference, ...] = ()
    """The tables that are not as the newest epoch names them."""
    rid: str | None = None
    """The RID (generation and role of the warehouse, docs/rid.md) as text; None without one."""
    is_primary: bool = True
    """Whether the warehouse may be written; a warehouse that is not primary is a copy."""
    id_allocation: str | None = None
    """How the global ids were allocated (`cluster.allocation` of the configuration); None if unknown."""
    checkpoint_error: str | None = None
    """Why the checkpoint cannot be read; None if it can, or does not exist."""
    has_checkpoint: bool = False


def check_store(facts: StoreFacts) -> Iterator[Finding]:
    """Yield the findings about the warehouse's location."""
    if facts.scheme_error is not None:
        yield fail(
            "warehouse_unknown",
            "warehouse",
            facts.scheme_error,
            "name a path, or a store of the table `stores`",
        )
        return
    writable = "let this user write there, or name another folder"
    if facts.write_error is not None:
        yield fail("warehouse_unwritable", "warehouse", facts.write_error, writable)
    elif facts.rename_error is not None:
        advice = "commits need a hard link or a rename: name another file system"
        yield fail("warehouse_no_rename", "warehouse", facts.rename_error, advice)
    elif facts.conditional_write_error is not None:
        advice = f"use another store ({STORES}): two writers could overwrite each other's commits"
        yield fail("no_conditional_writes", "warehouse", facts.conditional_write_error, advice)
    else:
        yield ok("warehouse", "warehouse", f"{facts.location} can be written, renamed and locked")
    if facts.checkpoint_error is not None:
        yield fail("checkpoint_unwritable", "checkpoint", facts.checkpoint_error, writable)
    if facts.lock_holder is not None:
        advice = "nothing, if the holder is the stream: another `run` is refused until it ends"
        yield warn("lock_held", "writer lock", f"held by {facts.lock_holder}", advice)
    elif facts.write_error is None:
        yield ok("lock", "writer lock", "free")
    apart = "give the warehouse and each source folders that do not contain each other"
    if facts.sources_above:
        names = ", ".join(facts.sources_above)
        text = f"it is inside of the log folder of {names}: who cleans that folder removes tables"
        yield warn("warehouse_in_logs", "warehouse", text, apart)
    if facts.sources_within:
        names = ", ".join(facts.sources_within)
        text = f"the log folder of {names} is inside of it: who removes or copies the warehouse does so with the logs"
        yield warn("logs_in_warehouse", "warehouse", text, apart)


def check_tables(facts: TableFacts, allocation: str) -> Iterator[Finding]:
    """Yield the findings about the tables."""
    if facts.epoch < 0:
        yield ok("tables", "tables", "none yet: the first run creates them")
    else:
        yield ok("tables", "tables", f"epoch {facts.epoch} names {facts.table_count} tables")
    for one in facts.differences:
        is_lost = one.state in (TableState.LOST, TableState.OLDER)
        yield fail("table_lost" if is_lost else "table_changed", f"table {one.table}", one.text, one.advice)
    for table, reason in facts.unreadable_tables.items():
        yield fail(
            "table_unreadable",
            f"table {table}",
            reason,
            "restore the table, or correct what the message names",
        )
    newest = "install the release that wrote them, or a newer one"
    if facts.newer_release_error is not None:
        yield fail("tables_newer", "tables", facts.newer_release_error, newest)
    for table, columns in facts.unknown_columns.items():
        text = f"this release does not know the columns {', '.join(columns)}"
        yield warn("tables_newer", f"table {table}", text, newest)
    if facts.id_allocation is not None and facts.id_allocation != allocation:
        yield fail(
            "allocation_changed",
            "tables",
            f"global ids were allocated by {facts.id_allocation!r}, the configuration says {allocation!r}",
            f"set cluster.allocation to {facts.id_allocation}",
        )
    yield from _check_state(facts)


def _check_state(facts: TableFacts) -> Iterator[Finding]:
    if facts.rid is not None:
        text = f"{'primary' if facts.is_primary else 'secondary'}, {facts.rid}"
        if facts.is_primary:
            yield ok("rid", "rid", text)
        else:
            yield fail(
                "not_primary", "rid", text, "write to the primary, or aggregator rid promote (docs/rid.md)"
            )
    if facts.checkpoint_error is not None:
        advice = "delete it: the stream continues after the rows in the tables"
        yield fail("checkpoint_damaged", "checkpoint", facts.checkpoint_error, advice)
    elif facts.epoch >= 0 and not facts.has_checkpoint:
        text = "there is none: the stream will continue after the rows in the tables"
        yield warn(
            "checkpoint_missing", "checkpoint", text, "nothing, unless its path was changed by mistake"
        )
    if facts.tables_ahead:
        text = f"an unfinished batch is in {', '.join(facts.tables_ahead)}"
        yield warn(
            "batch_unfinished",
            "tables",
            text,
            "nothing: a running writer finishes it, or the next start rolls it back",
        )
