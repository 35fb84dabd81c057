"""The numbers of parts of `_pending`."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.pending.places import MAX_NUMBER, NUMBER_STEP, ascending_numbers


@given(st.lists(st.none() | st.integers(-MAX_NUMBER, MAX_NUMBER)))
def test_numbers_ascend_and_keep_the_known_ones(known: list[int | None]) -> None:
    found = ascending_numbers(known)
    if found is None:
        given_ones = [one for one in known if one is not None]
        distances = [b - a for a, b in zip(given_ones, given_ones[1:])]  # noqa: B905, RUF007
        near_bounds = MAX_NUMBER - max(map(abs, given_ones)) < NUMBER_STEP * len(known)
        assert near_bounds or min(distances) <= known.count(None)
        return
    assert len(found) == len(known)
    assert found == sorted(set(found))
    assert all(one is None or one == number for one, number in zip(known, found, strict=True))
    assert all(abs(number) <= MAX_NUMBER for number in found)
