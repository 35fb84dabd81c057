"""A deployment whose process ends at any step of a batch and starts again."""

from collections.abc import Mapping

import pytest

from pipeline.commit.batch import BatchName
from sources.xlog.directory.offset import OffsetEntry, from_text, to_text
from sources.xlog.stream.batch import segments_between
from tests.pipeline.deployment import Deployment
from warehouse.system_tables import epochs


class KilledError(Exception):
    """Stands for the end of the process."""


class Restarted:
    """Runs a deployment as Spark does whose process ends at any step: what was planned is done first."""

    def __init__(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deployment, self.left, self.kills = deployment, 0, 0
        self._planned: Mapping[str, OffsetEntry] | None = None
        monkeypatch.setattr("pipeline.batch.log_step_done", self._reached)

    def _reached(self, step: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.kills += 1
            raise KilledError(step)

    def run(self, budget: int | None, steps: int) -> None:
        """Do batches until there is nothing to read, or the process ends after so many steps."""
        self.left, one = steps, self.deployment
        with one.writer() as (warehouse, writer):
            while True:
                end = self._planned or writer.log_stream.latest(one.offset, budget)
                if end == one.offset:
                    return
                self._planned = from_text(to_text(end))
                segments = segments_between(writer.log_stream, one.offset, end)
                name = BatchName("test", one.batches, (to_text(one.offset), to_text(end)))
                if name.batch_id not in epochs.end_offsets(warehouse, "test"):
                    writer.process(segments, name)
                one.offset, one.batches, self._planned = end, one.batches + 1, None
