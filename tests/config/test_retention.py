"""The section `retention`: the notation of days, the defaults, and the order that its ages must have."""

from typing import Any

import pytest
from pydantic import ValidationError

from config.retention import Retention


def test_nothing_is_removed_by_default() -> None:
    kept = Retention()
    assert {kept.tombstones, kept.changelog, kept.conflicts, kept.epochs} == {None}
    assert (kept.pending, kept.batches, kept.retired) == (30, 100, ())


def test_days_survive_serialization() -> None:
    written = Retention.model_validate({"tombstones": "90 days", "epochs": "100 days", "changelog": "1 day"})
    assert (written.tombstones, written.epochs, written.changelog) == (90, 100, 1)
    assert Retention.model_validate(written.model_dump(mode="json")) == written


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tombstones": "90"}, "is not a number of days"),
        ({"changelog": "5 seconds"}, "is not a number of days"),
        ({"conflicts": 0}, "is not a number of days"),
        ({"epochs": "10 days", "changelog": "11 days"}, "10 days are fewer than changelog: 11 days"),
        ({"retired": ["a1"]}, "is not a uuid"),
        ({"batches": 1}, "greater than or equal to 2"),
        ({"quarantine": "1 day"}, "Extra inputs"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Retention.model_validate(given)
