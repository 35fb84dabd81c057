"""Contended keys → what `merge_fields`, `sum` or `custom` makes of their versions, as an Arrow UDF.

Keys of which one version takes part come with null and cost nothing. A key whose policy fails has no result but a
fault, and the others go on. A result that would change the primary key is a fault as in Tarantool.
Not here: which versions take part, and their order (Spark; `jobs.batch.resolve`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf

from schemas.errors import TupleError
from schemas.space import Space
from udfs.before_replace.candidate import Candidate
from udfs.before_replace.custom import Outcome, fold_custom, load_function
from udfs.before_replace.merge import Fields, merge_fields, sum_fields
from udfs.keys import canonical_keys
from udfs.sequence import sequence_bytes

SAMPLE = 8
"""Of so many keys a batch a custom function is asked twice."""

CANDIDATE_COLUMNS = ("replicaset_id", "tuple", "global_id", "lsn", "timestamp", "created", "layout")
"""Fields of the structs that come in; times in microseconds since 1970."""

OUTCOME_SPARK = "struct<winner: int, tuple: binary, layout: int, fault: string>"
_OUTCOME = pa.struct(
    [("winner", pa.int32()), ("tuple", pa.binary()), ("layout", pa.int32()), ("fault", pa.string())]
)


@dataclass(frozen=True)
class Resolver:
    """One table's policy with all that it needs in a worker; picklable.

    Parameters
    ----------
    space : str
        Tarantool's name of the space.
    spaces : tuple of Space
        Its formats by layout, for names and for the primary key.
    replicasets, instances : sequence of str
        Uuids by replicaset id and global id.
    policy : str
        `merge_fields`, `sum` or `custom`.
    groups, columns, function
        What the policy needs, as in the configuration.

    """

    space: str
    spaces: tuple[Space, ...]
    replicasets: Sequence[str]
    instances: Sequence[str]
    policy: str
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    function: str = ""

    def formats(self) -> list[Fields]:
        """Return where fields stand, by layout."""
        return [
            Fields(
                {one.name: i for i, one in enumerate(space.fields)},
                frozenset(one.name for one in space.fields if one.type == "double"),
            )
            for space in self.spaces
        ]


def resolve_keys(resolver: Resolver, candidates: pa.ListArray) -> pa.StructArray:
    """Return what becomes of each key.

    Parameters
    ----------
    resolver : Resolver
    candidates : pyarrow.ListArray
        Structs of `CANDIDATE_COLUMNS`, at least two and in their order; null where nothing is to be decided.

    Returns
    -------
    pyarrow.StructArray
        `udfs.before_replace.custom.Outcome`; null where nothing was asked.

    """
    keys = [_candidates(resolver, one) if one is not None else None for one in candidates.to_pylist()]
    asked = [i for i, one in enumerate(keys) if one is not None]
    lists = [one for one in keys if one is not None]
    outcomes = dict(zip(asked, _checked(resolver, lists, _outcomes(resolver, lists)), strict=True))
    rows = [outcomes[i]._asdict() if i in outcomes else None for i in range(len(keys))]
    return pa.array(rows, _OUTCOME)


def _candidates(resolver: Resolver, rows: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    return [
        Candidate(
            row["tuple"],
            resolver.replicasets[row["replicaset_id"]],
            resolver.instances[row["global_id"]] if row["global_id"] is not None else "",
            row["lsn"],
            row["timestamp"],
            row["created"],
            global_id=row["global_id"] or 0,
            layout=row["layout"] or 0,
        )
        for row in rows
    ]


def _outcomes(resolver: Resolver, keys: Sequence[Sequence[Candidate]]) -> list[Outcome]:
    if resolver.policy == "custom":
        function = load_function(resolver.function)
        names = [[one.name for one in space.fields] for space in resolver.spaces]
        return [
            fold_custom(function, one, names, resolver.space, twice=i < SAMPLE) for i, one in enumerate(keys)
        ]
    formats = resolver.formats()
    ages = _ages(resolver, keys) if resolver.policy == "merge_fields" else []
    found = []
    for i, one in enumerate(keys):
        try:
            if resolver.policy == "sum":
                made = sum_fields(one, formats, resolver.columns)
            else:
                made = merge_fields(one, formats, resolver.groups, ages[i])
        except TupleError as error:
            found.append(Outcome(fault=str(error)))
            continue
        same = [number for number, candidate in enumerate(one) if candidate.tuple == made]
        found.append(Outcome(same[-1]) if same else Outcome(None, made, one[-1].layout))
    return found


def _ages(resolver: Resolver, keys: Sequence[Sequence[Candidate]]) -> list[dict[str, list[bytes | None]]]:
    """Return how new each candidate's value of each merged field is, a key."""
    flat = [candidate for one in keys for candidate in one]
    tuples = pa.array([candidate.tuple for candidate in flat], pa.binary())
    which = pa.array([candidate.layout for candidate in flat], pa.int32())
    formats = resolver.formats()
    ages = {
        name: sequence_bytes(
            tuples, which, [[fields.places.get(member, -1) for member in members] for fields in formats]
        ).to_pylist()
        for name, members in resolver.groups.items()
    }
    found, start = [], 0
    for one in keys:
        end = start + len(one)
        found.append({name: column[start:end] for name, column in ages.items()})
        start = end
    return found


def _checked(
    resolver: Resolver, keys: Sequence[Sequence[Candidate]], outcomes: Sequence[Outcome]
) -> list[Outcome]:
    """Refuse tuples that were made for another key than that of the versions."""
    made = [outcome.tuple for outcome in outcomes]
    layouts = pa.array([outcome.layout for outcome in outcomes], pa.int32())
    new = canonical_keys(pa.array(made, pa.binary()), resolver.spaces, layouts).to_pylist()
    known = [next((one for one in key if one.tuple is not None), key[0]) for key in keys]
    old = canonical_keys(
        pa.array([one.tuple for one in known], pa.binary()),
        resolver.spaces,
        pa.array([one.layout for one in known], pa.int32()),
    ).to_pylist()
    found = []
    for outcome, after, before in zip(outcomes, new, old, strict=True):
        wrong = outcome.tuple is not None and after["key"] != before["key"]
        reason = after["error"] or "the policy made a tuple with another primary key"
        found.append(Outcome(fault=reason) if wrong else outcome)
    return found


def resolver_column(resolver: Resolver) -> Callable[[Column], Column]:
    """Return an Arrow UDF `(array of structs of CANDIDATE_COLUMNS) → OUTCOME_SPARK`."""

    def before_replace(candidates: pa.Array) -> pa.Array:
        return resolve_keys(resolver, candidates)

    before_replace.__annotations__ = {"candidates": pa.Array, "return": pa.Array}
    make: Any = arrow_udf
    wrapped: Callable[[Column], Column] = make(before_replace, returnType=OUTCOME_SPARK)
    return wrapped
