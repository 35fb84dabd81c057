"""`sum`: the last writer's tuple, with the sum of some fields over all versions."""

from collections.abc import Sequence

from schemas.errors import TupleError
from udfs.before_replace.merge import sum_fields
from udfs.before_replace.policy import Candidate, Formats, Outcome, PolicyKind, PolicyOptions, outcome_of


def make(keys: Sequence[Sequence[Candidate]], options: PolicyOptions, formats: Formats) -> list[Outcome]:
    """Return the tuple with the sums of each key; a sum that does not fit is a fault."""
    names, found = formats.names, []
    for one in keys:
        try:
            found.append(outcome_of(one, sum_fields(one, formats, options.columns), names))
        except TupleError as error:
            found.append(Outcome(fault=str(error)))
    return found


POLICY = PolicyKind(
    label=lambda options: f"sum({', '.join(options.columns)})",
    make=make,
)
