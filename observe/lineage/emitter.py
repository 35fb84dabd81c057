"""Sends the events of each batch in its own thread: START before it, COMPLETE, FAIL or ABORT after it.

A slow or failing service never delays or fails a batch: an event that cannot be sent causes a warning, and events are
dropped while too many wait. `observe.lineage.events` has their content.
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
from warehouse.place import Place, place_of

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent

    from observe.lineage.events import WrittenTable

log = logging.getLogger(__name__)

WAITING_EVENTS = 100
"""Limit of waiting events; later ones are dropped, since the service has not answered for many batches."""

RETRIES = 3
"""How often an event is sent again; the client waits 0.3, 0.6, 1.2 s between."""


class Emitter:
    """Sends events one after another.

    Parameters
    ----------
    client : OpenLineageClient

    """

    def __init__(self, client: OpenLineageClient) -> None:
        self._client = client
        self._room = BoundedSemaphore(WAITING_EVENTS)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lineage")
        self._is_closing = Event()
        self._dropped = 0

    def send(self, make: Callable[[], RunEvent]) -> None:
        """Make an event and send it, later and in another thread."""
        if self._room.acquire(blocking=False):
            self._thread.submit(self._send, make)
        else:
            log.warning("lineage: %d events wait, one more is dropped", WAITING_EVENTS)

    def _send(self, make: Callable[[], RunEvent]) -> None:
        try:
            if self._dropped:
                self._dropped += 1
            else:
                self._client.emit(make())
        except Exception as error:  # whatever the transport raises, the batch is finished
            log.warning("lineage: an event cannot be sent: %s", str(error).partition("\n")[0])
            self._dropped += self._is_closing.is_set()
        finally:
            self._room.release()

    def close(self) -> None:
        """Send the waiting events, until one cannot be sent: a job's end does not wait for a service that is away."""
        self._is_closing.set()
        self._thread.shutdown()
        if self._dropped > 1:
            log.warning("lineage: not sent either, since the job ends: %d events", self._dropped - 1)
        self._client.close()


@contextmanager
def lineage(
    config: Config, spark_version: str, versions: Callable[[], Mapping[str, int]]
) -> Iterator[BatchContext]:
    """Yield a context manager for the stream to run around each batch; without the section `lineage` it does nothing.

    Parameters
    ----------
    config : Config
    spark_version : str
    versions : callable
        Returns the version of each table at the last epoch.

    Raises
    ------
    ConfigurationError
        The extra `lineage` is not installed, or its key is not in the environment.

    """
    wanted = config.lineage
    if wanted is None:
        yield lambda _name: nullcontext()
        return
    emitter = Emitter(_client(wanted))
    try:
        yield _Batches(config, wanted, spark_version, versions, emitter).around
    finally:
        emitter.close()


class _Batches:
    """The events of the batches of one stream."""

    def __init__(
        self,
        config: Config,
        wanted: LineageConfig,
        spark_version: str,
        versions: Callable[[], Mapping[str, int]],
        emitter: Emitter,
    ) -> None:
        self._config, self._wanted, self._spark_version = config, wanted, spark_version
        self._versions, self._emitter = versions, emitter
        self._place = place_of(config.warehouse, config.database)

    @contextmanager
    def around(self, name: BatchName) -> Iterator[None]:
        """Send START, and the result of the batch."""
        from openlineage.client.event_v2 import RunState
        from openlineage.client.uuid import generate_new_uuid

        from observe.lineage.events import BatchRun, inputs_between, outputs_of, run_event

        run = BatchRun(
            str(generate_new_uuid()), self._wanted.namespace, self._wanted.job, self._spark_version
        )
        paths = {source.name: source.path for source in self._config.sources}
        start, end = (from_text(text) if text is not None else {} for text in name.offsets)
        inputs = inputs_between(start, end, paths)

        def send(kind: RunState, tables: Mapping[str, int], error: BaseException | None = None) -> None:
            at = datetime.now(UTC)
            database = self._config.database
            self._emitter.send(
                lambda: run_event(
                    run, kind, at, inputs, outputs_of(written_tables(self._place, database, tables)), error
                )
            )

        before = dict(self._versions())
        send(RunState.START, {})
        try:
            yield
        except BaseException as error:
            send(RunState.FAIL if isinstance(error, Exception) else RunState.ABORT, {}, error)
            raise
        after = self._versions()
        send(RunState.COMPLETE, {one: at for one, at in after.items() if before.get(one) != at})


def written_tables(place: Place, database: str, versions: Mapping[str, int]) -> Iterator[WrittenTable]:
    """Yield tables with their columns at the given versions.

    Parameters
    ----------
    place : Place
    database : str
    versions : mapping of str to int

    """
    from observe.lineage.events import WrittenTable

    for name, version in sorted(versions.items()):
        opened = place.open(name, version)
        if opened is not None:
            described = COLUMNS if name in TABLES else VERSION_COLUMNS
            columns = tuple(
                (field.name, sql_type(json.loads(field.type.to_json())), described.get(field.name, ""))
                for field in opened.schema().fields
            )
            yield WrittenTable(f"{database}.{name}", place.uri(name), version, columns)


def _client(wanted: LineageConfig) -> OpenLineageClient:
    try:
        from openlineage.client import OpenLineageClient
    except ImportError as error:
        raise ConfigurationError(
            "the package openlineage-python is not installed",
            path="lineage",
            advice="install the extra: tarantool-aggregator[lineage]",
        ) from error
    return OpenLineageClient(config={"transport": _transport(wanted)})


def _transport(wanted: LineageConfig) -> dict[str, Any]:
    if wanted.file is not None:
        try:
            Path(wanted.file).open("a", encoding="utf-8").close()
        except OSError as error:
            raise ConfigurationError(
                f"events cannot be written: {error.strerror}", path="lineage.file", file=wanted.file
            ) from error
        return {"type": "file", "log_file_path": wanted.file, "append": True}
    transport: dict[str, Any] = {"type": "http", "url": wanted.url, "retry": {"total": RETRIES}}
    if wanted.key_env is not None:
        key = os.environ.get(wanted.key_env)
        if not key:
            raise ConfigurationError(
                f"the variable {wanted.key_env} of the environment has no key",
                path="lineage.key_env",
                advice="set it",
            )
        transport["auth"] = {"type": "api_key", "apiKey": key}
    return transport
