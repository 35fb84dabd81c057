"""Two members lack different files of their replicaset's log: together they give the same tables as a whole log."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import pyarrow.parquet as pq
import pytest

from pipeline.batch import BatchWriter, MakeDistributed
from pipeline.commit.load import load_state
from pipeline.requests.read_again import TimeSpan, read_source_again
from schemas.iproto import RequestType, SystemSpace
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import REPLICASET_KEY, Meta
from sources.xlog.format.writer import Fsync, XlogWriter
from tests.bodies import encode_body
from tests.jobs.written import BEGAN, replicasets_of
from tests.pipeline.deployment import Deployment
from tests.soaked import partly_soaked
from warehouse.warehouse import Warehouse

S = 600
FIELDS = [{"name": "id", "type": "unsigned"}, {"name": "value", "type": "integer"}]
MEMBERS = {name: f"aaaaaaaa-0000-4000-8000-0000000000{name}" for name in ("a1", "a2")}
KEYS = 4
LOADED = (
    *("settled", "read", "cluster", "applier_map", "spaces", "tables", "refused"),
    *("local_lsns", "id_translations", "has_loss", "unknown_spaces"),
)
"""Fields of a replicaset's state that a start loads as the batch before left them."""

COMPARED = 0.2
"""The part of the batches after which the state is loaded, which takes as long as a batch."""

CHANGES = 14
"""Changes in a log whose files a test names: few, since with the budget 1 each of them is a batch."""


@dataclass(frozen=True)
class Row:
    """A row of the replicaset's log, which is a transaction and a block of its own."""

    origin: int
    lsn: int
    data: bytes


class Log:
    """The log of a replicaset, in the one order in which both of its members have it."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.header: dict[str, str] = {}
        for number, uuid in enumerate(MEMBERS.values(), start=1):
            self.insert(SystemSpace.CLUSTER, number, uuid)
        self.insert(SystemSpace.SPACE, S, 1, "s", "memtx", 0, {}, FIELDS)
        self.insert(SystemSpace.INDEX, S, 0, "pk", "tree", {"unique": True}, [[0, "unsigned"]])

    def insert(self, space_id: int, *values: Any, origin: int = 1) -> None:
        body = encode_body(space_id=space_id, tuple_=msgpack.packb(list(values)))
        self.add(RequestType.INSERT, body, origin)

    def add(self, kind: RequestType, body: bytes, origin: int = 1) -> None:
        lsn = 1 + sum(row.origin == origin for row in self.rows)
        at = BEGAN + len(self.rows)
        self.rows.append(Row(origin, lsn, encode_row(kind, body, replica_id=origin, lsn=lsn, timestamp=at)))

    def change(self, draw: random.Random, held: dict[int, int], origin: int) -> None:
        """Change one of the masters' few keys, so that each row depends on those before it, also of other masters."""
        key = draw.randrange(KEYS)
        if key not in held:
            held[key] = 0
            self.insert(S, key, 0, origin=origin)
        elif draw.random() < 0.2:
            del held[key]
            self.add(RequestType.DELETE, encode_body(space_id=S, key=msgpack.packb([key])), origin)
        else:
            content = {"key": msgpack.packb([key]), "operations": msgpack.packb([["+", 1, 1]])}
            body = encode_body(space_id=S, index_base=0, is_update=True, **content)
            self.add(RequestType.UPDATE, body, origin)

    def write(self, folder: Path, member: str, begin: int, end: int) -> None:
        vclock: dict[int, int] = {}
        for row in self.rows[:begin]:
            vclock[row.origin] = row.lsn
        meta = Meta("XLOG", "0.13", MEMBERS[member], vclock, None, {"Version": "2.11.0", **self.header})
        folder.mkdir(parents=True, exist_ok=True)
        with XlogWriter(folder / f"{sum(vclock.values()):020d}.xlog", meta, Fsync.NEVER) as log:
            for row in self.rows[begin:end]:
                log.write([row.data])
                log.flush()


def log_of(draw: random.Random, origins: Sequence[int], rows: int = 40) -> Log:
    log, held = Log(), dict[int, int]()
    for _ in range(rows):
        log.change(draw, held, draw.choice(origins))
    return log


def read_while_checked(deployment: Deployment, budget: int | None) -> None:
    """Read all that there is; after some batches and after the last one, the state is what a start loads."""
    draw = random.Random(deployment.batches)
    with deployment.writer() as (warehouse, writer):
        while deployment.batch(writer, budget) is not None:
            if draw.random() < COMPARED:
                assert_is_loaded(writer, warehouse)
        assert_is_loaded(writer, warehouse)


def assert_is_loaded(writer: BatchWriter, warehouse: Warehouse) -> None:
    loaded = load_state(warehouse).replicasets
    for uuid, one in writer.state.replicasets.items():
        for name in LOADED:
            assert getattr(one, name) == getattr(loaded[uuid], name), name


def outcome(deployment: Deployment) -> dict[str, Any]:
    """Return what must not depend on files and cuts."""
    order = ("replica_id", "epoch", "segment", "position", "row")
    rows = [row for row in deployment.rows("_changelog") if row["source"] != "aggregator"]
    rows.sort(key=lambda row: [row[name] for name in order])
    names = ("replica_id", "lsn", "global_id", "space", "state", "hash")
    return {
        "s": deployment.table("s"),
        "_changelog": [[row[name] for name in names] for row in rows],
        "_gaps": open_gaps(deployment),
        "_pending": sorted((row["replica_id"], row["lsn"]) for row in deployment.rows("_pending")),
        "_quarantine": len(deployment.rows("_quarantine")),
    }


def open_gaps(deployment: Deployment) -> list[tuple[int, int, int]]:
    newest: dict[tuple[int, int, int], str] = {}
    for row in sorted(deployment.rows("_gaps"), key=lambda row: int(row["epoch"])):
        newest[row["local_id"], row["first_lsn"], row["last_lsn"]] = row["state"]
    return [gap for gap, state in newest.items() if state != "filled"]


def whole(folder: Path, log: Log) -> dict[str, Any]:
    """Return the outcome of an uncut run of the whole log."""
    log.write(folder / "logs" / "a1", "a1", 0, len(log.rows))
    deployment = Deployment(folder, {"a1": folder / "logs" / "a1"}, replicasets_of("a1"))
    deployment.run()
    return outcome(deployment)


def deployment_of(folder: Path, distributed: MakeDistributed | None = None) -> Deployment:
    return Deployment(folder, {}, replicasets_of(*MEMBERS), distributed, on_gap="hold")


def lead(deployment: Deployment, member: str, budget: int | None) -> None:
    """Let a member alone be followed."""
    deployment.sources = {member: deployment.folder / member}
    read_while_checked(deployment, budget)


def write_files(
    folder: Path, log: Log, member: str, bounds: Iterable[int], lacking: Iterable[int] = ()
) -> None:
    edges = [0, *bounds, len(log.rows)]
    for number, (begin, end) in enumerate(pairwise(edges)):
        if number not in lacking:
            log.write(folder / member, member, begin, end)


@pytest.mark.parametrize("budget", [None, 1])
def test_a_file_that_waits_belongs_between_two_of_another_member(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None
) -> None:
    log = log_of(random.Random(1), [1], CHANGES)
    bounds = (7, 10, 13, 15)
    write_files(tmp_path, log, "a1", bounds, lacking={1})
    write_files(tmp_path, log, "a2", bounds, lacking={2})
    deployment = deployment_of(tmp_path, executor)
    lead(deployment, "a1", budget)
    assert open_gaps(deployment) == [(1, 8, 10)]
    lead(deployment, "a2", budget)
    assert outcome(deployment) == whole(tmp_path / "whole", log)


@pytest.mark.parametrize("budget", [None, 1])
def test_files_of_two_members_alternate(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None
) -> None:
    log = log_of(random.Random(2), [1], CHANGES)
    bounds = (5, 7, 9, 11, 13, 16)
    write_files(tmp_path, log, "a1", bounds, lacking={1, 3, 5})
    write_files(tmp_path, log, "a2", bounds, lacking={2, 4, 6})
    deployment = deployment_of(tmp_path, executor)
    lead(deployment, "a1", budget)
    lead(deployment, "a2", budget)
    assert outcome(deployment) == whole(tmp_path / "whole", log)


def test_rows_that_wait_on_are_not_written_again(tmp_path: Path, executor: MakeDistributed | None) -> None:
    log = log_of(random.Random(4), [1], 30)
    bounds = (7, 10, 20)
    write_files(tmp_path, log, "a1", bounds, lacking={1})
    deployment = deployment_of(tmp_path, executor)
    lead(deployment, "a1", 300)
    folder = tmp_path / "warehouse" / "aggregator.db" / "_pending"
    written = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
    waiting = len(deployment.rows("_pending"))
    assert waiting == len(log.rows) - 10
    assert waiting <= written <= 2 * waiting, "besides joined files, each row is written once"
    write_files(tmp_path, log, "a2", bounds)
    lead(deployment, "a2", 300)
    assert outcome(deployment) == whole(tmp_path / "whole", log)


@pytest.mark.parametrize("budget", partly_soaked([1], [None]))
def test_a_file_before_those_that_wait_does_not_fill_the_hole(tmp_path: Path, budget: int | None) -> None:
    log = log_of(random.Random(3), [1], CHANGES)
    bounds = (7, 10, 13, 16)
    write_files(tmp_path, log, "a1", bounds, lacking={1, 2, 3})
    write_files(tmp_path, log, "a2", bounds, lacking={1, 3, 4})
    deployment = deployment_of(tmp_path)
    lead(deployment, "a1", budget)
    lead(deployment, "a2", budget)
    rows = len(log.rows)
    assert outcome(deployment)["_pending"] == [(1, lsn) for lsn in (*range(11, 14), *range(17, rows + 1))]
    write_files(tmp_path, log, "a1", bounds, lacking={0, 2, 4})
    lead(deployment, "a1", budget)
    assert outcome(deployment) == whole(tmp_path / "whole", log)


def log_of_two_masters() -> Log:
    """Return a log in which row 6, master 2's first one, is an UPDATE of a key that master 1 inserts in row 5."""
    log = log_of(random.Random(0), [1], rows=0)
    log.insert(S, 1, 10)
    log.insert(S, 2, 20)
    content = {"key": msgpack.packb([2]), "operations": msgpack.packb([["+", 1, 1]])}
    log.add(RequestType.UPDATE, encode_body(space_id=S, index_base=0, is_update=True, **content), origin=2)
    return log


@pytest.mark.parametrize("budget", [None, 1])
def test_a_row_of_another_master_waits_for_a_missing_file(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None
) -> None:
    log = log_of_two_masters()
    write_files(tmp_path, log, "a1", (5, 6), lacking={1})
    deployment = deployment_of(tmp_path, executor)
    lead(deployment, "a1", budget)
    assert outcome(deployment)["_pending"] == [(2, 1)]
    assert open_gaps(deployment) == [(1, 6, 6)]
    write_files(tmp_path, log, "a2", (5, 6))
    lead(deployment, "a2", budget)
    assert outcome(deployment) == whole(tmp_path / "whole", log)


def test_a_row_of_another_master_waits_for_a_missing_file_of_a_spool(tmp_path: Path) -> None:
    log = log_of_two_masters()
    (replicaset,) = set(replicasets_of("a1").values())
    log.header = {REPLICASET_KEY: replicaset}
    write_files(tmp_path, log, "a1", (5, 6), lacking={1})
    deployment = deployment_of(tmp_path)
    lead(deployment, "a1", None)
    assert outcome(deployment)["_pending"] == [(2, 1)]
    assert open_gaps(deployment) == [(1, 6, 6)]
    log.write(tmp_path / "a1", "a1", 5, 6)
    with deployment.writer() as (_, writer):
        read_source_again(deployment.config(), writer, "a1", TimeSpan(), lambda *_: None)
    log.header = {}
    assert outcome(deployment) == whole(tmp_path / "whole", log)


def test_a_missing_file_whose_loss_is_accepted_is_recorded_once(tmp_path: Path) -> None:
    log = log_of_two_masters()
    log.insert(S, 3, 30)
    write_files(tmp_path, log, "a1", (5, 6, 7), lacking={1})
    deployment = Deployment(tmp_path, {"a1": tmp_path / "a1"}, replicasets_of("a1"), on_gap="skip")
    read_while_checked(deployment, 1)
    (gap,) = deployment.rows("_gaps")
    assert (gap["local_id"], gap["first_lsn"], gap["last_lsn"], gap["state"]) == (1, 6, 6, "skipped")
    # The key of the UPDATE was in the missing file.
    assert sorted(row["_lsn"] for row in deployment.table("s").values()) == [5, 7]


def test_a_whitelist_misses_no_rows_of_others(tmp_path: Path) -> None:
    log = log_of_two_masters()
    log.insert(S, 3, 30)
    write_files(tmp_path, log, "a1", (5, 6, 7))
    only = {"a1": [MEMBERS["a1"]]}
    deployment = Deployment(tmp_path, {"a1": tmp_path / "a1"}, replicasets_of("a1"), origins=only)
    deployment.run()
    assert {row["replica_id"] for row in deployment.rows("_changelog") if row["source"] == "a1"} == {1}
    assert len(deployment.table("s")) == 3
    assert not deployment.rows("_gaps")


def drawn_bounds(draw: random.Random, rows: int) -> list[int]:
    return sorted(draw.sample(range(6, rows), draw.randint(3, 9)))


def drawn_lack(draw: random.Random, bounds: Sequence[int], rows: int, held: set[int]) -> set[int]:
    """Return numbers of files that a member lacks; the rows in `held` are taken from others."""
    edges = [0, *bounds, rows]
    lacking = set()
    for number in range(1, len(edges) - 1):
        own = set(range(edges[number], edges[number + 1]))
        if own <= held and draw.random() < 0.5:
            lacking.add(number)
    return lacking


def rows_had(bounds: Sequence[int], rows: int, lacking: set[int]) -> set[int]:
    edges = [0, *bounds, rows]
    return {
        row
        for number in range(len(edges) - 1)
        if number not in lacking
        for row in range(edges[number], edges[number + 1])
    }


@pytest.mark.parametrize("origins", partly_soaked([[1, 2]], [[1]]), ids=["two masters", "one master"])
@pytest.mark.parametrize("seed", partly_soaked((0,), (1, 2, 3, 4, 5)))
def test_any_files_that_two_members_lack(tmp_path: Path, seed: int, origins: Sequence[int]) -> None:
    draw = random.Random(seed)
    log = log_of(draw, origins)
    count = len(log.rows)
    same = draw.random() < 0.5
    first = drawn_bounds(draw, count)
    second = first if same else drawn_bounds(draw, count)
    lacks_first = drawn_lack(draw, first, count, set(range(count)))
    lacks_second = drawn_lack(draw, second, count, rows_had(first, count, lacks_first))
    write_files(tmp_path, log, "a1", first, lacks_first)
    write_files(tmp_path, log, "a2", second, lacks_second)
    deployment = deployment_of(tmp_path)
    order = draw.sample(list(MEMBERS), 2)
    for member in order:
        lead(deployment, member, draw.choice((None, 1, 300, 700)))
    assert outcome(deployment) == whole(tmp_path / "whole", log)
