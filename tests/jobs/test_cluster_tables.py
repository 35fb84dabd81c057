"""The command on tables of a replicaset whose members differ (document 001, case a): ids of each source."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from jobs.main import main
from schemas.cluster_checksum import checksum

A = "aaaaaaaa-0000-4000-8000-000000000000"
M1, M2, C, D = (f"b0000000-0000-4000-8000-00000000000{i}" for i in (1, 2, 3, 4))
OWN = "00000000-0000-4000-8000-0000000000ff"

CLUSTER = ("global_id", "uuid", "local_id", "replicaset_id", "replicaset_uuid", "lsn", "expelled_at")
MAP = ("replicaset_id", "local_id", "global_id", "since_lsn", "source")
VCLOCK = ("replicaset_id", "global_id", "local_id", "lsn", "epoch")
ENTRY = {"file": "00000000000000000008.xlog", "leader": "m1", "position": 0, "vclock": {"1": 7}}
OFFSET = json.dumps({"replicasets": {A: ENTRY}, "version": 1})


def write(folder: Path, table: str, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    columns = {name: pa.array([row[i] for row in rows]) for i, name in enumerate(names)}
    columns = {n: c.cast(pa.string()) if c.type == pa.null() else c for n, c in columns.items()}
    write_deltalake(str(folder / "aggregator.db" / table), pa.table(columns))


@pytest.fixture
def config(tmp_path: Path) -> str:
    members = [(1, M1, 1), (2, M2, 2), (4, C, 3), (5, D, 3)]
    rows = [(g, uuid, local, 1, A, lsn, None) for lsn, (g, uuid, local) in enumerate(members, 2)]
    write(tmp_path, "_cluster", CLUSTER, [(3, OWN, None, 0, "aggregator", 1, None), *rows])
    common = [(1, 1, 1, 1, None), (1, 2, 2, 1, None), (1, 3, 4, 1, None), (1, 32, 5, 1, None)]
    own = [(1, 1, 1, 1, "m2"), (1, 2, 2, 1, "m2"), (1, 3, 5, 1, "m2")]
    write(tmp_path, "_applier_map", MAP, [*common, *own])
    lsns = [(1, 1, 1, 9, 0), (1, 2, 2, 1, 0), (1, 2, 2, 3, 1), (1, 4, 3, 20, 0), (1, 5, 32, 30, 1)]
    in_the_making = (1, 1, 1, 77, 2)
    write(tmp_path, "_vclock", VCLOCK, [*lsns, (1, 1, 0, 4, 1), (0, 3, None, 5, 1), in_the_making])
    write(tmp_path, "_epochs", ("epoch", "end_offset"), [(0, OFFSET), (1, OFFSET)])
    file = tmp_path / "config.yaml"
    sources = "[{name: m1, path: m1}, {name: m2, path: m2}]"
    file.write_text(f"warehouse: {tmp_path}\ncheckpoint: checkpoint\nsources: {sources}\n", encoding="utf-8")
    return str(file)


def asked(capsys: pytest.CaptureFixture[str], config: str, *words: str) -> str:
    sys.argv = ["cluster", *words, "--config", config]
    code = main("cluster")
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out


def test_one_id_is_another_instances_in_each_source(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, config, "vclock", "m1") == "{1: 9, 2: 3, 3: 20}\n"
    assert asked(capsys, config, "vclock", "m2") == "{1: 9, 2: 3, 3: 30}\n"


def test_their_checksums_differ(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = f"{checksum({1: M1, 2: M2, 3: C}):08x}\n"
    assert asked(capsys, config, "checksum", "m1") == asked(capsys, config, "checksum", A) == common
    assert asked(capsys, config, "checksum", "m2") == f"{checksum({1: M1, 2: M2, 3: D}):08x}\n"


def test_show_lists_the_source_that_differs(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = asked(capsys, config, "show").splitlines()
    assert printed[0] == "allocation counter, own lsn 5"
    assert f"{A}: 32 is 5 from lsn 1" in printed
    assert f"{A} in the source m2: 3 is 5 from lsn 1" in printed
    assert any(line.endswith(f"{OWN} the aggregator") for line in printed)
