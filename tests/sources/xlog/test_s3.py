"""Logs on S3 are read as those on a disc, by the names of `pyarrow.fs` and of Hadoop."""

from pathlib import Path

import pyarrow as pa
import pytest

from sources.xlog.directory.directory import Directory
from sources.xlog.directory.listing import Listing
from sources.xlog.directory.source import Source
from sources.xlog.reader import reader
from tests.sources.s3 import Store, installed
from tests.truth import own

pytestmark = installed


def listed(path: str) -> Listing:
    return Directory(Source("a1", path)).listing()


def rows(listing: Listing) -> pa.Table:
    """Return the rows of all files, in the order of the log."""
    files = (*listing.snapshots, *listing.logs)
    batches = [batch for file in files for batch in reader.read_rows(*reader.open_fs(file.path))]
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_directory_on_s3_has_the_rows_of_that_on_disc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    disc = own().directory("a1")
    with Store(tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        found = listed(store.put(disc, "logs/a1").replace("s3://", f"{scheme}://"))
        expected = listed(str(disc))
        names = [[file.name for file in (*one.snapshots, *one.logs)] for one in (found, expected)]
        assert names[0] == names[1] != []
        assert rows(found).equals(rows(expected))
