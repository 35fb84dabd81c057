"""Sends OpenLineage events of each batch from a separate thread: START before it; COMPLETE, FAIL or ABORT after it.

A slow or failing service never delays or fails a batch: an event that cannot be sent causes a warning, and events are
dropped while too many wait. `observe.lineage.events` creates the events.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from threading import BoundedSemaphore, Event
from typing import TYPE_CHECKING, Any

from config.deployment import Config, LineageConfig
from observe.dbt_sources import sql_type
from pipeline.commit.batch import BatchName
from pipeline.stream import BatchContext
from schemas.descriptions import COLUMNS, TABLES, VERSION_COLUMNS
from schemas.errors import ConfigurationError
from sources.xlog.directory.offset import from_text
from warehouse.delta.location import WarehouseLocation, location_of

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent

    from observe.lineage.events import WrittenTable

log = logging.getLogger(__name__)

MAX_WAITING_EVENTS = 100
"""Maximum number of waiting events; more are dropped, since the service did not answer for many batches."""

MAX_RETRIES = 3
"""Number of retries to send an event; the client waits 0.3, 0.6, 1.2 s before them."""


class LineageEmitter:
    """Sends events one after another in a separate thread."""

    def __init__(self, client: OpenLineageClient) -> None:
        self._client = client
        self._free_slots = BoundedSemaphore(MAX_WAITING_EVENTS)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lineage")
        self._is_closing = Event()
        self._unsent_at_close = 0

    def send(self, create_event: Callable[[], RunEvent]) -> None:
        """Let the emitter's thread create and send an event; drop the event if too many wait."""
        if self._free_slots.acquire(blocking=False):
            self._thread.submit(self._send, create_event)
        else:
            log.warning("lineage: %d events wait, one more is dropped", MAX_WAITING_EVENTS)

    def _send(self, create_event: Callable[[], RunEvent]) -> None:
        try:
            if self._unsent_at_close:
                self._unsent_at_close += 1
            else:
                self._client.emit(create_event())
        except Exception as error:  # whatever the transport raises, the batch is finished
            log.warning("lineage: an event cannot be sent: %s", str(error).partition("\n")[0])
            self._unsent_at_close += self._is_closing.is_set()
        finally:
            self._free_slots.release()

    def close(self) -> None:
        """Send the waiting events; if one fails, drop the others, so that the job does not wait for the service."""
        self._is_closing.set()
        self._thread.shutdown()
        if self._unsent_at_close > 1:
            log.warning("lineage: %d more events are not sent, since the job ends", self._unsent_at_close - 1)
        self._client.close()


@contextmanager
def lineage_events(
    config: Config, spark_version: str, versions: Callable[[], Mapping[str, int]]
) -> Iterator[BatchContext]:
    """Yield a function that takes a batch's name, and returns a context manager in which the batch runs.

    The context manager sends the batch's events. Without the section `lineage` of the configuration it does nothing.

    Raises:
        ConfigurationError: The extra `lineage` is not installed, the file for events cannot be written, or the
            environment lacks the variable with the service's key.
    """
    section = config.lineage
    if section is None:
        yield lambda _name: nullcontext()
        return
    emitter = LineageEmitter(_create_client(section))
    try:
        yield _BatchEventSender(config, section, spark_version, versions, emitter).send_around
    finally:
        emitter.close()


class _BatchEventSender:
    """Sends the events of the batches of one stream."""

    def __init__(
        self,
        config: Config,
        section: LineageConfig,
        spark_version: str,
        versions: Callable[[], Mapping[str, int]],
        emitter: LineageEmitter,
    ) -> None:
        self._config, self._section, self._spark_version = config, section, spark_version
        self._read_versions, self._emitter = versions, emitter
        self._location = location_of(config.warehouse, config.database)

    @contextmanager
    def send_around(self, name: BatchName) -> Iterator[None]:
        """Send START at the beginning of the block, and at its end COMPLETE, FAIL or ABORT."""
        from openlineage.client.event_v2 import RunState
        from openlineage.client.uuid import generate_new_uuid

        from observe.lineage.events import BatchRun, output_datasets, read_datasets, run_event

        run = BatchRun(
            str(generate_new_uuid()), self._section.namespace, self._section.job, self._spark_version
        )
        paths = {source.name: source.path for source in self._config.sources}
        start, end = (from_text(text) if text is not None else {} for text in name.offsets)
        inputs = read_datasets(start, end, paths)

        def send(state: RunState, tables: Mapping[str, int], error: BaseException | None = None) -> None:
            at = datetime.now(UTC)
            database = self._config.database
            self._emitter.send(
                lambda: run_event(
                    run,
                    state,
                    at,
                    inputs,
                    output_datasets(written_tables(self._location, database, tables)),
                    error,
                )
            )

        before = dict(self._read_versions())
        send(RunState.START, {})
        try:
            yield
        except BaseException as error:
            send(RunState.FAIL if isinstance(error, Exception) else RunState.ABORT, {}, error)
            raise
        after = self._read_versions()
        changed = {table: version for table, version in after.items() if before.get(table) != version}
        send(RunState.COMPLETE, changed)


def written_tables(
    location: WarehouseLocation, database: str, versions: Mapping[str, int]
) -> Iterator[WrittenTable]:
    """Yield the tables that a batch wrote; a table that does not exist is left out."""
    from observe.lineage.events import WrittenTable

    for name, version in sorted(versions.items()):
        opened = location.open(name, version)
        if opened is not None:
            descriptions = COLUMNS if name in TABLES else VERSION_COLUMNS
            columns = tuple(
                (field.name, sql_type(json.loads(field.type.to_json())), descriptions.get(field.name, ""))
                for field in opened.schema().fields
            )
            yield WrittenTable(f"{database}.{name}", location.uri(name), version, columns)


def _create_client(section: LineageConfig) -> OpenLineageClient:
    try:
        from openlineage.client import OpenLineageClient
    except ImportError as error:
        raise ConfigurationError(
            "the package openlineage-python is not installed",
            path="lineage",
            advice="install the extra: tarantool-aggregator[lineage]",
        ) from error
    return OpenLineageClient(config={"transport": _transport(section)})


def _transport(section: LineageConfig) -> dict[str, Any]:
    if section.file is not None:
        try:
            Path(section.file).open("a", encoding="utf-8").close()
        except OSError as error:
            raise ConfigurationError(
                f"events cannot be written: {error.strerror}", path="lineage.file", file=section.file
            ) from error
        return {"type": "file", "log_file_path": section.file, "append": True}
    transport: dict[str, Any] = {"type": "http", "url": section.url, "retry": {"total": MAX_RETRIES}}
    if section.key_env is not None:
        key = os.environ.get(section.key_env)
        if not key:
            raise ConfigurationError(
                f"the variable {section.key_env} of the environment has no key",
                path="lineage.key_env",
                advice="set it",
            )
        transport["auth"] = {"type": "api_key", "apiKey": key}
    return transport
