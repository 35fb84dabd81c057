"""The expectations of the aggregator's own tables allow every value that the code writes."""

from observe.validation.suites import ALLOWED_STATES
from pipeline.lookup.versions import STATE_NAMES
from schemas.states import ConflictKind, GapState


def test_the_expectations_allow_each_state_that_is_written() -> None:
    assert set(ALLOWED_STATES["_gaps"][1]) == {*GapState}
    assert set(ALLOWED_STATES["_versions"][1]) == set(STATE_NAMES.values()) >= {"removed"}
    assert set(ALLOWED_STATES["_conflicts"][1]) == {*ConflictKind}
