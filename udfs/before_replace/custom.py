"""The policy `custom`: a function of the user's, `function(old, new, change)`, folded over the versions of a key.

It is asked for every version but the first, in the order of the versions: `old` is what stands so far, `new` the next
version; a deleted one is None. It returns one of the two, another tuple, or None, which deletes. It must be pure: the
same arguments give the same answer, in every process and at every time; on a sample it is asked twice.
Not here: what becomes of a key whose function fails (`_quarantine`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple

from schemas.errors import ConfigurationError, PolicyError
from udfs.before_replace.candidate import Candidate
from udfs.before_replace.row import Row

Function = Callable[[Row | None, Row | None, "Change"], object]

TRACE = 4
"""Frames of a traceback that are kept."""


@dataclass(frozen=True)
class Side:
    """Whose tuple it is.

    Parameters
    ----------
    replicaset, instance : str
        Uuids; the instance is "" for a snapshot's row.
    global_id, lsn : int
    timestamp, created : int or None
        Microseconds since 1970; None where the time is not known.

    """

    replicaset: str
    instance: str
    global_id: int
    lsn: int
    timestamp: int | None
    created: int | None


@dataclass(frozen=True)
class Change:
    """What the function gets in addition to the two tuples.

    Parameters
    ----------
    space : str
        Tarantool's name of the space.
    op : str
        REPLACE, or DELETE where `new` is None.
    old, new : Side
        Where the tuples come from; where `old` was made by the function itself, of the newest that went into it.

    """

    space: str
    op: str
    old: Side
    new: Side


class Outcome(NamedTuple):
    """What a policy made of a key.

    Parameters
    ----------
    winner : int or None
        Index of the version that stays as it is; None where none does.
    tuple : bytes or None
        The tuple that was made instead; None where there is none.
    layout : int
        Its format.
    fault : str or None
        Why there is no result.

    """

    winner: int | None = None
    tuple: bytes | None = None
    layout: int = 0
    fault: str | None = None


def made(candidates: Sequence[Candidate], data: bytes) -> Outcome:
    """Return the outcome of a tuple: the last version that has it already, or a new one in the last writer's format."""
    same = [number for number, candidate in enumerate(candidates) if candidate.tuple == data]
    return Outcome(same[-1]) if same else Outcome(None, data, candidates[-1].layout)


def load_function(name: str) -> Function:
    """Import a custom function.

    Parameters
    ----------
    name : str
        `package.module:function`.

    Raises
    ------
    ConfigurationError
        There is no such module or function.

    """
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
        raise ConfigurationError("the policy's function is no function", function=name)
    checked: Function = found
    return checked


def fold_custom(
    function: Function,
    candidates: Sequence[Candidate],
    names: Sequence[Sequence[str]],
    space: str,
    *,
    twice: bool = False,
) -> Outcome:
    """Return what a function makes of a key.

    Parameters
    ----------
    function : callable
    candidates : sequence of Candidate
        In their order, the last writer's last.
    names : sequence of sequence of str
        Fields by `Candidate.layout`.
    space : str
    twice : bool
        Whether each call is made twice, and the answers compared.

    Raises
    ------
    PolicyError
        Two calls with the same arguments gave two answers.

    """
    rows = [_row(one, names) for one in candidates]
    kept: int | None = 0
    row, side = rows[0], _side(candidates[0])
    for number in range(1, len(candidates)):
        new, new_side = rows[number], _side(candidates[number])
        change = Change(space, "DELETE" if new is None else "REPLACE", side, new_side)
        try:
            made = _asked(function, row, new, change)
            again = _asked(function, row, new, change) if twice else made
        except Exception as error:
            return Outcome(fault="".join(traceback.format_exception(error, limit=-TRACE)))
        if _bytes(made) != _bytes(again):
            raise PolicyError(
                "the policy's function is not pure: asked twice it gave two answers",
                space=space,
                first=str(made),
                second=str(again),
                advice="let it depend on its arguments alone: no clock, no random number, no state of its own",
            )
        if _bytes(made) == _bytes(row):
            continue
        kept = number if _bytes(made) == _bytes(new) else None
        row, side = (new if kept is not None else made), new_side
    if kept is not None and candidates[kept].tuple is not None:
        return Outcome(kept)
    return Outcome(None, _bytes(row), row.layout if row is not None else 0)


def _asked(function: Function, old: Row | None, new: Row | None, change: Change) -> Row | None:
    answer = function(old, new, change)
    if answer is None or isinstance(answer, Row):
        return answer
    if not isinstance(answer, list | tuple):
        raise TypeError(f"the function returned {type(answer).__name__}, not a tuple or None")
    base = new or old
    if base is None:
        raise TypeError("the function made a tuple of two deleted ones")
    return base.with_values(answer)


def _row(candidate: Candidate, names: Sequence[Sequence[str]]) -> Row | None:
    if candidate.tuple is None:
        return None
    return Row(candidate.tuple, tuple(names[candidate.layout]), candidate.layout)


def _bytes(row: Row | None) -> bytes | None:
    return None if row is None else row.data


def _side(one: Candidate) -> Side:
    return Side(one.replicaset, one.instance, one.global_id, one.lsn, one.timestamp, one.created)
