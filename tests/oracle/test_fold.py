"""The fold's own rules on hand-made rows: origin, time and creation of versions, and what DDL does to a space."""

from __future__ import annotations

from typing import Any

from tests.oracle import Folded, FoldedSpace, Row, Version, fold, mp
from tests.oracle.fold import INDEX, SPACE, TRUNCATE
from tests.oracle.log import CONFIRM, DELETE, INSERT, NOP, REPLACE, ROLLBACK, UPDATE, UPSERT

ID = 512
SPACE_ID, INDEX_BASE, KEY, TUPLE, OPERATIONS = 0x10, 0x15, 0x20, 0x21, 0x28


class Log:
    """Collects rows; each takes the next lsn and a timestamp."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, kind: int, at: float = 1.0, origin: int = 1, **body: Any) -> Log:
        keys = {"space": SPACE_ID, "base": INDEX_BASE, "key": KEY, "tuple": TUPLE, "ops": OPERATIONS}
        keys |= {"owner": 2, "lsn": 3}
        raw = {keys[name]: mp.encode(value) for name, value in body.items()}
        self.rows.append(Row(kind, origin, 0, len(self.rows) + 1, at, None, 0, raw))
        return self

    def define(self, space_id: int = ID, name: str = "s", engine: str = "memtx") -> Log:
        form = [{"name": "id", "type": "unsigned"}, {"name": "v", "type": "any"}]
        self.add(INSERT, space=SPACE, tuple=[space_id, 1, name, engine, 0, {}, form])
        return self.add(INSERT, space=INDEX, tuple=[space_id, 0, "p", "tree", {}, [[0, "integer"]]])

    def fold(self, snapshot: Log | None = None) -> Folded:
        return fold(snapshot.rows if snapshot else [], self.rows, (2, 6))


def held(folded: Folded, name: str = "s") -> list[Any]:
    return sorted(list(mp.decode(one)) for one in folded.by_name()[name].tuples())


def version(folded: Folded, key: int, name: str = "s") -> Version:
    space = folded.by_name()[name]
    return space.versions[(("number", key),)]


def test_the_last_change_names_origin_lsn_and_time() -> None:
    log = Log().define().add(INSERT, at=5.0, space=ID, tuple=[1, "a"])
    log.add(UPDATE, at=7.5, origin=2, space=ID, key=[1], base=1, tuple=[["=", 2, "b"]])
    found = version(log.fold(), 1)
    assert (found.replica_id, found.lsn, found.timestamp, found.created) == (2, 4, 7_500_000, 5_000_000)


def test_a_deleted_key_stays_as_a_deleted_version() -> None:
    log = Log().define().add(INSERT, at=5.0, space=ID, tuple=[1, "a"]).add(DELETE, at=6.0, space=ID, key=[1])
    folded = log.fold()
    assert held(folded) == []
    assert (version(folded, 1).tuple, version(folded, 1).timestamp) == (None, 6_000_000)


def test_a_key_that_comes_back_is_created_anew() -> None:
    log = Log().define().add(INSERT, at=5.0, space=ID, tuple=[1, "a"]).add(DELETE, at=6.0, space=ID, key=[1])
    log.add(UPSERT, at=8.0, space=ID, base=1, tuple=[1, "b"], ops=[["=", 2, "c"]])
    folded = log.fold()
    assert held(folded) == [[1, "b"]]
    assert version(folded, 1).created == 8_000_000


def test_a_versions_time_never_goes_back() -> None:
    log = (
        Log()
        .define()
        .add(INSERT, at=9.0, space=ID, tuple=[1, "a"])
        .add(REPLACE, at=3.0, space=ID, tuple=[1, "b"])
    )
    log.add(DELETE, at=2.0, space=ID, key=[1]).add(INSERT, at=1.0, space=ID, tuple=[1, "c"])
    found = version(log.fold(), 1)
    assert (found.timestamp, found.created) == (9_000_000, 9_000_000)


def test_what_finds_nothing_changes_no_version() -> None:
    log = Log().define().add(DELETE, space=ID, key=[1])
    log.add(UPDATE, space=ID, key=[2], base=1, tuple=[["=", 2, "b"]]).add(NOP)
    assert log.fold().by_name()["s"].versions == {}


def test_an_upsert_that_would_change_the_key_changes_nothing() -> None:
    log = Log().define().add(INSERT, space=ID, tuple=[1, "a"])
    log.add(UPSERT, space=ID, base=1, tuple=[1, "b"], ops=[["=", 1, 5], ["=", 2, "c"]])
    assert held(log.fold()) == [[1, "a"]]


def test_rows_of_a_snapshot_have_neither_origin_nor_time() -> None:
    snapshot = Log().add(INSERT, at=99.0, space=ID, tuple=[1, "a"]).define()
    folded = Log().add(REPLACE, at=5.0, space=ID, tuple=[2, "b"]).fold(snapshot)
    assert version(folded, 1) == Version(mp.encode([1, "a"]), 0, 0, 0, 0)
    assert held(folded) == [[1, "a"], [2, "b"]]


def test_a_truncate_empties_its_space_alone() -> None:
    log = Log().define().define(ID + 1, "other").add(INSERT, space=ID, tuple=[1, "a"])
    log.add(INSERT, space=ID + 1, tuple=[1, "a"])
    log.add(UPSERT, space=TRUNCATE, base=1, tuple=[ID, 1], ops=[["+", 2, 1]])
    log.add(INSERT, space=ID, tuple=[2, "b"])
    folded = log.fold()
    assert held(folded) == [[2, "b"]]
    assert held(folded, "other") == [[1, "a"]]
    assert list(folded.by_name()["s"].versions) == [(("number", 2),)]


def test_a_dropped_space_is_gone_and_its_name_free() -> None:
    log = Log().define().add(INSERT, space=ID, tuple=[1, "a"])
    log.add(DELETE, space=INDEX, key=[ID, 0]).add(DELETE, space=SPACE, key=[ID])
    assert log.fold().by_name() == {}
    assert ID not in log.fold().spaces
    log.define(ID + 1).add(INSERT, space=ID + 1, tuple=[7, "b"])
    assert held(log.fold()) == [[7, "b"]]


def test_a_renamed_space_keeps_its_rows() -> None:
    log = Log().define().add(INSERT, space=ID, tuple=[1, "a"])
    log.add(UPDATE, space=SPACE, key=[ID], base=1, tuple=[["=", 3, "t"]])
    assert held(log.fold(), "t") == [[1, "a"]]


def test_a_changed_primary_key_finds_the_old_rows() -> None:
    log = Log().define().add(INSERT, space=ID, tuple=[1, 5]).add(INSERT, space=ID, tuple=[2, 6])
    parts = [[0, "integer"], [1, "integer"]]
    log.add(REPLACE, space=INDEX, tuple=[ID, 0, "p", "tree", {}, parts])
    log.add(DELETE, space=ID, key=[1, 5]).add(INSERT, space=ID, tuple=[2, 7])
    assert held(log.fold()) == [[2, 6], [2, 7]]


def test_operations_name_fields_by_the_format_of_their_time() -> None:
    log = Log().define().add(INSERT, space=ID, tuple=[1, "a"])
    form = [{"name": "id", "type": "unsigned"}, ["w", "any"]]
    log.add(UPDATE, space=SPACE, key=[ID], base=1, tuple=[["=", 7, form]])
    log.add(UPDATE, space=ID, key=[1], base=1, tuple=[["=", "w", "b"]])
    assert held(log.fold()) == [[1, "b"]]


def test_a_rolled_back_row_leaves_what_it_would_have_changed() -> None:
    log = Log().define().add(INSERT, space=ID, tuple=[1, "a"]).add(CONFIRM, owner=1, lsn=3)
    log.add(REPLACE, space=ID, tuple=[1, "b"]).add(INSERT, space=ID, tuple=[2, "c"])
    log.add(ROLLBACK, owner=1, lsn=5).add(INSERT, space=ID, tuple=[3, "d"])
    assert held(log.fold()) == [[1, "a"], [3, "d"]]


def test_a_vinyl_space_of_the_snapshot_lacks_what_is_in_runs() -> None:
    assert not Log().fold(Log().define(engine="vinyl")).by_name()["s"].is_complete
    assert Log().define(engine="vinyl").fold().by_name()["s"].is_complete


def test_engines_without_rows_hold_none() -> None:
    log = Log().define(engine="blackhole").add(INSERT, space=ID, tuple=[1, "a"])
    assert held(log.fold()) == []


def test_a_space_without_a_primary_key_is_none_yet() -> None:
    assert Folded((2, 6), {ID: FoldedSpace(ID, "s")}).by_name() == {}
