"""The policy `custom`: the user's `function(old, new, change)`, applied to the versions of a key one after another.

The function is called for each version but the first, in the order of the versions: `old` is the result so far, `new`
the next version; a deleted version is None. The function returns `old`, `new`, another tuple, or None, which deletes
the key. It must be pure: the same arguments give the same answer, in every process and at every time; for a sample of
keys each call is made twice and the answers are compared. A key for which the function fails goes to `_quarantine`.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from schemas.errors import ConfigurationError, PolicyError
from udfs.before_replace.policy import Candidate, Outcome
from udfs.before_replace.row import Row, have_same_positions, in_format

Function = Callable[[Row | None, Row | None, "Change"], object]
"""A custom function of the arguments (old, new, change)."""

TRACEBACK_FRAMES = 4


@dataclass(frozen=True)
class Origin:
    """Where a tuple comes from: the change that wrote it."""

    replicaset: str
    instance: str
    """Uuids; the instance is "" for a snapshot's row."""
    global_id: int
    lsn: int
    """The instance's global id, and the change's lsn."""
    timestamp: int | None
    created: int | None
    """When the change was made, and when the tuple was inserted: microseconds since 1970, or None if not known."""


@dataclass(frozen=True)
class Change:
    """The third argument of a custom function: the space, the operation and both tuples' origins."""

    space: str
    """Tarantool's name of the space."""
    op: str
    """REPLACE, or DELETE if `new` is None."""
    old: Origin
    new: Origin
    """Where the tuples come from. If an earlier call of the function made the old tuple, `old` is the origin of the
    newest version that was an argument of that call."""


def load_function(name: str) -> Function:
    """Import a custom function, `package.module:function`; raise ConfigurationError if it does not exist."""
    module, _, function = name.partition(":")
    advice = (
        "give its module to spark-submit with --py-files, or put it on PYTHONPATH of driver and executors"
    )
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the policy's function cannot be imported: {error}", function=name, advice=advice
        ) from error
    if not callable(found):
        raise ConfigurationError("the policy's function is not callable", function=name)
    checked: Function = found
    return checked


def fold_custom(
    function: Function,
    candidates: Sequence[Candidate],
    names: Sequence[Sequence[str]],
    space: str,
    *,
    repeats_calls: bool = False,
) -> Outcome:
    """Call a custom function for each version of a key but the first; return the outcome for the key.

    Args:
        repeats_calls: Whether to make each call twice and compare the answers.

    Raises:
        PolicyError: Two calls with the same arguments returned different answers.
    """
    rows = [_row_of(one, names) for one in candidates]
    winner: int | None = 0
    row, origin = rows[0], _origin_of(candidates[0])
    for number in range(1, len(candidates)):
        new, new_origin = rows[number], _origin_of(candidates[number])
        change = Change(space, "DELETE" if new is None else "REPLACE", origin, new_origin)
        try:
            made = _call_function(function, row, new, change)
            again = _call_function(function, row, new, change) if repeats_calls else made
        except Exception as error:
            return Outcome(fault="".join(traceback.format_exception(error, limit=-TRACEBACK_FRAMES)))
        if not _is_same_tuple(made, again):
            raise PolicyError(
                "the policy's function is not pure: two calls with the same arguments returned different answers",
                space=space,
                first=str(made),
                second=str(again),
                advice="let it depend on its arguments alone: no clock, no random number, no state of its own",
            )
        if _is_same_tuple(made, row):
            continue
        winner = number if _is_same_tuple(made, new) else None
        row, origin = (new if winner is not None else made), new_origin
    if winner is not None and candidates[winner].tuple is not None:
        return Outcome(winner)
    format_index = candidates[-1].format_index
    return Outcome(None, None if row is None else in_format(row, names[format_index]), format_index)


def _call_function(function: Function, old: Row | None, new: Row | None, change: Change) -> Row | None:
    answer = function(old, new, change)
    if answer is None or isinstance(answer, Row):
        return answer
    if not isinstance(answer, list | tuple):
        raise TypeError(f"the function returned {type(answer).__name__}, not a tuple or None")
    base = new or old
    if base is None:
        raise TypeError("the function returned a tuple although both versions are deleted")
    return base.with_values(answer)


def _row_of(candidate: Candidate, names: Sequence[Sequence[str]]) -> Row | None:
    if candidate.tuple is None:
        return None
    return Row(candidate.tuple, tuple(names[candidate.format_index]), candidate.format_index)


def _is_same_tuple(one: Row | None, other: Row | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.data == other.data and have_same_positions(one.names, other.names)


def _origin_of(candidate: Candidate) -> Origin:
    return Origin(
        *(candidate.replicaset, candidate.instance, candidate.global_id, candidate.lsn),
        *(candidate.timestamp, candidate.created),
    )
