"""The user's suites: which files are accepted and which are refused; an error has the path and the reason."""

from pathlib import Path

import pytest

from observe.validation.user_suites import FILE_META_KEY, read_user_suites
from schemas.errors import ConfigurationError

# Great Expectations calls what its own dependencies have deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

GOOD = """
name: accounts
expectations:
  - type: expect_column_values_to_be_between
    kwargs: {column: balance, min_value: 0, mostly: 0.9}
    description: nobody owes anything
  - type: unexpected_rows_expectation
    kwargs: {unexpected_rows_query: "SELECT * FROM {batch} WHERE id < 0"}
"""


def test_expectations_are_read_with_the_path_of_their_file(tmp_path: Path) -> None:
    (tmp_path / "accounts.yaml").write_text(GOOD)
    (tmp_path / "docs.json").write_text(
        '{"expectations": [{"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}}]}'
    )
    found = read_user_suites(tmp_path, {"accounts", "docs"})
    assert {table: [one.expectation_type for one in own] for table, own in found.items()} == {
        "accounts": ["expect_column_values_to_be_between", "unexpected_rows_expectation"],
        "docs": ["expect_table_row_count_to_be_between"],
    }
    assert found["accounts"][0].description == "nobody owes anything"
    assert found["accounts"][0].meta[FILE_META_KEY] == str(tmp_path / "accounts.yaml")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("accounts.txt", GOOD, "not a suite of expectations"),
        ("others.yaml", GOOD, "there is no table others"),
        ("accounts.yaml", "- 1", "is not a suite"),
        ("accounts.yaml", "a: [", "not YAML"),
        ("accounts.yaml", "{expectations: [], expectation: []}", "path expectation"),
        ("accounts.yaml", "{name: other, expectations: []}", "'other' is not the file's name"),
        ("accounts.yaml", "expectations: [{kwargs: {}}]", "is not an expectation"),
        ("accounts.yaml", "expectations: [{type: expect_nothing}]", "'expect_nothing' is not an expectation"),
        (
            "accounts.yaml",
            "expectations: [{type: expect_column_values_to_be_unique, kwargs: {column: a, colum: b}}]",
            "colum: extra fields not permitted",
        ),
        (
            "accounts.yaml",
            "expectations: [{type: expect_column_values_to_be_unique, args: {column: a}}]",
            r"path expectations\[0\].args",
        ),
        (
            "accounts.yaml",
            "expectations:\n- {type: expect_column_values_to_be_unique, kwargs: {column: a}}\n"
            "- {type: expect_column_values_to_not_be_null, kwargs: {column: a, mostly: 2}}\n",
            r"line 3.*expectations\[1\]",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_path_and_the_reason(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=reason) as refused:
        read_user_suites(tmp_path, {"accounts"})
    assert str(tmp_path / name) in str(refused.value)
