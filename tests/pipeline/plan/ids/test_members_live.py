"""Document 001's cases (a) and (b) with real Tarantools' logs, and the planner's part of the batches in memory."""

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from sources.xlog.options import parse_options
from sources.xlog.reader import reader
from sources.xlog.stream.batch import segments_between
from sources.xlog.stream.log_stream import LogStream
from sources.xlog.stream.origins import members_at
from tests.live.replicaset import REPLICASET, Servers, case_a, uuid
from tests.pipeline.logs import batch_of
from tests.pipeline.plan.planner import OWN, Piece, Planner
from udfs.remap.cluster_replace import Cluster

pytestmark = pytest.mark.live


def logs(servers: Servers, name: str) -> list[Path]:
    return sorted((servers.root / name).glob("*.xlog"))


def announced(path: Path, log: str) -> Mapping[int, str]:
    """Return what a server's files tell of its `_cluster` where a log begins."""
    options = {"sources": json.dumps([{"name": path.name, "path": str(path)}]), "start": "history"}
    asked = LogStream(parse_options(options))
    begin = asked.initial()
    (segment,) = [s for s in segments_between(asked, begin, asked.latest(begin)) if s.file == log]
    directory = asked.directory(path.name)
    return members_at(directory, directory.listing(), segment)


def read(planner: Planner, logs: list[Path]) -> None:
    """Take logs as one batch of a source that is asked for its `_cluster` first."""
    pieces: list[Piece] = []
    for file in logs:
        where = reader.open_fs(str(file))
        meta = reader.read_meta(*where)
        rows = pa.concat_batches([batch_of([]), *reader.read_rows(*where)])
        asked = None if pieces else announced(file.parent, file.name)
        header = (REPLICASET, meta.instance_uuid, file.name, False, dict(meta.vclock), asked)
        pieces.append(Piece(rows, *header))
    planner.batch(*pieces)


def test_cases_a_and_b(servers: Servers) -> None:
    planner = Planner(cluster=Cluster("preserve"))
    read(planner, logs(servers, "m1"))
    assert planner.state.global_ids == {uuid(1): 1, uuid(2): 2, OWN: 3}
    case_a(servers)
    read(planner, logs(servers, "m1")[1:])
    assert planner.state.global_ids == {uuid(1): 1, uuid(2): 2, OWN: 3, uuid(3): 4}, "(b): 3 is ours"
    read(planner, logs(servers, "m2")[1:])
    assert planner.state.global_ids == {uuid(1): 1, uuid(2): 2, OWN: 3, uuid(3): 4, uuid(4): 5}, "(a)"
    one = planner.state.replicasets[REPLICASET]
    assert list(one.id_translations.values()) == [{3: 32}]
    assert one.cluster == {1: uuid(1), 2: uuid(2), 3: uuid(3), 32: uuid(4)}
    of_replicas = {name[1:]: fate.global_id for name, fate in planner.fates.items() if name[1] >= 3}
    assert of_replicas == {(3, 1): 4, (32, 1): 5}
    assert planner.waiting == []
