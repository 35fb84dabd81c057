"""One key's version after its changes."""

import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import TupleError
from schemas.space import KeyPart
from tests.udfs.cases import pack
from tests.udfs.generated import steady
from tests.udfs.versions.folded import fold
from udfs.operations.tuple_format import TupleFormat
from udfs.operations.update_rules import rules_of
from udfs.versions.key_state import Fold, RowChange, Version

FORMAT = TupleFormat({b"id": 0, b"n": 1}, primary_key=(KeyPart(0, "unsigned"),), rules=rules_of("2.6.0"))
RENAMED = TupleFormat({b"id": 0, b"x": 1, b"n": 2}, primary_key=(KeyPart(0, "unsigned"),))
ONE, TWO = 100, 200
"""Global ids."""


def put(kind: str, fields: list[Any], lsn: int, time: int | None, who: int = ONE) -> RowChange:
    return RowChange(kind, pack([1, *fields]), None, None, who, lsn, time)


def update(
    operations: list[Any], lsn: int, time: int | None, who: int = ONE, format_index: int = 0
) -> RowChange:
    return RowChange("UPDATE", None, pack(operations), 1, who, lsn, time, format_index)


def upsert(fields: list[Any], operations: list[Any], lsn: int, time: int | None) -> RowChange:
    return RowChange("UPSERT", pack([1, *fields]), pack(operations), 1, ONE, lsn, time)


def delete(lsn: int, time: int | None, who: int = ONE) -> RowChange:
    return RowChange("DELETE", None, None, None, who, lsn, time)


def folded(*changes: RowChange, base: Version | None = None) -> Version | None:
    return fold(base, changes, [FORMAT, RENAMED])


def version(
    fields: list[Any] | None, lsn: int, time: int | None, created: int | None, who: int = ONE
) -> Version:
    return Version(None if fields is None else pack([1, *fields]), who, lsn, time, created)


BASE = version([5], 10, 1000, 900)


def test_no_changes_leave_the_previous_version() -> None:
    assert folded() is None
    assert folded(base=BASE) is BASE


@pytest.mark.parametrize("kind", ["INSERT", "REPLACE"])
def test_only_an_insertion_sets_the_creation_time(kind: str) -> None:
    assert folded(put(kind, [7], 1, 50)) == version([7], 1, 50, 50)
    assert folded(put(kind, [7], 11, 1100, TWO), base=BASE) == version([7], 11, 1100, 900, TWO)


def test_a_chain_of_changes() -> None:
    result = folded(
        put("INSERT", [5], 1, 10), update([["+", 2, 1]], 2, 20, TWO), upsert([0], [["+", "n", 1]], 3, 30)
    )
    assert result == version([7], 3, 30, 10)
    nested = folded(
        put("INSERT", [{"a": 1}], 1, 10), update([["+", "n.a", 1]], 2, 20), update([["=", 3, 0]], 3, 30)
    )
    assert nested == version([{"a": 2}, 0], 3, 30, 10)


def test_an_update_or_delete_of_a_missing_tuple_changes_nothing() -> None:
    gone = version(None, 10, 1000, None)
    for base in (None, gone):
        assert folded(delete(11, 2000), update([["=", 2, 1]], 12, 3000), base=base) is base


def test_an_upsert_of_a_missing_tuple_inserts() -> None:
    assert folded(upsert([3], [["+", 2, 1]], 4, 40)) == version([3], 4, 40, 40)
    assert folded(delete(11, 1100), upsert([3], [["+", 2, 1]], 12, 1200), base=BASE) == version(
        [3], 12, 1200, 1200
    )


def test_an_upsert_that_would_change_the_key_has_no_effect() -> None:
    assert folded(upsert([3], [["=", 1, 2]], 11, 2000), base=BASE) is BASE


def test_an_upsert_with_all_operations_skipped_has_an_effect() -> None:
    assert folded(upsert([3], [["+", 9, 1]], 11, 2000), base=BASE) == version([5], 11, 2000, 900)


def test_a_deletion_clears_the_creation_time() -> None:
    assert folded(delete(11, 1100, TWO), base=BASE) == version(None, 11, 1100, None, TWO)
    again = folded(delete(11, 1100), put("INSERT", [6], 12, 1200), base=BASE)
    assert again == version([6], 12, 1200, 1200)


def test_time_never_goes_back() -> None:
    assert folded(put("REPLACE", [6], 11, 400), base=BASE) == version([6], 11, 1000, 900)
    assert folded(delete(11, 400), base=BASE) == version(None, 11, 1000, None)


def test_a_new_life_has_its_own_time() -> None:
    later = folded(delete(11, 1100), put("INSERT", [6], 12, 500), base=BASE)
    assert later == version([6], 12, 500, 500)
    # The same where the deletion came in a batch before.
    assert folded(put("INSERT", [6], 12, 500), base=version(None, 11, 1100, None)) == later
    assert folded(put("INSERT", [6], 12, 500)) == later


def test_a_row_without_a_time_keeps_the_previous_time() -> None:
    assert folded(put("REPLACE", [6], 11, None), base=BASE) == version([6], 11, 1000, 900)
    assert folded(put("INSERT", [6], 0, None)) == version([6], 0, None, None)
    assert folded(put("INSERT", [6], 0, None), update([["+", 2, 1]], 5, 70)) == version([7], 5, 70, None)


def test_each_row_is_read_by_the_format_of_its_moment() -> None:
    result = folded(
        put("INSERT", [5, 6], 1, 10),
        update([["+", "n", 1]], 2, 20),
        update([["+", "n", 1]], 3, 30, format_index=1),
    )
    assert result == Version(pack([1, 6, 7]), ONE, 3, 30, 10, 1)


def test_the_index_base_defaults_to_0() -> None:
    row = RowChange("UPDATE", None, pack([["+", 1, 1]]), None, ONE, 11, 2000)
    assert folded(row, base=BASE) == version([6], 11, 2000, 900)


def test_an_update_may_hold_its_operations_where_the_log_has_them() -> None:
    row = RowChange("UPDATE", pack([["+", 2, 1]]), None, 1, ONE, 11, 2000)
    assert folded(row, base=BASE) == version([6], 11, 2000, 900)


@pytest.mark.parametrize(
    ("row", "code", "reason"),
    [
        (update([["+", 2, "x"]], 11, 2000), 26, "expected a number"),
        (update([["+", 9, 1]], 11, 2000), 37, "Field 9 was not found"),
        (update([["=", 1, 9]], 11, 2000), 94, "primary index"),
        (RowChange("UPDATE", None, None, 1, ONE, 11, 2000), 20, "lacks its tuple or its operations"),
        (RowChange("REPLACE", None, None, 1, ONE, 11, 2000), 20, "lacks its tuple or its operations"),
        (RowChange("UPSERT", None, b"\x90", 1, ONE, 11, 2000), None, None),
        (RowChange("TYPE_77", b"\x91\x01", None, 1, ONE, 11, 2000), None, "TYPE_77"),
    ],
)
def test_a_row_that_cannot_be_applied_is_named(row: RowChange, code: int | None, reason: str | None) -> None:
    with pytest.raises(TupleError, match=reason or "lacks") as caught:
        folded(row, base=BASE)
    fields = pickle.loads(pickle.dumps(caught.value)).fields
    assert fields.get("code") == (code if reason else 20)
    assert (fields["global_id"], fields["lsn"]) == (ONE, 11)


def test_a_tuple_is_unknown_until_a_row_gives_it_whole() -> None:
    state = Fold([FORMAT])
    state.start(BASE)
    state.apply(update([["+", 9, 1]], 11, 1100))
    state.apply(update([["+", 2, 1]], 12, 1200))
    assert (state.is_unfit, state.is_changed, [fault.lsn for fault in state.faults]) == (
        True,
        False,
        [11, 12],
    )
    assert state.version == BASE
    assert "unknown" in state.faults[1].reason
    state.apply(put("REPLACE", [8], 13, 1300))
    state.apply(update([["+", 2, 1]], 14, 1400))
    assert (state.is_unfit, state.version) == (False, version([9], 14, 1400, 900))
    assert len(state.faults) == 2


def test_a_deletion_makes_an_unknown_tuple_known() -> None:
    state = Fold([FORMAT])
    state.start(BASE, is_unfit=True)
    state.apply(update([["+", 2, 1]], 11, 1100))
    assert state.is_unfit
    state.apply(delete(12, 1200))
    assert (state.is_unfit, state.is_present, state.version) == (False, False, version(None, 12, 1200, None))


def test_an_insertion_that_cannot_be_applied_leaves_the_key_unknown_until_it_is_deleted() -> None:
    state = Fold([FORMAT])
    state.apply(upsert([0], [["?", 2, 1]], 11, 1100))
    assert state.is_unfit
    state.apply(delete(12, 1200))
    assert (state.is_unfit, state.version) == (False, version(None, 12, 1200, None))


_rows = st.one_of(
    st.builds(
        put,
        st.sampled_from(["INSERT", "REPLACE"]),
        st.lists(st.integers(0, 5), max_size=3),
        st.just(0),
        st.integers(0, 99),
    ),
    st.builds(
        update,
        st.lists(
            st.sampled_from([["+", 2, 1], ["=", 2, 7], ["!", 2, 3], ["#", 2, 1], ["-", 3, 1]]),
            min_size=1,
            max_size=2,
        ),
        st.just(0),
        st.integers(0, 99),
    ),
    st.builds(
        upsert,
        st.lists(st.integers(0, 5), max_size=2),
        st.lists(st.sampled_from([["+", 2, 1], ["=", 3, 7], ["#", 9, 1], ["=", 1, 4]]), max_size=3),
        st.just(0),
        st.integers(0, 99),
    ),
    st.builds(delete, st.just(0), st.integers(0, 99)),
)


def run(rows: Sequence[RowChange], cuts: Sequence[int]) -> tuple[Version, bool, list[int]]:
    """Fold rows batch by batch, as the job does: it stores a version, and whether it is known, between batches."""
    faults: list[int] = []
    base, is_unfit = None, False
    bounds = [0, *sorted(cuts), len(rows)]
    for start, end in pairwise(bounds):
        state = Fold([FORMAT])
        state.start(base, is_unfit)
        for row in rows[start:end]:
            state.apply(row)
        if state.is_changed or state.is_unfit:
            base, is_unfit = state.version, state.is_unfit
        faults += [fault.lsn for fault in state.faults]
    return base or Version(None, 0, 0, None, None), is_unfit, faults


@steady
@given(st.lists(_rows, max_size=12), st.data())
def test_any_division_into_batches_gives_the_same_result(rows: list[RowChange], data: st.DataObject) -> None:
    numbered = [row._replace(lsn=lsn) for lsn, row in enumerate(rows, 1)]
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=4))
    assert run(numbered, cuts) == run(numbered, [])


@steady
@given(st.lists(_rows, max_size=12))
def test_time_never_goes_back_in_a_life(rows: list[RowChange]) -> None:
    state, last = Fold([FORMAT]), -1
    for row in rows:
        last = last if state.is_present else -1
        state.apply(row)
        assert state.version.timestamp is None or not state.is_present or state.version.timestamp >= last
        last = state.version.timestamp or last
        assert (state.version.created is not None) == (
            state.is_present and not state.is_unfit
        ) or state.is_unfit
