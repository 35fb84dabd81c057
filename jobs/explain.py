"""Prints what one batch did; `observe.batch_explanation` reads that from the tables, without Spark."""

from collections.abc import Iterator

from jobs.runtime.command_line import print_result
from jobs.runtime.output import say_json, say_lines
from observe.batch_explanation import (
    BatchExplanation,
    ReadRange,
    WrittenFiles,
    explain_batch,
    explanation_as_json,
)
from schemas.names import replicaset_label
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import last_epoch, no_batch_error


def show(location: WarehouseLocation, epoch: int | None, *, as_json: bool = False) -> int:
    """Print what an epoch's batch did; by default the newest epoch's."""
    newest = last_epoch(location)
    if newest < 0:
        raise no_batch_error(location.root)
    found = explain_batch(location, newest if epoch is None else epoch)
    if as_json:
        say_json(explanation_as_json(found))
    else:
        say_lines(explanation_lines(found))
    rows = found.epoch["rows"]
    written = f", {len(found.written)} tables written" if found.has_before else ""
    print_result(f"epoch {found.epoch['epoch']}: {rows} rows read{written}")
    return 0


_EXECUTORS = {
    "driver": "the driver",
    "driver_alone": "the driver, which also read the logs",
    "tasks": "Spark's tasks",
}


def explanation_lines(explanation: BatchExplanation) -> Iterator[str]:
    """Yield the explanation of a batch as lines of text."""
    epoch = explanation.epoch
    yield f"epoch {epoch['epoch']}, batch {epoch['batch_id']} of {epoch['query_id']}, {epoch['committed_at']}"
    if epoch["instant"] is not None:
        yield f"at the instant {epoch['instant']}"
    if epoch["executor"] is not None:
        yield f"processed in {_EXECUTORS[epoch['executor']]}"
    yield f"read: {epoch['rows']} rows, {explanation.copied_rows} of them copies of rows that were read before"
    yield from (f"  {_read_range_text(one)}" for one in explanation.read)
    yield from _section_lines(
        "logged (_changelog)",
        (
            f"{row['source']}  {row['space'] or '-'}  {row['type']}  {row['state']}  {row['rows']}"
            f"  (lsn {row['first_lsn']} to {row['last_lsn']})"
            for row in explanation.changes
        ),
    )
    yield from _section_lines(
        "spaces defined, changed or refused (_schema)",
        (
            f"replicaset {row['replicaset']}  {row['space']}  {row['table_name'] or '-'}  {row['state']}"
            for row in explanation.definitions
        ),
    )
    yield from _section_lines(
        "waiting (_pending)",
        (
            f"{row['source']}  {row['reason']}  {row['before']} → {row['after']}"
            for row in explanation.waiting
        ),
    )
    yield from _section_lines(
        "gaps (_gaps)",
        (
            f"{row['source']}  {row['kind']}  replica id {row['local_id']}"
            f"  lsn {row['first_lsn']} to {row['last_lsn']}  {row['state']}"
            for row in explanation.gaps
        ),
    )
    yield from _section_lines(
        "decided (_conflicts)",
        (
            f"{row['space']}  {row['kind']}  {row['policy']}  by {row['sequence']}  {row['rows']}"
            for row in explanation.decisions
        ),
    )
    yield from _section_lines(
        "set aside (_quarantine)",
        (
            f"{row['space']}  {row['reason']}  {row['rows']}{' (in the table)' if row['is_in_table'] else ''}"
            for row in explanation.set_aside
        ),
    )
    yield from _section_lines("written", map(_written_text, explanation.written))
    if not explanation.has_before:
        yield "maintenance has removed the epoch before: what was written, and what waited, is not known"


def _section_lines(title: str, entries: Iterator[str]) -> Iterator[str]:
    texts = list(entries)
    if texts:
        yield f"{title}:"
        yield from (f"  {text}" for text in texts)


def _read_range_text(read_range: ReadRange) -> str:
    (first_file, first_byte), (last_file, last_byte) = read_range.first, read_range.last
    first = "the beginning" if not first_file else f"{first_file} byte {first_byte}"
    label = replicaset_label(read_range.replicaset, read_range.source)
    text = f"{label}  from {first} to {last_file} byte {last_byte}"
    return text if read_range.instant is None else f"{text}, the instant {read_range.instant}"


def _written_text(written: WrittenFiles) -> str:
    before = "new" if written.before is None else written.before
    text = f"{written.table}  version {before} → {written.version}"
    if written.rows is None:
        return f"{text}  (its files are removed by maintenance)"
    added = f"{written.added} files added with {written.rows} rows"
    deleted = f", {written.deleted_rows} rows deleted in files that stay" if written.deleted_rows else ""
    return f"{text}  {added}, {written.removed} removed{deleted}"
