"""Prints what one batch did, from the tables and without Spark; `observe.batch_explanation` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from jobs.runtime.command_line import finished
from observe.batch_explanation import (
    BatchExplanation,
    ReadRange,
    WrittenFiles,
    explain_batch,
    explanation_as_json,
)
from schemas.names import replicaset_label
from warehouse.location import WarehouseLocation
from warehouse.newest_epoch import last_epoch, no_batch_error


def show(location: WarehouseLocation, epoch: int | None, *, as_json: bool = False) -> int:
    """Print what an epoch's batch did; by default the newest epoch's.

    Raises
    ------
    ConfigurationError
        There is no such epoch.
    WarehouseError
        No batch is done yet.

    """
    newest = last_epoch(location)
    if newest < 0:
        raise no_batch_error(location.root)
    found = explain_batch(location, newest if epoch is None else epoch)
    if as_json:
        print(json.dumps(explanation_as_json(found), default=str, ensure_ascii=False))
    else:
        print("\n".join(lines(found)))
    rows = found.epoch["rows"]
    written = f", {len(found.written_files)} tables written" if found.has_epoch_before else ""
    finished(f"epoch {found.epoch['epoch']}: {rows} rows read{written}")
    return 0


def lines(found: BatchExplanation) -> Iterator[str]:
    """Yield an explanation as lines of text."""
    epoch = found.epoch
    yield f"epoch {epoch['epoch']}, batch {epoch['batch_id']} of {epoch['query_id']}, {epoch['committed_at']}"
    if epoch["instant"] is not None:
        yield f"at the instant {epoch['instant']}"
    yield f"read: {epoch['rows']} rows, {found.copied_rows} of them copies of rows that were read before"
    yield from (f"  {_read_range_text(one)}" for one in found.read_ranges)
    yield from _part(
        "logged (_changelog)",
        (
            f"{row['source']}  {row['space'] or '-'}  {row['type']}  {row['state']}  {row['rows']}"
            f"  (lsn {row['first_lsn']} to {row['last_lsn']})"
            for row in found.change_counts
        ),
    )
    yield from _part(
        "spaces defined, changed or refused (_schema)",
        (
            f"replicaset {row['replicaset']}  {row['space']}  {row['table_name'] or '-'}  {row['state']}"
            for row in found.definitions
        ),
    )
    yield from _part(
        "waiting (_pending)",
        (
            f"{row['source']}  {row['reason']}  {row['before']} → {row['after']}"
            for row in found.pending_counts
        ),
    )
    yield from _part(
        "gaps (_gaps)",
        (
            f"{row['source']}  {row['kind']}  replica id {row['local_id']}"
            f"  lsn {row['first_lsn']} to {row['last_lsn']}  {row['state']}"
            for row in found.gaps
        ),
    )
    yield from _part(
        "decided (_conflicts)",
        (
            f"{row['space']}  {row['kind']}  {row['policy']}  by {row['sequence']}  {row['rows']}"
            for row in found.conflict_counts
        ),
    )
    yield from _part(
        "set aside (_quarantine)",
        (
            f"{row['space']}  {row['reason']}  {row['rows']}{' (in the table)' if row['is_in_table'] else ''}"
            for row in found.quarantine_counts
        ),
    )
    yield from _part("written", map(_written_text, found.written_files))
    if not found.has_epoch_before:
        yield "maintenance has removed the epoch before: what was written, and what waited, is not known"


def _part(title: str, texts: Iterator[str]) -> Iterator[str]:
    found = list(texts)
    if found:
        yield f"{title}:"
        yield from (f"  {text}" for text in found)


def _read_range_text(one: ReadRange) -> str:
    first = "the beginning" if not one.start[0] else f"{one.start[0]} byte {one.start[1]}"
    text = (
        f"{replicaset_label(one.replicaset_uuid, one.source)}  from {first} to {one.end[0]} byte {one.end[1]}"
    )
    return text if one.instant_label is None else f"{text}, the instant {one.instant_label}"


def _written_text(one: WrittenFiles) -> str:
    versions = f"{'new' if one.version_before is None else one.version_before} → {one.version_after}"
    if one.added_rows is None:
        return f"{one.table}  version {versions}  (its files are removed by maintenance)"
    files = f"{one.added_files} files added with {one.added_rows} rows, {one.removed_files} removed"
    return f"{one.table}  version {versions}  {files}"
