"""The aggregator's own rows of `_changelog`: signed, without holes, each change once."""

from datetime import UTC, datetime

import msgpack

from pipeline.changelog.cluster_rows import cluster_rows, member_tuple
from schemas.tables import CHANGELOG
from tests.pipeline.logs import A1, A2, A
from udfs.remap.cluster_replace import OWN_REPLICASET_UUID, Member

NOW = datetime(2026, 1, 2, tzinfo=UTC)
OWN = Member(9, "00000000-0000-4000-8000-0000000000ff", None, 0, OWN_REPLICASET_UUID, lsn=1)
FIRST, LATER = Member(2, A1, 1, 1, A, lsn=2), Member(3, A2, 2, 1, A, lsn=5, expelled=True)


def test_each_change_is_a_row_of_its_own_lsn() -> None:
    rows = cluster_rows([OWN, FIRST], 0, OWN, 7, NOW)
    assert [(row["lsn"], row["tsn"], row["type"], row["epoch"]) for row in rows] == [
        (1, 1, "REPLACE", 7),
        (2, 2, "REPLACE", 7),
    ]
    assert {(row["global_id"], row["instance_uuid"], row["replicaset_id"]) for row in rows} == {
        (9, OWN.uuid, 0)
    }
    assert {name for row in rows for name in row} <= set(CHANGELOG.fieldNames())


def test_a_change_that_was_replaced_meanwhile_is_a_nop() -> None:
    rows = cluster_rows([LATER], 2, OWN, 8, NOW)
    assert [(row["lsn"], row["type"]) for row in rows] == [(3, "NOP"), (4, "NOP"), (5, "REPLACE")]
    assert [row["tuple"] for row in rows[:2]] == [None, None]


def test_nothing_new_is_no_row() -> None:
    assert cluster_rows([], 5, OWN, 8, NOW) == []


def test_the_tuple_has_the_fields_of_the_documents() -> None:
    assert msgpack.unpackb(member_tuple(LATER)) == [3, A2, 2, 1, 5]
