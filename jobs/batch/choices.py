"""The policy of each table → Spark expressions that order its versions, or the UDF that makes a tuple of them.

Native are `last_write_wins`, `first_write_wins`, `source_priority`, `max` and `min`: the version that stands last in an
order of structs wins. Fields of tuples become comparable bytes in one Arrow UDF (`udfs.sequence`), which sees only
keys that several versions contend for; without named fields no Python runs at all. `udfs.before_replace.choice` says
the same in plain Python. Not here: which versions take part, and the choice itself (`jobs.batch.resolve`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import functions as F

from jobs.batch.apply import Target, format_column
from jobs.batch.identities import Identities
from config.policies import Policies, Policy
from udfs.before_replace.custom import load_function
from udfs.before_replace.resolver import Resolver, resolver_column
from udfs.sequence import sequence_keys

LONGEST = 2**63 - 1


@dataclass(frozen=True)
class Choice:
    """How one table's versions are ordered, and what is made of them.

    Parameters
    ----------
    preference : Column or None
        A bigint that is compared first.
    value, sequence : Column or None
        Bytes that are compared next; of frames in which `tuple` is null where nothing is to be decided.
    layout : Column
        The index of the format of a version's tuple.
    deletes_all : bool
        Whether a deleted version takes part.
    resolver : callable or None
        From the array of versions to what becomes of them, where the policy makes tuples.
    labels : sequence of str
        What a decision is said to be made on: by preference, value, sequence, time, uuid, resolver.

    """

    preference: Column | None = None
    value: Column | None = None
    sequence: Column | None = None
    layout: Column = field(default_factory=lambda: F.lit(None).cast("int"))
    deletes_all: bool = False
    resolver: Callable[[Column], Column] | None = None
    labels: Sequence[str] = ("", "", "", "timestamp", "replicaset uuid", "")


def choice_of(target: Target, policy: Policy, priority: Sequence[str], identities: Identities) -> Choice:
    """Return how one table's versions are chosen between.

    Parameters
    ----------
    target : Target
    policy : Policy
        Of its space.
    priority : sequence of str
        Uuids of the replicasets that `source_priority` puts first.
    identities : Identities

    """
    sequence = _bytes(target, policy.sequence) if policy.sequence else None
    value = None
    if policy.policy in ("max", "min") and policy.column is not None:
        value = _bytes(target, [policy.column])
        value = _complement(value) if policy.policy == "min" else value
    resolver = None
    if policy.policy in ("merge_fields", "sum", "custom"):
        resolver = resolver_column(_resolver(target, policy, identities))
    return Choice(
        _preference(policy, priority, identities),
        value,
        sequence,
        format_column(target),
        policy.deletes == "all",
        resolver,
        _labels(policy),
    )


def _preference(policy: Policy, priority: Sequence[str], identities: Identities) -> Column | None:
    if policy.policy == "first_write_wins":
        return F.coalesce(-F.unix_micros("created"), F.lit(LONGEST))
    if policy.policy == "source_priority":
        ranks = {uuid: len(priority) - i for i, uuid in reversed(list(enumerate(priority)))}
        own = [ranks.get(uuid, 0) for uuid in identities.replicasets]
        return F.get(F.lit(own), F.col("replicaset_id")).cast("bigint")
    return None


def _bytes(target: Target, names: Sequence[str]) -> Column:
    places = [
        [next((i for i, f in enumerate(fields) if f.name == name), -1) for name in names]
        for fields in target.layout.formats
    ]
    return sequence_keys(places)(F.col("tuple"), F.col("format"))


def _complement(value: Column) -> Column:
    """Return bytes that order the other way round; what has no value (its first byte is 0) stays below all."""
    digits = "0123456789ABCDEF"
    turned = F.unhex(F.translate(F.hex(value), digits, digits[::-1]))
    return F.when(F.substring(F.hex(value), 1, 2) == "00", value).otherwise(turned)


def _resolver(target: Target, policy: Policy, identities: Identities) -> Resolver:
    return Resolver(
        target.layout.space,
        tuple(target.spaces),
        tuple(identities.replicasets),
        tuple(identities.instances),
        policy.policy,
        {name: tuple(sequence) for name, sequence in policy.fields.items()},
        policy.columns,
        policy.function or "",
    )


def _labels(policy: Policy) -> Sequence[str]:
    first = {"first_write_wins": "created", "source_priority": "priority"}.get(policy.policy, "")
    made = {
        "merge_fields": ", ".join(policy.fields),
        "sum": f"sum({', '.join(policy.columns)})",
        "custom": policy.function or "",
    }
    value = f"{policy.policy}({policy.column})"
    sequence = ", ".join(policy.sequence)
    return (first, value, sequence, "timestamp", "replicaset uuid", made.get(policy.policy, ""))


def by_table(choices: Mapping[int, Choice], kind: str, of: Callable[[Choice], Column | None]) -> Column:
    """Return one column for the rows of all tables; null where a table has none."""
    column = F.lit(None).cast(kind)
    for number, choice in choices.items():
        own = of(choice)
        if own is not None:
            column = F.when(F.col("table") == number, own).otherwise(column)
    return column


def check_functions(policies: Policies) -> None:
    """Refuse custom functions that cannot be imported here, before anything starts.

    Raises
    ------
    ConfigurationError
        With the function's name.

    """
    for policy in (policies.default, *map(policies.of, policies.spaces)):
        if policy.function is not None:
            load_function(policy.function)
