"""The fold over Arrow batches, against the fold of single keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.space import KeyPart
from tests.udfs.cases import pack
from tests.udfs.generated import steady
from udfs.fold_arrow import RESULT_FIELDS, RESULT_SPARK, fold_arrow
from udfs.fold_state import Fold
from udfs.tuple_format import TupleFormat
from udfs.version import Change, Version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

FORMATS = [TupleFormat({b"id": 0, b"n": 1}, key=(KeyPart(0, "unsigned"),))]
BY = ("replicaset_id", "key")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

INPUT = pa.schema(
    [
        ("replicaset_id", pa.int32()),
        ("key", pa.binary()),
        ("type", pa.string()),
        ("tuple", pa.binary()),
        ("operations", pa.binary()),
        ("index_base", pa.int32()),
        ("global_id", pa.int64()),
        ("lsn", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("layout", pa.int32()),
        ("created", pa.timestamp("us", tz="UTC")),
    ]
)

Row = dict[str, Any]


def time(value: int | None) -> datetime | None:
    return None if value is None else EPOCH + timedelta(microseconds=value)


def row(key: int, change: Change, replicaset_id: int = 1, created: int | None = None) -> Row:
    kind, data, operations, index_base, global_id, lsn, timestamp, layout = change
    values = (
        replicaset_id,
        pack([key]),
        kind,
        data,
        operations,
        index_base,
        global_id,
        lsn,
        time(timestamp),
        layout,
    )
    return dict(zip(INPUT.names, (*values, time(created)), strict=True))


def base(key: int, version: Version, kind: str = "VERSION") -> Row:
    data, global_id, lsn, timestamp, created, layout = version
    return row(key, Change(kind, data, None, None, global_id, lsn, timestamp, layout), created=created)


def put(key: int, value: Any, lsn: int) -> Row:
    return row(key, Change("REPLACE", pack([key, value]), None, None, 7, lsn, lsn * 10))


def plus(key: int, lsn: int, field: int = 2) -> Row:
    return row(key, Change("UPDATE", None, pack([["+", field, 1]]), 1, 7, lsn, lsn * 10))


def results(rows: list[Row], cuts: Sequence[int] = ()) -> list[Row]:
    bounds = [0, *sorted(cuts), len(rows)]
    batches = [pa.RecordBatch.from_pylist(rows[start:end], INPUT) for start, end in pairwise(bounds)]
    found: list[Row] = []
    for batch in fold_arrow(batches, BY, FORMATS):
        assert batch.schema == pa.schema([*(INPUT.field(name) for name in BY), *RESULT_FIELDS])
        assert batch.num_rows > 0
        found += batch.to_pylist()
    return found


def test_no_rows_give_no_batches() -> None:
    assert results([]) == []


def test_each_key_gives_one_row() -> None:
    found = results([put(1, 5, 1), plus(1, 2), put(2, 8, 3), plus(2, 4), plus(2, 5)])
    assert [(one["key"], one["tuple"], one["lsn"], one["state"]) for one in found] == [
        (pack([1]), pack([1, 6]), 2, "present"),
        (pack([2]), pack([2, 10]), 5, "present"),
    ]
    assert found[1]["timestamp"] == time(50)
    assert found[1]["created"] == time(30)
    assert found[1]["is_changed"] is True


def test_equal_keys_of_two_replicasets_are_two() -> None:
    rows = [row(1, Change("REPLACE", pack([1, n]), None, None, n, 1, 1), replicaset_id=n) for n in (1, 2)]
    assert [(one["replicaset_id"], one["tuple"]) for one in results(rows)] == [
        (1, pack([1, 1])),
        (2, pack([1, 2])),
    ]


def test_a_version_before_comes_first() -> None:
    version = Version(pack([1, 5]), 3, 40, 400, 300)
    found = results([base(1, version), plus(1, 41)])
    assert (found[0]["tuple"], found[0]["created"], found[0]["lsn"]) == (pack([1, 6]), time(300), 41)
    (alone,) = results([base(1, version)])
    assert (alone["is_changed"], alone["global_id"], alone["state"]) == (False, 3, "present")


def test_states() -> None:
    gone = row(1, Change("DELETE", None, None, None, 7, 9, 90))
    assert results([put(1, 5, 1), gone])[0]["state"] == "deleted"
    assert results([gone])[0]["state"] == "absent"
    assert results([base(1, Version(None, 3, 4, 5, None)), gone])[0]["state"] == "deleted"
    found = results([put(1, 5, 1), plus(1, 2, field=9), plus(1, 3)])[0]
    assert (found["state"], found["tuple"], found["lsn"]) == ("unfit", pack([1, 5]), 1)
    assert [(one["lsn"], one["code"], one["global_id"]) for one in found["faults"]] == [
        (2, 37, 7),
        (3, None, 7),
    ]
    assert found["faults"][0]["reason"] == "Field 9 was not found in the tuple"


def test_an_unfit_version_before_stays_so_until_a_whole_tuple_comes() -> None:
    unfit = base(1, Version(pack([1, 5]), 3, 4, 5, 5), "UNFIT")
    assert results([unfit, plus(1, 9)])[0]["state"] == "unfit"
    found = results([unfit, plus(1, 9), put(1, 0, 10), plus(1, 11)])[0]
    assert (found["state"], found["tuple"], len(found["faults"])) == ("present", pack([1, 1]), 1)


_changes = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 9)),
    st.tuples(st.just("plus"), st.sampled_from([2, 2, 2, 5])),
    st.tuples(st.just("delete"), st.just(0)),
)


def _make(key: int, lsn: int, what: tuple[str, int]) -> Row:
    if what[0] == "put":
        return put(key, what[1], lsn)
    return (
        plus(key, lsn, what[1])
        if what[0] == "plus"
        else row(key, Change("DELETE", None, None, None, 7, lsn, lsn))
    )


@steady
@given(st.lists(st.tuples(st.integers(1, 4), _changes), max_size=30), st.data())
def test_any_cut_into_batches_gives_the_fold_of_each_key(
    changes: list[tuple[int, tuple[str, int]]], data: st.DataObject
) -> None:
    ordered = sorted(enumerate(changes, 1), key=lambda one: (one[1][0], one[0]))
    rows = [_make(key, lsn, what) for lsn, (key, what) in ordered]
    found = results(rows, data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    assert [one["key"] for one in found] == [pack([key]) for key in sorted({key for key, _ in changes})]
    for one in found:
        state = Fold(FORMATS)
        for each in rows:
            if each["key"] == one["key"]:
                state.apply(_change(each))
        assert (one["tuple"], one["lsn"]) == (state.version.tuple, state.version.lsn)
        assert len(one["faults"]) == len(state.faults)


def _change(each: Row) -> Change:
    stamp = each["timestamp"]
    micros = None if stamp is None else round((stamp - EPOCH).total_seconds() * 1e6)
    given = (each[name] for name in ("type", "tuple", "operations", "index_base", "global_id", "lsn"))
    return Change._make((*given, micros, each["layout"]))


@pytest.mark.spark
def test_it_runs_in_spark_over_sorted_rows(spark: SparkSession) -> None:
    rows = [one for key in range(50) for one in (put(key, 0, 1), *(plus(key, lsn) for lsn in range(2, 20)))]
    rows.reverse()
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, INPUT))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return fold_arrow(batches, BY, FORMATS)

    ordered = frame.repartition(3, *BY).sortWithinPartitions(*BY, "lsn")
    found = ordered.mapInArrow(run, f"replicaset_id int, key binary, {RESULT_SPARK}").collect()
    assert {bytes(one["key"]): bytes(one["tuple"]) for one in found} == {
        pack([key]): pack([key, 18]) for key in range(50)
    }
    assert {one["timestamp"].microsecond for one in found} == {190}
