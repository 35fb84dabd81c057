"""The way of a row through a local batch stays short: few modules get its bytes."""

from tests import house

MOST_MODULES = 30


def test_few_modules_get_the_bytes_of_a_row() -> None:
    run = house.modules_of_a_batch(house.modules())
    assert len(run.with_rows) <= MOST_MODULES, run.with_rows
    assert "pipeline.commit.batch" in run.with_rows  # rows are still seen
