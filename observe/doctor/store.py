"""Checks the store and its tables: whether they can be written, by whom, and whether they fit this release. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from observe.doctor.findings import RUNBOOK, Finding, fail, ok, warn


@dataclass(frozen=True)
class Store:
    """The facts of a warehouse's location.

    Parameters
    ----------
    location : str
        Path of the database's folder.
    scheme_error : str or None
        Why no library can open it.
    write_error, rename_error, condition_error : str or None
        Why a test file could not be written; could not be renamed; why a second writer would not be refused.
    checkpoint_error : str or None
        Why the checkpoint's folder cannot be written.
    holder : str or None
        The current holder of the writer lock.

    """

    location: str
    scheme_error: str | None = None
    write_error: str | None = None
    rename_error: str | None = None
    condition_error: str | None = None
    checkpoint_error: str | None = None
    holder: str | None = None


@dataclass(frozen=True)
class TableFacts:
    """The state of the tables.

    Parameters
    ----------
    epoch : int
        -1 if there is none.
    tables : int
        Number of tables in the newest epoch.
    unreadable : mapping of str to str
        Table to the reason why it cannot be read or written.
    newer : str or None
        Sign that a newer release has written the tables.
    unknown_columns : mapping of str to tuple of str
        System table to columns that this release does not know.
    ahead : tuple of str
        Tables with commits after the newest epoch: an unfinished batch.
    rid : str or None
        The RID as text; None without one.
    is_primary : bool
    crashed : bool
        Whether the last writer was killed.
    allocation : str or None
        How ids were allocated.
    checkpoint_error : str or None
        Why the checkpoint cannot be read.
    has_checkpoint : bool
    gaps : tuple of str
        Open gaps.
    waiting, set_aside : int
        Rows of `_pending`; rows of `_quarantine` that are in no table.

    """

    epoch: int = -1
    tables: int = 0
    unreadable: Mapping[str, str] = field(default_factory=dict)
    newer: str | None = None
    unknown_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ahead: tuple[str, ...] = ()
    rid: str | None = None
    is_primary: bool = True
    crashed: bool = False
    allocation: str | None = None
    checkpoint_error: str | None = None
    has_checkpoint: bool = False
    gaps: tuple[str, ...] = ()
    waiting: int = 0
    set_aside: int = 0


def check_store(found: Store) -> Iterator[Finding]:
    """Yield the findings about a location."""
    if found.scheme_error is not None:
        yield fail(
            "warehouse_unknown",
            "warehouse",
            found.scheme_error,
            "name a path, or a store of the table `stores`",
        )
        return
    writable = "let this user write there, or name another folder"
    if found.write_error is not None:
        yield fail("warehouse_unwritable", "warehouse", found.write_error, writable)
    elif found.rename_error is not None:
        advice = "commits need a hard link or a rename: name another file system"
        yield fail("warehouse_no_rename", "warehouse", found.rename_error, advice)
    elif found.condition_error is not None:
        advice = f"{RUNBOOK}, Stores: nothing would keep two writers apart there"
        yield fail("no_conditional_writes", "warehouse", found.condition_error, advice)
    else:
        yield ok("warehouse", "warehouse", f"{found.location} can be written, renamed and locked")
    if found.checkpoint_error is not None:
        yield fail("checkpoint_unwritable", "checkpoint", found.checkpoint_error, writable)
    if found.holder is not None:
        advice = "nothing, where that is the stream: another `run` is refused while it lives"
        yield warn("lock_held", "writer lock", f"held by {found.holder}", advice)
    elif found.write_error is None:
        yield ok("lock", "writer lock", "free")


def check_tables(found: TableFacts, allocation: str) -> Iterator[Finding]:
    """Yield the findings about the tables.

    Parameters
    ----------
    found : TableFacts
    allocation : str
        From the configuration.

    """
    if found.epoch < 0:
        yield ok("tables", "tables", "none yet: the first run makes them")
    else:
        yield ok("tables", "tables", f"epoch {found.epoch} names {found.tables} tables")
    for table, reason in found.unreadable.items():
        yield fail(
            "table_unreadable", f"table {table}", reason, "restore the table, or heal what the message names"
        )
    newest = "install the release that wrote them, or a newer one"
    if found.newer is not None:
        yield fail("tables_newer", "tables", found.newer, newest)
    for table, columns in found.unknown_columns.items():
        text = f"this release does not know the columns {', '.join(columns)}"
        yield warn("tables_newer", f"table {table}", text, newest)
    if found.allocation is not None and found.allocation != allocation:
        yield fail(
            "allocation_changed",
            "tables",
            f"global ids were given by {found.allocation!r}, the configuration says {allocation!r}",
            f"set cluster.allocation to {found.allocation}",
        )
    yield from _state(found)


def _state(found: TableFacts) -> Iterator[Finding]:
    if found.rid is not None:
        text = f"{'primary' if found.is_primary else 'secondary'}, {found.rid}"
        if found.is_primary:
            yield ok("rid", "rid", text)
        else:
            yield fail(
                "not_primary", "rid", text, "write to the primary, or aggregator rid promote (docs/rid.md)"
            )
    if found.checkpoint_error is not None:
        advice = "delete it: the stream continues after the rows in the tables"
        yield fail("checkpoint_damaged", "checkpoint", found.checkpoint_error, advice)
    elif found.epoch >= 0 and not found.has_checkpoint:
        text = "there is none: the stream begins where the tables end"
        yield warn(
            "checkpoint_missing", "checkpoint", text, "nothing, unless its path was changed by mistake"
        )
    if found.ahead:
        text = f"an unfinished batch is in {', '.join(found.ahead)}"
        yield warn(
            "batch_unfinished",
            "tables",
            text,
            "nothing: a running writer ends it, or the next start rolls it back",
        )
    advice = "aggregator repair, or docs/operation.md, Runbook"
    for gap in found.gaps:
        yield warn("gap_open", "tables", gap, advice)
    if found.waiting:
        query = "SELECT reason, count(*) FROM _pending GROUP BY 1"
        yield warn("rows_waiting", "tables", f"{found.waiting} rows wait", query)
    if found.set_aside:
        yield warn(
            "rows_set_aside", "tables", f"{found.set_aside} rows are set aside", "SELECT * FROM _quarantine"
        )
