"""Markers of instants: the block of a marker, and logs that disappear while a batch is planned."""

from dataclasses import replace
from pathlib import Path

import pytest

from schemas.errors import XlogHeaderError, XlogMissingError
from sources.xlog.directory.directory import Directory
from sources.xlog.directory.source import Source
from sources.xlog.options import MarkerSpace
from sources.xlog.reader import reader
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.markers import Marker, MarkerFinder, end_of_transaction
from sources.xlog.stream.origins import Origins, members_at
from sources.xlog.stream.segment import Segment
from tests.sources.xlog.logs import Server, uuid_of
from tests.sources.xlog.stream.test_log_stream import log_stream


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    """Return the only segment of a log with three rows, each in a block of its own."""
    Server(tmp_path).write(rows=3)
    asked = log_stream(tmp_path)
    start = asked.initial()
    (found,) = segments_between(asked, start, asked.latest(start))
    return found


def test_the_longest_block_of_a_marker_is_that_of_the_options(
    tmp_path: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, marker = Source("a1", str(tmp_path)), Marker("p", 0, 1, 1, segment, segment.begin, 0)
    rows, end = end_of_transaction(Directory(source), marker)
    assert (rows, segment.begin < end < segment.end) == (0, True)
    with pytest.raises(XlogHeaderError, match="raise the option maxBlockBytes"):
        end_of_transaction(Directory(source, max_block_bytes=10), marker)
    # The option may be above the default.
    monkeypatch.setattr(reader.first_block_start, "__defaults__", (None, None, 10))
    assert end_of_transaction(Directory(source), marker) == (rows, end)


def test_a_log_that_disappears_while_a_batch_is_planned_is_named(tmp_path: Path, segment: Segment) -> None:
    directory = Directory(Source("a1", str(tmp_path)))
    listing, gone = directory.listing(), replace(segment, file=f"{7:020}.xlog")
    markers = MarkerFinder([MarkerSpace("marks", "label")])
    for find in (
        lambda: Origins(directory).origin_spans(listing, gone, frozenset({uuid_of("a1")})),
        lambda: members_at(directory, listing, gone),
        lambda: list(markers.find(directory, listing, gone)),
    ):
        with pytest.raises(XlogMissingError, match=rf"{7:020}\.xlog, source a1"):
            find()
