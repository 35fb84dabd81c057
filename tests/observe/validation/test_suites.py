"""The expectations of the aggregator's own tables allow every value that the code writes."""

from __future__ import annotations

from observe.validation.suites import STATES
from pipeline.reduce.versions import NAMES
from schemas.tables import DOUBLED_CONFLICT, KEY_CONFLICT, SECONDARY_CONFLICT
from warehouse.gaps import BRIDGED, FILLED, HEALED, OPEN, SKIPPED


def test_each_state_that_is_written_is_expected() -> None:
    assert set(STATES["_gaps"][1]) == {OPEN, SKIPPED, FILLED, BRIDGED, HEALED}
    assert set(STATES["_versions"][1]) == set(NAMES.values()) >= {"removed"}
    assert set(STATES["_conflicts"][1]) == {KEY_CONFLICT, SECONDARY_CONFLICT, DOUBLED_CONFLICT}
