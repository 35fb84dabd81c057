"""The text of a failed expectation."""

import pytest

from observe.validation.check import CheckResult


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (
            CheckResult("t", "e", False, 6, 2, ("key [1]", "key [2]")),
            "t: e: fails in 2 of 6 rows, such as key [1]; key [2]",
        ),
        (CheckResult("t", "e", False, None, 2), "t: e: fails in 2"),
        (CheckResult("t", "e", False, examples=("found 3",)), "t: e: fails: found 3"),
        (
            CheckResult("t", "e", False, error="no column x", source="e.yaml"),
            "t: e: cannot be checked: no column x (e.yaml)",
        ),
    ],
)
def test_a_result_shows_table_expectation_counts_and_source(result: CheckResult, text: str) -> None:
    assert str(result) == text
