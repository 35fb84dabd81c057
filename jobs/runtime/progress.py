"""Progress of a long job: on a terminal a bar with rows/s and lag, elsewhere plain lines; a line for each long step.

`log_step` logs at INFO; a command shows these lines on stderr (`jobs.runtime.command_line`).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import NoReturn

from pyspark.sql.streaming.query import StreamingQuery
from tqdm import tqdm

from config.deployment import SourceConfig
from jobs.runtime.command_line import STEPS
from pipeline.batch import BatchResult
from pipeline.commit.batch import BatchName

_steps = logging.getLogger(STEPS)


def log_step(text: str) -> None:
    """Say which long step begins."""
    _steps.info(text)


class StreamProgress:
    """Shows the progress of a stream.

    Parameters
    ----------
    sources : sequence of SourceConfig
        The followed sources.

    """

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
            print(f"{self._rows} rows in {seconds:.1f} s, {self._rows / seconds:.0f} rows/s", file=sys.stderr)

    def with_first_batch_logged(
        self, around: Callable[[BatchName], AbstractContextManager[object]]
    ) -> Callable[[BatchName], AbstractContextManager[object]]:
        """Return `around`, which makes a context for a batch, extended by a message when the first batch begins."""

        @contextmanager
        def logged(name: BatchName) -> Iterator[None]:
            if not self._is_begun:
                log_step(f"batch {name.batch_id}, the first one, is read and written")
                self._is_begun = True
            with around(name):
                yield

        return logged

    def batch_done(self, done: BatchResult) -> None:
        """Count a batch and show it; batches without rows print nothing."""
        self._rows += done.row_count
        self._bar.update(done.row_count)
        if not sys.stderr.isatty() and done.row_count:
            rate = done.row_count / max(done.seconds, 1e-9)
            print(
                f"batch {done.batch_id}: {done.row_count} rows, {done.table_count} tables, "
                f"{done.seconds:.1f} s, {rate:.0f} rows/s",
                file=sys.stderr,
            )

    def follow(self, query: StreamingQuery, meanwhile: Callable[[], object] | None = None) -> None:
        """Wait for the stream's end, showing its lag; raise the error that ended it.

        Parameters
        ----------
        meanwhile : callable, optional
            Called once per second.

        """
        while not query.awaitTermination(1):
            if meanwhile is not None:
                meanwhile()
            self._bar.set_postfix_str(_lag_text(query), refresh=True)


def _lag_text(query: StreamingQuery) -> str:
    """Return how far the stream is behind its sources; an empty text before its first progress."""
    last = query.lastProgress
    if last is None or not last.sources:
        return ""
    source = last.sources[0]
    lags = lag_of(source.endOffset, source.latestOffset)
    return "lag " + ", ".join(f"{leader} {size}" for leader, size in lags.items()) if lags else "lag 0"


def lag_of(end: str | None, latest: str | None) -> dict[str, str]:
    """Return, by the name of the leader, how far its replicaset was read behind the end of its log.

    The text has the number of bytes if the end is in the same file, or else the name of the file with the end.
    Replicasets that were read to the end are left out.

    Parameters
    ----------
    end, latest : str or None
        The offset up to which the stream has read, and that of the end of the logs: JSON from the stream's progress.

    """
    if not end or not latest:
        return {}
    # A missing offset is the text "null".
    now, then = ((json.loads(text) or {}).get("replicasets", {}) for text in (end, latest))
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
