"""A checkpoint of another warehouse, or of another time than the tables, is named at the start."""

import json
import shutil
from pathlib import Path

import pytest

from observe.doctor.doctor import Deployment as Checked
from observe.doctor.doctor import findings_of
from pipeline.checkpoint_fit import require_fitting_checkpoint
from pipeline.preview import preview_next_run
from schemas.errors import OffsetError
from sources.xlog.directory.offset import to_text
from tests.pipeline.deployment import Deployment
from tests.truth import OWN_ROOT

A, B = OWN_ROOT / "2.6.0" / "a1", OWN_ROOT / "2.6.0" / "b1"


class Checkpointed:
    """A deployment whose batches are in a checkpoint too, in the form of Spark's."""

    def __init__(self, folder: Path, source: Path = A) -> None:
        self.tables = Deployment(folder, {"a1": source})
        self.checkpoint = folder / "checkpoint"

    def run(self, batches: int | None = None, query: str = "test") -> None:
        """Run so many batches of one file or less each; without a number, larger ones to the end of the logs."""
        size = 3_000 if batches else 60_000
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": query}))
        with self.tables.writer() as (_, writer):
            while batches is None or batches > 0:
                number = self.tables.batches
                if self.tables.batch(writer, size) is None:
                    return
                text = f"v1\n{{}}\n{to_text(self.tables.offset)}"
                (self.checkpoint / "offsets" / str(number)).write_text(text)
                (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")
                batches = None if batches is None else batches - 1

    def keep(self, name: str) -> Path:
        """Copy the tables or the checkpoint, as of now."""
        kept = self.tables.folder / f"{name} after {self.tables.batches} batches"
        shutil.copytree(self.tables.folder / name, kept)
        return kept

    def put(self, kept: Path, name: str) -> None:
        """Put a copy in place of the tables or the checkpoint."""
        shutil.rmtree(self.tables.folder / name, ignore_errors=True)
        shutil.copytree(kept, self.tables.folder / name)

    def start(self) -> None:
        with self.tables.writer() as (warehouse, writer):
            require_fitting_checkpoint(warehouse, str(self.checkpoint), writer.log_stream, writer.state)


def assert_named(one: Checkpointed, text: str) -> None:
    config = one.tables.config()
    for start in (one.start, lambda: preview_next_run(config)):
        with pytest.raises(OffsetError, match=text) as refused:
            start()
        assert "move the folder of the checkpoint away" in refused.value.fields["advice"]
    assert "checkpoint_of_other_tables" in {finding.name for finding in findings_of(Checked(config, None))}


def test_checkpoints_and_tables_of_different_times(tmp_path: Path) -> None:
    one = Checkpointed(tmp_path)
    one.run(4)
    tables, checkpoint = one.keep("warehouse"), one.keep("checkpoint")
    one.start()
    one.run()
    one.start()
    today = one.keep("warehouse")
    one.put(tables, "warehouse")
    assert_named(one, "the tables are older than the checkpoint, which ends with batch")
    one.put(today, "warehouse")
    one.put(checkpoint, "checkpoint")
    assert_named(one, "the checkpoint is older than the tables: it ends with batch 3")
    shutil.rmtree(one.checkpoint)
    one.start()


def test_a_checkpoint_of_another_warehouse_or_of_a_lost_one(tmp_path: Path) -> None:
    one, other = Checkpointed(tmp_path / "one"), Checkpointed(tmp_path / "other", B)
    one.run(4)
    other.run(3, query="other")
    checkpoint = one.keep("checkpoint")
    one.run(1)
    one.put(other.checkpoint, "checkpoint")
    assert_named(one, "the checkpoint is of another warehouse: no epoch has a batch of its query")
    one.put(checkpoint, "checkpoint")
    (one.checkpoint / "metadata").write_text(json.dumps({"id": "third"}))
    one.start()  # the tables have all rows that this checkpoint counts as read
    shutil.rmtree(one.tables.folder / "warehouse")
    assert_named(one, "the tables are empty, and the checkpoint is not")
    shutil.rmtree(one.checkpoint)
    one.tables.offset = {}
    one.run()
    assert one.tables.tuples("accounts")
