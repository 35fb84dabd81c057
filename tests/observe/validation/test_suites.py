"""The expectations of the aggregator's own tables allow every value that the code writes, and name its columns."""

from pipeline.lookup.versions import STATE_NAMES
from schemas.states import VersionState
from schemas.tables import OWN_TABLES


def test_the_states_of_versions_are_those_that_are_written() -> None:
    assert {*VersionState} == set(STATE_NAMES.values()) >= {"removed"}


def test_what_is_expected_of_a_table_names_its_columns() -> None:
    for name, own in OWN_TABLES.items():
        states = () if own.states is None else own.states[:1]
        named = {*own.unique, *own.keys, *own.never_null, *own.global_ids, *own.past_times, *states}
        assert named <= {*own.columns.names}, name
