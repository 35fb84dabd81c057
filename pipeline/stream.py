"""The stream's batches: what `foreachBatch` calls. Spark gives the offsets, the batch writer does the rest.

The stream's DataFrame is not read: segments follow from the offsets, and an executor reads them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pyspark.sql import DataFrame

from config.deployment import Config
from pipeline.acknowledge import Acknowledger
from pipeline.batch import BatchResult, BatchWriter
from pipeline.commit.batch import BatchName
from pipeline.offsets import read_offset
from schemas.errors import AggregatorError
from sources.xlog.batch import segments_between
from sources.xlog.offset import from_text
from tables import epochs
from tables.warehouse import Warehouse

log = logging.getLogger(__name__)

Watch = Callable[[BatchResult], object]


class StreamWriter:
    """Does the micro-batches of a streaming query.

    Parameters
    ----------
    warehouse : Warehouse
    config : Config
    writer : BatchWriter
    watch : callable, optional
        Called with the result of each batch.

    """

    def __init__(
        self, warehouse: Warehouse, config: Config, writer: BatchWriter, watch: Watch | None = None
    ) -> None:
        self._warehouse, self._config, self._writer, self._watch = warehouse, config, writer, watch
        self._acknowledge = Acknowledger(config, writer.follower)
        self._is_first, self._is_finished = True, False

    def __call__(self, _frame: DataFrame, batch_id: int) -> None:
        """Do one micro-batch.

        Parameters
        ----------
        batch_id : int
            Spark's number of the batch within the checkpoint.

        """
        with self._writer.between:
            if self._is_finished:
                raise AggregatorError("the job is being stopped: this batch is for the next start")
            self._batch(batch_id)

    def finish(self) -> None:
        """Wait until the batch in progress is done, and let none begin any more."""
        if self._writer.between.locked():
            log.warning("the batch in progress is finished first; to stop at once, ask again")
        with self._writer.between:
            self._is_finished = True

    def _batch(self, batch_id: int) -> None:
        began = time.monotonic()
        context = self._warehouse.session.sparkContext
        query_id = str(context.getLocalProperty("sql.streaming.queryId"))
        # After a start Spark repeats the last batch where it could not note its end.
        is_repeated = self._is_first and epochs.holds(self._warehouse, query_id, batch_id)
        self._is_first = False
        if is_repeated:
            return
        start = read_offset(self._warehouse, self._config.checkpoint, batch_id - 1)
        end = read_offset(self._warehouse, self._config.checkpoint, batch_id)
        if start is None or end is None:  # the first batch, in which the replicasets begin without rows
            return
        segments = segments_between(self._writer.follower, from_text(start), from_text(end))
        rows, tables = self._writer.process(segments, BatchName(query_id, batch_id, (start, end)))
        self._acknowledge(from_text(start), self._writer.state)
        if self._watch is not None:
            seconds = time.monotonic() - began
            self._watch(BatchResult(batch_id, rows, seconds, tables, dict(self._writer.steps)))
