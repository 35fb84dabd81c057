"""Serves requests between two batches: backfill, snapshot, healing, rebuild, swap, maintenance.

The holder of the writer's lock serves them: the stream, or, if none runs, the command itself. A failed request is
answered with the reason, its writes are rolled back, and the stream continues.
"""

import base64
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from config.deployment import Config
from pipeline.batch import BatchWriter
from pipeline.commit.epoch import commit_epoch
from pipeline.compaction.rewrite import compact
from pipeline.encode.columns import TableEncoding, cluster_orders, current_encodings
from pipeline.requests.arguments import (
    BackfillArguments,
    ConflictsArguments,
    HealArguments,
    MaintenanceArguments,
    RebuildArguments,
    SnapshotArguments,
    SwapArguments,
    parse_arguments,
)
from pipeline.requests.beside import refuse_other_changes, swap, with_sections
from pipeline.requests.mend import mend_tables, tables_to_mend
from pipeline.requests.read_again import ReportProgress, TimeSpan, read_source_again
from pipeline.requests.rebuild import plan_rebuild, write_rebuild
from pipeline.requests.snapshots import heal, newly_included_spaces, read_spaces_again
from pipeline.retention.cleaning import Cleaning, clean, clean_epochs, plan_cleaning
from pipeline.retention.progress import SourceProgress, source_progress
from pipeline.write.system_rows import append_rows
from schemas.errors import AggregatorError
from schemas.names import exact_table
from schemas.states import RequestKind, RequestState
from warehouse.delta.newest_epoch import EPOCHS, NEVER_ROLLED_BACK
from warehouse.system_tables import maintenance, requests
from warehouse.system_tables.requests import Request
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)

MIN_CHECK_SECONDS = 5.0
"""The minimum time between two checks of `serve_if_due`."""


def _ignore_progress(_read_bytes: int, _total_bytes: int, _rows: int) -> None:
    pass


class Service:
    """Serves the requests of `_requests`, for the holder of the writer's lock."""

    def __init__(
        self,
        spark: SparkSession,
        warehouse: Warehouse,
        config: Config,
        writer: BatchWriter,
        report_progress: ReportProgress = _ignore_progress,
        log_step: Callable[[str], None] = log.debug,
    ) -> None:
        self._warehouse, self._config = warehouse, config
        self._writer, self._report_progress, self._log_step = writer, report_progress, log_step
        self._cores = spark.sparkContext.defaultParallelism
        self._seen_version, self._checked_at = -1, 0.0
        self._handlers: dict[str, Callable[[Request, Any], str]] = {
            RequestKind.BACKFILL: self._backfill,
            RequestKind.HEAL: self._heal,
            RequestKind.SNAPSHOT: self._read_spaces,
            RequestKind.REBUILD: self._rebuild,
            RequestKind.SWAP: self._swap,
            RequestKind.CONFLICTS: self._add_conflicts,
            RequestKind.MAINTENANCE: self._maintain,
        }

    def serve_if_due(self) -> int:
        """Call `serve` if the last check was at least `MIN_CHECK_SECONDS` ago; return the number of requests."""
        now = time.monotonic()
        if now - self._checked_at < MIN_CHECK_SECONDS:
            return 0
        self._checked_at = now
        return self.serve()

    def serve(self) -> int:
        """Execute the open requests, each while no batch runs; return their number."""
        version = self._warehouse.version(requests.TABLE)
        if version == self._seen_version:
            return 0
        self._seen_version = version
        todo = requests.open_requests(self._warehouse)
        for request in todo:
            with self._writer.batch_lock:
                self._execute(request)
        if todo:
            self._seen_version = self._warehouse.version(requests.TABLE)
        return len(todo)

    def _execute(self, request: Request) -> None:
        """Execute one request and answer it; roll its writes back if it fails."""
        try:
            arguments = parse_arguments(request.kind, request.arguments)
            message = self._handlers[request.kind](request, arguments)
            requests.answer(self._warehouse, request, RequestState.DONE, message)
            log.info("request %s (%s): %s", request.id, request.kind, message)
        except Exception as error:
            self._writer.roll_back()
            requests.answer(self._warehouse, request, RequestState.FAILED, str(error))
            log.error("request %s (%s) failed: %s", request.id, request.kind, error)
            if not isinstance(error, AggregatorError):
                raise

    def _backfill(self, _request: Request, arguments: BackfillArguments) -> str:
        span = TimeSpan(arguments.begin, arguments.end)
        names = [arguments.source] if arguments.source else [one.name for one in self._config.sources]
        shared = (span, self._report_progress, self._cores)
        rows = sum(read_source_again(self._config, self._writer, name, *shared) for name in names)
        return f"{rows} rows read from {', '.join(names)}"

    def _heal(self, request: Request, arguments: HealArguments) -> str:
        name = f"heal {request.id}"
        return heal(self._config, self._warehouse, self._writer, arguments.source, name, self._cores)

    def _read_spaces(self, request: Request, arguments: SnapshotArguments) -> str:
        name, spaces = f"snapshot {request.id}", list(arguments.spaces)
        return read_spaces_again(
            self._config, self._warehouse, self._writer, spaces, arguments.source, name, self._cores
        )

    def read_newly_included_spaces(self) -> None:
        """Request a snapshot of each space that the configuration has newly included, and execute the requests."""
        found = newly_included_spaces(self._config, self._writer.state)
        names = sorted({name for spaces in found.values() for name in spaces})
        if names:
            log.warning("spaces that were excluded before are read from a snapshot: %s", ", ".join(names))
            for name in names:
                requests.ask(self._warehouse, "snapshot", {"spaces": [name], "source": None})
        self.serve()

    def _rebuild(self, request: Request, arguments: RebuildArguments) -> str:
        space, policy = arguments.space, arguments.policy
        tables, mended = self._warehouse.open_tables, ""
        self._writer.set_changed_tables_aside()
        if tables_to_mend(self._writer.state, self._config, space):
            name = f"mend {request.id}"
            report = mend_tables(self._config, self._warehouse, self._writer, space, name, self._cores)
            mended = f"{report}; "
        state = self._writer.state
        rebuild = plan_rebuild(tables, state, self._config, space, policy)
        self._writer.state = write_rebuild(tables, state, rebuild, f"rebuild {request.id}")
        self._writer.use_policy(space, policy)
        return f"{mended}{rebuild.changed_keys} keys of {space} changed under {policy.policy}"

    def _swap(self, request: Request, arguments: SwapArguments) -> str:
        writer, space = self._writer, arguments.space
        config = with_sections(writer.config, arguments)
        refuse_other_changes(writer.state, writer.config, config, space)
        began = time.monotonic()
        done = swap(self._warehouse.open_tables, writer.state, config, space, f"swap {request.id}")
        writer.state = done.state
        writer.use_config(config)
        self._config = config
        for table in done.gone:
            self._warehouse.drop(table)
        text = f"{space} was swapped in epoch {done.state.epoch}, in {time.monotonic() - began:.1f} s"
        return f"{text}: another version is chosen for {done.changed_keys} keys"

    def _add_conflicts(self, request: Request, arguments: ConflictsArguments) -> str:
        rows = [_conflict_from_json(row) for row in arguments.rows]
        state = self._writer.state
        decided = {"epoch": state.epoch + 1, "decided_at": datetime.now(UTC)}
        tables = self._warehouse.open_tables
        version = append_rows(tables, "_conflicts", [{**row, **decided} for row in rows])
        name = (f"conflicts {request.id}", 0)
        self._writer.state = commit_epoch(tables, state, {"_conflicts": version}, name)
        return f"{len(rows)} conflicts were added"

    def _maintain(self, request: Request, arguments: MaintenanceArguments) -> str:
        state, days = self._writer.state, arguments.keep_days
        # Others append to these tables without the lock, or they are too small to need maintenance.
        aside = {*state.set_aside, *map(exact_table, state.set_aside)}
        found = [table for table in state.versions if table not in NEVER_ROLLED_BACK | aside]
        self._log_step(f"setting for how long Delta keeps the files of {len(found)} tables")
        # This comes first: Delta must not forget files that kept epochs need.
        encodings = list(current_encodings(state, self._writer.config))
        kept = {table: max(days, own) for table, own in self._own_retention(encodings).items()}
        longer = {t for t in found if maintenance.set_retention(self._warehouse, t, kept.get(t, days))}
        tables = self._warehouse.open_tables
        self._log_step("joining small files, and leaving deleted rows out")
        orders = cluster_orders(encodings)
        joined = {
            table: compact(tables, table, purge=arguments.purge, cluster_by=orders.get(table, ()))
            for table in found
        }
        self._log_step("looking for rows that are older than their retention")
        cleaning = self._plan_cleaning(arguments)
        counts = cleaning.count_texts()
        if counts:
            self._log_step(f"removing {', '.join(counts)}")
        versions = clean(tables, cleaning, state.epoch + 1)
        versions |= {t: tables.version(t) for t, files in joined.items() if files or t in longer}
        if versions:
            name = (f"maintenance {request.id}", 0)
            self._writer.state = commit_epoch(tables, state, versions, name)
        if cleaning.epochs_removal.files:
            maintenance.set_retention(self._warehouse, EPOCHS, days)
            tables.forget(EPOCHS)
            clean_epochs(tables, cleaning)
            found.append(EPOCHS)
        self._log_step(f"removing files that no version of {days} days needs from {len(found)} tables")
        for table in found:
            maintenance.vacuum(self._warehouse, table, 24.0 * kept.get(table, days))
        some = sum(1 for files in joined.values() if files)
        report = [f"{sum(joined.values())} files of {some} tables were joined or written again"]
        report += [f"{count} were removed" for count in counts]
        return "; ".join([*report, *cleaning.stay_reasons])

    def _own_retention(self, encodings: Iterable[TableEncoding]) -> dict[str, int]:
        """Return the days for which the configuration keeps earlier versions of some tables."""
        spaces = self._writer.config.spaces
        return {
            name: spaces.table_settings(one.layout.space).retention or 0
            for one in encodings
            for name in (one.exact_table, one.name)
        }

    def _plan_cleaning(self, arguments: MaintenanceArguments) -> Cleaning:
        writer, sources = self._writer, SourceProgress()
        if arguments.retention.depends_on_sources:
            sources = source_progress(writer.log_stream, writer.state, arguments.sources)
        tables = self._warehouse.open_tables
        return plan_cleaning(
            tables, writer.state, writer.config, arguments.retention, sources, arguments.keep_days
        )


_BINARY_COLUMNS = ("key", "winner_tuple", "loser_tuple")
_TIME_COLUMNS = ("winner_timestamp", "loser_timestamp")


def conflict_to_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `_conflicts` with only JSON's types: binary values in base64, times in ISO format."""
    found = dict(row)
    for name in _BINARY_COLUMNS:
        if found.get(name) is not None:
            found[name] = base64.b64encode(found[name]).decode("ascii")
    for name in _TIME_COLUMNS:
        if found.get(name) is not None:
            found[name] = found[name].isoformat()
    return found


def _conflict_from_json(row: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(row)
    for name in _BINARY_COLUMNS:
        if found.get(name) is not None:
            found[name] = base64.b64decode(found[name])
    for name in _TIME_COLUMNS:
        if found.get(name) is not None:
            found[name] = datetime.fromisoformat(found[name])
    return found
