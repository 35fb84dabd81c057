"""Of which sources `_cluster` is read, and what their files say: recorded servers, and logs by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from pipeline.pending.log_segments import log_segments, with_members
from pipeline.state import ApplierMapEntry, ReplicasetState, State
from schemas.iproto import RequestType, SystemSpace
from sources.xlog.format.block import encode_block
from sources.xlog.format.encode import encode_row
from sources.xlog.options import parse_options
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.origins import members_at
from sources.xlog.stream.segment import Segment
from tests.bodies import encode_body
from tests.sources.xlog.logs import Server, uuid_of
from tests.truth import own

RECORDED = own()
MEMBERS = RECORDED.info("a1").cluster


def log_stream(*paths: Path, start: str = "history") -> LogStream:
    named = [{"name": path.name, "path": str(path)} for path in paths]
    return LogStream(parse_options({"sources": json.dumps(named), "start": start}))


def segments_of(asked: LogStream) -> tuple[Segment, ...]:
    begin = asked.initial()
    return segments_between(asked, begin, asked.latest(begin))


def at(asked: LogStream, segment: Segment) -> dict[int, str]:
    directory = asked.directory(segment.source)
    return members_at(directory, directory.listing(), segment)


@pytest.fixture(scope="module")
def logs() -> tuple[LogStream, Sequence[Segment]]:
    asked = log_stream(RECORDED.directory("a1"))
    return asked, [segment for segment in segments_of(asked) if not segment.is_snapshot]


def test_where_a_log_begins_the_files_before_it_tell(logs: tuple[LogStream, Sequence[Segment]]) -> None:
    asked, found = logs
    assert len(found) > 3
    for segment in found[1:]:
        assert at(asked, segment) == MEMBERS, segment.file


def test_a_position_in_a_log_has_what_is_before_it(logs: tuple[LogStream, Sequence[Segment]]) -> None:
    asked, found = logs
    whole = replace(found[0], begin=found[0].end)
    assert at(asked, whole) == MEMBERS
    assert len(at(asked, found[0])) < len(MEMBERS), "the second master came later"


def test_a_log_without_anything_before_it_knows_nobody(tmp_path: Path) -> None:
    source = RECORDED.logs("a1")[3]
    (tmp_path / "a1").mkdir()
    (tmp_path / "a1" / source.name).write_bytes(source.read_bytes())
    named = [{"name": "a1", "path": str(tmp_path / "a1"), "replicaset": RECORDED.info("a1").replicaset_uuid}]
    asked = LogStream(parse_options({"sources": json.dumps(named), "start": "history"}))
    assert at(asked, segments_of(asked)[0]) == {}


def test_what_was_deleted_is_left_out_until_somebody_else_gets_it(tmp_path: Path) -> None:
    server = Server(tmp_path / "a1")
    server.snapshot(cluster={1: "a1", 2: "a2"})
    server.open()
    body = encode_body(space_id=int(SystemSpace.CLUSTER), key=msgpack.packb([2]))
    server.vclock[1] = 1
    server.append(encode_block(encode_row(RequestType.DELETE, body, replica_id=1, lsn=1, timestamp=1.0)))
    server.rotate().system(int(SystemSpace.CLUSTER), [2, uuid_of("a3")]).rotate().write(1)
    asked = log_stream(tmp_path / "a1")
    logs = [segment for segment in segments_of(asked) if not segment.is_snapshot]
    assert [at(asked, segment) for segment in logs] == [
        {1: uuid_of("a1"), 2: uuid_of("a2")},
        {1: uuid_of("a1")},
        {1: uuid_of("a1"), 2: uuid_of("a3")},
    ]


def members_by_file(asked: LogStream, state: State, sources: int = 1) -> dict[str, object]:
    """Return what each segment's source says of its `_cluster`, by file."""
    segments = segments_of(asked)
    numbered = {segment.number: segment for segment in segments}
    found = with_members(log_segments(segments), numbered, asked, state, sources)
    return {one.file: one.members for one in found if one.members is not None}


def known(**more: object) -> State:
    uuid = RECORDED.info("a1").replicaset_uuid
    one = ReplicasetState(1, uuid, applier_map=(ApplierMapEntry(1, 1, 1),), last_source="a1")
    return State(replicasets={uuid: replace(one, **more)})  # type: ignore[arg-type]


def test_a_new_replicaset_is_asked_once_and_its_snapshot_tells_itself() -> None:
    asked = log_stream(RECORDED.directory("a1"), start="snapshot")
    newest = RECORDED.snapshots("a1")[-1].name
    assert members_by_file(asked, State()) == {newest: {}}


@pytest.mark.parametrize(
    ("state", "sources", "is_asked"),
    [
        (State(), 1, True),
        (known(), 1, False),
        (known(applier_map=()), 1, True),
        (known(last_source="a2"), 1, True),
        (known(), 2, True),
        (known(cluster_by_source={"a1": {}}), 2, False),
        (known(last_source="a2", cluster_by_source={"a1": {}}), 1, False),
    ],
    ids=[
        "new",
        "continues",
        "in no map",
        "takes over",
        "may differ",
        "was asked",
        "was asked before it took over",
    ],
)
def test_who_is_asked(state: State, sources: int, is_asked: bool) -> None:
    asked = log_stream(RECORDED.directory("a1"))
    assert bool(members_by_file(asked, state, sources)) == is_asked
