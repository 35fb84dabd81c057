"""`merge_fields`: the last writer's tuple, with each named field from the version in format_indexes it is newest."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from schemas.errors import TupleError
from udfs.before_replace.merge import merge_fields
from udfs.before_replace.policy import Candidate, Formats, Outcome, PolicyKind, PolicyOptions, outcome_of
from udfs.keys.sequence import sequence_bytes


def make(keys: Sequence[Sequence[Candidate]], options: PolicyOptions, formats: Formats) -> list[Outcome]:
    """Return the merged tuple of each key."""
    flat = [candidate for one in keys for candidate in one]
    tuples = pa.array([candidate.tuple for candidate in flat], pa.binary())
    format_indexes = np.array([candidate.format_index for candidate in flat], np.int32)
    sequences = {
        name: sequence_bytes(tuples, format_indexes, formats.field_numbers(members)).to_pylist()
        for name, members in options.fields.items()
    }
    names, found, start = formats.names, [], 0
    for one in keys:
        end = start + len(one)
        own_sequences = {name: column[start:end] for name, column in sequences.items()}
        start = end
        try:
            found.append(outcome_of(one, merge_fields(one, formats, options.fields, own_sequences), names))
        except TupleError as error:
            found.append(Outcome(fault=str(error)))
    return found


POLICY = PolicyKind(
    label=lambda options: ", ".join(options.fields),
    make=make,
)
