"""Progress of a long job: on a terminal a bar with rows/s and lag, elsewhere plain lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import NoReturn

from pyspark.sql.streaming.query import StreamingQuery
from tqdm import tqdm

from config.deployment import SourceConfig
from jobs.runtime.output import say
from jobs.runtime.steps import log_step
from observe.write_costs import written_text
from pipeline.batch import BatchResult
from pipeline.commit.batch import BatchName


class StreamProgress:
    """Shows the progress of a stream."""

    def __init__(self, sources: Sequence[SourceConfig]) -> None:
        self._sources = sources
        self._rows = 0
        self._is_begun = False
        self._began = time.monotonic()
        self._bar: tqdm[NoReturn] = tqdm(
            unit=" rows",
            unit_scale=True,
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
            desc="aggregate",
        )

    def __enter__(self) -> StreamProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        seconds = max(time.monotonic() - self._began, 1e-9)
        if self._rows:
            say(f"{self._rows} rows in {seconds:.1f} s, {self._rows / seconds:.0f} rows/s", err=True)

    def log_first_batch(
        self, batch_context: Callable[[BatchName], AbstractContextManager[object]]
    ) -> Callable[[BatchName], AbstractContextManager[object]]:
        """Return `batch_context`, which makes a batch's context, so that it also logs when the first batch begins."""

        @contextmanager
        def logged(name: BatchName) -> Iterator[None]:
            if not self._is_begun:
                log_step(f"reading and writing batch {name.batch_id}, the first one")
                self._is_begun = True
            with batch_context(name):
                yield

        return logged

    def show_batch(self, result: BatchResult) -> None:
        """Add the rows of a committed batch, and show it; a batch without rows prints nothing."""
        self._rows += result.row_count
        self._bar.update(result.row_count)
        if not sys.stderr.isatty() and result.row_count:
            rate = result.row_count / max(result.seconds, 1e-9)
            wrote = f", {written_text(result.costs)}" if result.costs.written_bytes else ""
            say(
                f"batch {result.batch_id}: {result.row_count} rows, {result.table_count} tables, "
                f"{result.seconds:.1f} s, {rate:.0f} rows/s, in {(result.executor or '').replace('_', ' ')}{wrote}",
                err=True,
            )

    def wait_for_end(self, query: StreamingQuery, each_second: Callable[[], object] | None = None) -> None:
        """Wait for the stream's end, showing its lag; raise the error that ended it, if any."""
        while not query.awaitTermination(1):
            if each_second is not None:
                each_second()
            self._bar.set_postfix_str(_lag_text(query), refresh=True)


def _lag_text(query: StreamingQuery) -> str:
    last = query.lastProgress
    if last is None or not last.sources:
        return ""
    source = last.sources[0]
    lags = lag_by_leader(source.endOffset, source.latestOffset)
    return "lag " + ", ".join(f"{leader} {size}" for leader, size in lags.items()) if lags else "lag 0"


def lag_by_leader(read_offset: str | None, latest_offset: str | None) -> dict[str, str]:
    """Return the name of each leader to how far the stream is behind the end of its log, as text.

    The text is a number of bytes, `250 B`, if the end is in the file that is read; else it names the file with the end:
    `to 7.xlog`. Replicasets that were read to the end are left out.
    """
    if not read_offset or not latest_offset:
        return {}
    # A missing offset is the text "null".
    now, then = ((json.loads(text) or {}).get("replicasets", {}) for text in (read_offset, latest_offset))
    found = {}
    for uuid, target in then.items():
        reached = now.get(uuid)
        if reached is None or (reached["file"], reached["position"]) == (target["file"], target["position"]):
            continue
        same = reached["file"] == target["file"]
        found[target["leader"]] = (
            f"{target['position'] - reached['position']} B" if same else f"to {target['file']}"
        )
    return found
