"""The escape of names: its results, that it is reversible, and that no two names have the same result."""

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from schemas.errors import WarehouseError
from schemas.names import (
    NAME_MAX_BYTES,
    column_name,
    exact_table,
    is_space_table,
    local_instance_of,
    replicaset_label,
    replicaset_of,
    table_name,
    table_of_exact_tuples,
    unescape,
)
from schemas.tables import SYSTEM_TABLES

ORDINARY = st.from_regex(r"[a-z][a-z0-9_]{0,30}", fullmatch=True).filter(lambda name: "__" not in name)
ANY = st.text(max_size=12) | st.text(st.characters(codec=None), max_size=6)
"""Also lone surrogates: how names that are not UTF-8 arrive."""
TRICKY = st.lists(
    st.sampled_from(
        [
            "__",
            "_",
            "q",
            "d",
            "u",
            "x",
            "l",
            "h",
            "0",
            "1",
            "2",
            "_2d",
            "a",
            "A",
            "Я",
            "-",
            "__u0",
            "f" * 32,
            "Z",
        ]
    ),
    max_size=7,
).map("".join)
NAMES = ANY | TRICKY | ORDINARY


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accounts", "accounts"),
        ("order_2", "order_2"),
        ("2024", "_2024__d"),
        ("1-A", "_1_a__dx1_2du2"),
        ("_2024", "_2024__q"),
        ("select", "select"),
        ("SQLT", "sqlt__u0_4"),
        ("AZ", "az__u0_2"),
        ("userName", "username__u4"),
        ("CamelCase", "camelcase__u0u5"),
        ("my-space", "my_space__x2_2d"),
        ("a.b", "a_b__x1_2e"),
        ("a b-C", "a_b_c__x1_20x3_2du4"),
        ("имя", "_____x0_d0b8d0bcd18f"),
        ("_lsn", "_lsn__q"),
        ("_cluster", "_cluster__q"),
        ("", "__q"),
        ("sqlt__u0_4", "sqlt__u0_4__q"),
        ("a__q", "a__q__q"),
        ("loc__l3", "loc__l3__q"),
        ("two__parts", "two__parts"),
    ],
)
def test_names_and_their_escapes(name: str, expected: str) -> None:
    assert table_name(name) == expected
    assert column_name(name) == expected
    assert unescape(expected) == name


@given(NAMES)
@example("A_")
@example("_" * 9)
@example("x__h" + "0" * 32)
def test_unescape_undoes_the_escape(name: str) -> None:
    assert unescape(table_name(name)) == name


@given(NAMES)
def test_escaped_names_suit_every_reader(name: str) -> None:
    assert re.fullmatch(r"[a-z_][a-z0-9_]{0,254}", table_name(name))


@given(NAMES, NAMES)
@example("sqlt", "SQLT")
@example("my-space", "my_space__x2_2d")
@example("my-space", "my.space")
def test_no_two_names_have_one_escape(one: str, other: str) -> None:
    assume(one != other)
    assert table_name(one).casefold() != table_name(other).casefold()


@given(NAMES)
@example("2024")
@example("Счета")
@example("_cluster")
def test_a_table_of_a_space_is_known_by_its_name(name: str) -> None:
    assume(not name.startswith("_exact_"))
    assert is_space_table(table_name(name))
    assert not is_space_table(exact_table(table_name(name)))


@pytest.mark.parametrize("name", [*SYSTEM_TABLES, "_rid", "_validations"])
def test_no_system_table_has_the_name_of_a_spaces_table(name: str) -> None:
    assert not is_space_table(name)


@given(ORDINARY)
def test_ordinary_names_stay(name: str) -> None:
    assert table_name(name) == name


@given(NAMES)
def test_an_escape_is_never_a_system_tables_name(name: str) -> None:
    """System tables' names begin with an underscore and have no double one."""
    escaped = column_name(name)
    assert not escaped.startswith("_") or re.search(r"__", escaped)


@given(NAMES, st.integers(1, 2**63 - 1), NAMES)
@example("loc", 3, "loc__l3")
@example("SQLT", 12, "sqlt__u0_4__l12")
def test_names_of_local_tables_are_unique(name: str, global_id: int, other: str) -> None:
    local = table_name(name, global_id)
    assert local_instance_of(local) == global_id
    assert unescape(local) == name
    assert local != table_name(other)
    assert local_instance_of(table_name(other)) is None


@given(NAMES, st.integers(1, 2**31 - 1), NAMES)
@example("loc", 3, "loc__r3")
@example("SQLT", 12, "sqlt__u0_4__r12")
def test_names_of_a_replicasets_tables_are_unique(name: str, replicaset: int, other: str) -> None:
    own = table_name(name, replicaset=replicaset)
    assert replicaset_of(own) == replicaset
    assert unescape(own) == name
    assert own not in (table_name(other), table_name(other, local_instance=replicaset))
    assert replicaset_of(table_name(other)) is None


@given(NAMES, st.none() | st.integers(1, 99))
@example("_a", None)
@example("sqlt__u0_4", 7)
def test_a_space_named_like_an_exact_table_has_another_table(name: str, number: int | None) -> None:
    exact = exact_table(table_name(name, replicaset=number))
    assert exact != table_name(f"_exact_{name}", replicaset=number)
    local = exact_table(table_name(name, local_instance=number))
    assert local != table_name(f"_exact_{name}", local_instance=number)


@given(ANY | ORDINARY, ANY | ORDINARY)
def test_names_of_exact_tables_are_unique(name: str, other: str) -> None:
    exact = exact_table(table_name(name))
    assert exact != table_name(other)
    assert (exact == exact_table(table_name(other))) == (name == other)
    assert table_of_exact_tuples({exact, table_name(name)}, table_name(name)) == exact
    assert table_of_exact_tuples({table_name(name)}, table_name(name)) == table_name(name)


def test_the_longest_table_names_have_exact_tables_too() -> None:
    exact = {exact_table("a" * 254 + last) for last in "xyz"}
    assert {len(one) for one in exact} == {NAME_MAX_BYTES}
    assert len(exact) == 3


@given(st.text("абв-", min_size=130, max_size=400), st.none() | st.integers(1, 10**6))
@example("a" * 256, None)
def test_long_names_are_cut_to_fit(name: str, global_id: int | None) -> None:
    escaped = table_name(name, global_id)
    assert re.fullmatch(r"[a-z0-9_]+", escaped)
    assert len(escaped) == NAME_MAX_BYTES
    assert escaped != table_name(name + "-", global_id)
    assert local_instance_of(escaped) == global_id
    with pytest.raises(WarehouseError, match="_schema"):
        unescape(escaped)


def test_the_longest_name_that_stays_whole() -> None:
    assert table_name("a" * NAME_MAX_BYTES) == "a" * NAME_MAX_BYTES
    assert unescape(table_name("a" * NAME_MAX_BYTES)) == "a" * NAME_MAX_BYTES


@pytest.mark.parametrize(
    "name",
    [
        "Capital",
        "my-space",
        "_lsn",
        "x__u9",
        "x__d",
        "_x__d",
        "x__u0_0",
        "abc__x1_2d2d2d",
        "a_c__x1_61",
        "a__x0_ff",
        "a__q__l03",
        "",
    ],
)
def test_a_text_that_is_not_an_escape_is_refused(name: str) -> None:
    with pytest.raises(WarehouseError, match="not the escaped name"):
        unescape(name)


def test_a_replicaset_is_named_by_its_sources_and_a_short_uuid() -> None:
    uuid = "09e2d221-0000-4000-8000-000000000000"
    assert replicaset_label(uuid, "a1") == "a1 (09e2d221)"
    assert replicaset_label(uuid, "a1", None, "a2", "a1") == "a1, a2 (09e2d221)"
    assert replicaset_label(uuid, None) == uuid
