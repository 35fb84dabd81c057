"""Processes the micro-batches of Spark's stream: the function for `foreachBatch`.

The stream's DataFrame has the rows of a batch as log cells (`pipeline.executors.cell_source`). The batch's segments
follow from its offsets, as do the cells.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from pyspark.sql import DataFrame

from config.deployment import Config
from pipeline.acknowledge import Acknowledger
from pipeline.batch import BatchResult, BatchWriter
from pipeline.checkpoint import read_offset
from pipeline.commit.batch import BatchName
from schemas.errors import AggregatorError, OffsetError
from sources.xlog.directory.offset import from_text
from sources.xlog.stream.batch import segments_between
from warehouse.system_tables import epochs
from warehouse.warehouse import Warehouse

log = logging.getLogger(__name__)

OnResult = Callable[[BatchResult], object]
"""Called with the result of each batch; what it returns is ignored."""

BatchContext = Callable[[BatchName], AbstractContextManager[object]]
"""Returns a context manager that is entered before a batch, and exited after it, with the error if it failed."""


STOP_SECONDS = 20.0
"""How long a batch in progress is awaited when the job is stopped: service managers kill a job that takes longer."""


class StreamWriter:
    """Processes the micro-batches of a streaming query."""

    def __init__(
        self,
        warehouse: Warehouse,
        config: Config,
        writer: BatchWriter,
        watch: OnResult | None = None,
        around: BatchContext | None = None,
    ) -> None:
        self._warehouse, self._config, self._writer, self._watch = warehouse, config, writer, watch
        self._around = around or (lambda _name: nullcontext())
        self._acknowledge = Acknowledger(config, writer.log_stream)
        self._end_by_batch: dict[int, str | None] | None = None
        self._is_finished = False

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Process one micro-batch."""
        with self._writer.batch_lock:
            if self._is_finished:
                raise AggregatorError("the job is being stopped: this batch is for the next start")
            self._process_batch(frame, batch_id)

    def finish(self, seconds: float = STOP_SECONDS) -> bool:
        """Wait until the current batch is done, and let all later batches fail.

        Returns False after so many seconds: the batch is left unfinished, and the next start repeats it.
        """
        if self._writer.batch_lock.locked():
            log.warning(
                "the batch in progress is finished first, within %.0f s; to stop at once, send the signal again",
                seconds,
            )
        if not self._writer.batch_lock.acquire(timeout=seconds):
            log.warning("the batch in progress is left unfinished: the next start repeats it")
            return False
        try:
            self._is_finished = True
        finally:
            self._writer.batch_lock.release()
        return True

    def _process_batch(self, frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        context = self._warehouse.session.sparkContext
        query_id = str(context.getLocalProperty("sql.streaming.queryId"))
        start = read_offset(self._warehouse, self._config.checkpoint, batch_id - 1)
        end = read_offset(self._warehouse, self._config.checkpoint, batch_id)
        is_first = self._end_by_batch is None
        if self._end_by_batch is None:
            self._end_by_batch = epochs.end_offsets(self._warehouse, query_id)
        # After a start, Spark repeats the last batch if its commit is not in the checkpoint.
        is_repeated = is_first and batch_id in self._end_by_batch
        check_end_offset(self._end_by_batch, batch_id - 1, start)
        check_end_offset(self._end_by_batch, batch_id, end)
        self._end_by_batch = {batch_id: end}
        # The first batch has no start offset: Spark only records where the replicasets begin, without rows.
        if is_repeated or start is None or end is None:
            return
        segments = segments_between(self._writer.log_stream, from_text(start), from_text(end))
        name = BatchName(query_id, batch_id, (start, end))
        with self._around(name):
            rows, tables = self._writer.process(segments, name, frame=frame)
        self._acknowledge(from_text(start), self._writer.state)
        if self._watch is not None:
            seconds = time.monotonic() - began
            steps, costs = dict(self._writer.seconds_by_step), self._writer.costs
            executor = self._writer.last_executor
            self._watch(BatchResult(batch_id, rows, seconds, tables, steps, executor, costs))


def check_end_offset(committed_ends: Mapping[int, str | None], batch_id: int, offset: str | None) -> None:
    """Check that a batch's end offset in the checkpoint is the one that was committed.

    They differ if another job has overwritten the checkpoint's offset, after it had lost the writer's lock.

    Raises:
        OffsetError: If the offsets differ.
    """
    if offset is not None and committed_ends.get(batch_id, offset) != offset:
        raise OffsetError(
            f"batch {batch_id} has ended elsewhere than the checkpoint says: another job has written it",
            advice="start with a new checkpoint: the stream continues from the tables, and applies no row twice",
        )
