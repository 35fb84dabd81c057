"""`custom`: the user's function, called only for keys with several versions."""

from collections.abc import Sequence

from udfs.before_replace.custom import fold_custom, load_function
from udfs.before_replace.policy import Candidate, Formats, Outcome, PolicyKind, PolicyOptions

CHECKED_KEYS = 8
"""Number of keys for which the function is called twice and its answers are compared."""


def make(keys: Sequence[Sequence[Candidate]], options: PolicyOptions, formats: Formats) -> list[Outcome]:
    """Call the user's function for each key, and return its outcomes."""
    function = load_function(options.function or "")
    names = formats.names
    return [
        fold_custom(function, one, names, formats.space, repeats_calls=i < CHECKED_KEYS)
        for i, one in enumerate(keys)
    ]


POLICY = PolicyKind(
    label=lambda options: options.function or "",
    make=make,
)
