"""Show, change and compare the RIDs of warehouses, and copy one warehouse onto another, without Spark.

Exit codes of compare: 0 same, 3 sync, 4 split brain, 5 unrelated, 2 not a RID. The rules are in `udfs.rid`, the table
in `warehouse.copies.rid`, the copy in `warehouse.copies`.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn

from tqdm import tqdm

from jobs.main import main as call_by_name
from jobs.runtime.output import say, say_json, say_lines
from schemas.errors import ConfigurationError
from udfs.rid.comparison import Comparison, Verdict, draw
from udfs.rid.operations import Node
from udfs.rid.value import Rid, describe_flags, parse_rid
from warehouse.copies import switch
from warehouse.copies.generations import ComparedRid, common_epoch, compare_warehouses, read_compared_rid
from warehouse.copies.sync import SyncOptions, lost_epochs_after, sync
from warehouse.delta.location import DEFAULT_DATABASE, WarehouseLocation, has_known_scheme, location_of
from warehouse.delta.newest_epoch import NO_EPOCH


class SyncProgress:
    """Shows the progress of a sync."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._copied_bytes = 0
        self._bar: tqdm[NoReturn] = tqdm(
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
            desc="sync",
        )

    def __enter__(self) -> SyncProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        if error is None:
            seconds = time.monotonic() - self._began
            say(f"{self._copied_bytes} bytes copied in {seconds:.1f} s", err=True)

    def options(self, discard: Rid | None, *, check_all: bool) -> SyncOptions:
        """Return the options of a sync, with this object's callbacks for its progress."""
        return SyncOptions(
            discard, check_all=check_all, on_planned=self._show_total, on_copied=self._show_copied
        )

    def _show_total(self, total_bytes: int) -> None:
        self._bar.reset(total_bytes)
        if not sys.stderr.isatty():
            say(f"{total_bytes} bytes to copy", err=True)

    def _show_copied(self, file_bytes: int) -> None:
        self._copied_bytes += file_bytes
        self._bar.update(file_bytes)


EXIT_CODE_BY_VERDICT = {Verdict.SAME: 0, Verdict.SYNC: 3, Verdict.SPLIT_BRAIN: 4, Verdict.UNRELATED: 5}

_RID_PATTERN = re.compile(r"[^/\\]*(?::[^/\\:]*){5,}\Z")


def rid_of_argument(argument: str, database: str) -> ComparedRid:
    """Return one side of a comparison from an argument of `compare`: a RID as text, or the address of a warehouse."""
    if _RID_PATTERN.fullmatch(argument):
        return ComparedRid(argument, Node(parse_rid(argument)))
    location = location_of(argument, database) if has_known_scheme(argument) else None
    if location is None or not location.has_folder_or_parent():
        raise ConfigurationError(
            f"{argument!r} is neither a RID nor a warehouse", advice="give a RID in full, a folder or a URI"
        )
    return read_compared_rid(location)


def location_from(
    warehouse: str | None, file: str | None, database: str = DEFAULT_DATABASE
) -> WarehouseLocation:
    """Return the location of the warehouse that a command names by its address or by `--config`."""
    if (warehouse is None) == (file is None):
        raise ConfigurationError(
            "no warehouse is named, or two are", advice="give WAREHOUSE or --config FILE"
        )
    return _require_existing(
        location_of(warehouse, database) if warehouse is not None else configured_location(str(file))
    )


def _require_existing(location: WarehouseLocation) -> WarehouseLocation:
    if not location.has_folder_or_parent():
        raise ConfigurationError(
            f"there is no {location.root}, nor the folder for it", advice="check the address"
        )
    return location


def configured_location(file: str) -> WarehouseLocation:
    """Return the location of the warehouse that a configuration names."""
    from config.deployment import load  # imports readers of logs, which a RID does not need

    config = load(file)
    return location_of(config.warehouse, config.database)


def show(location: WarehouseLocation, *, as_json: bool = False) -> None:
    """Print the RID of a warehouse, its meaning, and its generations."""
    print_rid(read_compared_rid(location), as_json=as_json)


def promote(location: WarehouseLocation, *, abandon_sync: bool = False, as_json: bool = False) -> None:
    """Make a warehouse the primary."""
    switch.promote(location, abandon_sync=abandon_sync)
    print_rid(read_compared_rid(location), as_json=as_json)


def demote(location: WarehouseLocation, *, as_json: bool = False) -> None:
    """Make a warehouse a secondary."""
    switch.demote(location)
    print_rid(read_compared_rid(location), as_json=as_json)


def record_disconnected(location: WarehouseLocation, *, as_json: bool = False) -> None:
    """Record that copies of a warehouse exist, or will exist, that no job keeps up to date."""
    switch.record_disconnected(location)
    print_rid(read_compared_rid(location), as_json=as_json)


def record_connected(locations: Sequence[WarehouseLocation], *, as_json: bool = False) -> None:
    """Record that these warehouses have the same content, and that no other copy exists."""
    switch.record_connected(locations)
    for location in locations:
        print_rid(read_compared_rid(location), as_json=as_json)


def print_rid(warehouse: ComparedRid, *, as_json: bool) -> None:
    """Print a warehouse's RID, its meaning and its generations; as JSON the RID, its mark and the newest epoch."""
    rid, mark = warehouse.node.rid, warehouse.node.next_head
    if as_json:
        found: dict[str, Any] = {"rid": str(rid), "simplified": rid.simplified, "epoch": warehouse.epoch}
        say_json({**found, "next": None if mark is None else str(mark)})
        return
    say(rid)
    say(f"simplified: {rid.simplified}")
    say(f"{warehouse.name}: {describe_flags(rid)}; newest epoch: {warehouse.epoch}")
    if mark is not None:
        say("copies may exist that are not connected: the next data begin a new generation")
    say_lines(draw({"": warehouse.printed_generations()}).splitlines())


def compare_rids(first: str, second: str, database: str = DEFAULT_DATABASE, *, as_json: bool = False) -> int:
    """Compare two warehouses or RIDs, print the result, and return the exit code."""
    a, b = (rid_of_argument(text, database) for text in (first, second))
    found = compare_warehouses(a, b)
    if as_json:
        say_json(found.as_json())
        return EXIT_CODE_BY_VERDICT[found.verdict]
    for name, one in (("a", a), ("b", b)):
        say(f"{name}: {one.name}" if one.ranges else f"{name}: {one.node.rid.simplified}")
        say(f"   {describe_flags(one.node.rid)}")
    say_lines(draw({"a": a.printed_generations(), "b": b.printed_generations()}).splitlines())
    say(verdict_sentence(found))
    return EXIT_CODE_BY_VERDICT[found.verdict]


def verdict_sentence(comparison: Comparison) -> str:
    """Return the result of a comparison as one sentence."""
    if comparison.verdict is Verdict.SAME:
        return "same: both hold the same data"
    if comparison.verdict is Verdict.SYNC:
        return f"sync {comparison.source} to {comparison.target}: {comparison.target} is behind"
    if comparison.verdict is Verdict.UNRELATED:
        return "unrelated: the two were never copies of each other"
    if comparison.common is None:
        return "split brain: both were written, and what they had in common is not known"
    younger = f"; the younger primary is {comparison.younger_node}" if comparison.younger_node else ""
    return f"split brain: both were written after {comparison.common}{younger}"


def copy(
    source_root: str,
    target_root: str,
    database: str = DEFAULT_DATABASE,
    *,
    discard_target: str | None = None,
    check_all: bool = True,
) -> None:
    """Copy a warehouse to another location, or bring the copy that is there up to date."""
    source, target = _require_existing(location_of(source_root, database)), location_of(target_root, database)
    discard = None if discard_target is None else parse_rid(discard_target)
    print_lost_epochs(source, target)
    with SyncProgress() as progress:
        done = sync(source, target, progress.options(discard, check_all=check_all))
    say(
        f"{target.root}: epoch {done.tables.epoch}, {len(done.tables.versions)} tables, {done.checked_rows} rows"
    )
    say(done.node.rid)


def print_lost_epochs(source: WarehouseLocation, target: WarehouseLocation) -> None:
    """After a split brain, print the epochs that a sync would remove from the target."""
    ours, theirs = read_compared_rid(source), read_compared_rid(target)
    found = compare_warehouses(ours, theirs)
    if found.verdict is Verdict.SPLIT_BRAIN:
        say(verdict_sentence(found).replace(" is a", " is the source").replace(" is b", " is the target"))
        known = common_epoch(ours, theirs, found.common)
        say(lost_epochs_after(target, NO_EPOCH if known is None else known))


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aggregator rid`, and return the exit code."""
    return call_by_name("rid", argv)


if __name__ == "__main__":
    sys.exit(main())
