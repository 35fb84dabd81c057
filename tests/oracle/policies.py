"""What stands under each key by the other policies, over the replicasets' final versions, key by key.

Written from docs/semantics.md alone, in values, not in bytes; `last_write_wins` is `tests.oracle.wins`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.oracle import mp
from tests.oracle.fold import Folded, Version


@dataclass(frozen=True)
class Held:
    """One replicaset's version of a key, decoded."""

    replicaset: str
    instance: str
    version: Version
    fields: Mapping[str, Any]
    values: tuple[Any, ...]

    @property
    def order(self) -> tuple[Any, ...]:
        """Where it stands among the others, by time."""
        return (self.version.timestamp, self.replicaset, self.instance, self.version.lsn)


Rule = Callable[[Sequence[Held]], Any]
"""Versions in their order → the values that stand, None for no row."""


def stands(replicasets: Sequence[Folded], space: str, rule: Rule) -> dict[tuple[Any, ...], Any]:
    """Return what stands under each key that any replicaset has."""
    keys: dict[tuple[Any, ...], list[Held]] = {}
    for folded in replicasets:
        found = folded.by_name().get(space)
        for key, version in found.versions.items() if found else ():
            if found is None or version.tuple is None:
                continue
            values = tuple(mp.decode(version.tuple))
            fields = dict(zip(found.field_names, values, strict=False))
            instance = folded.cluster.get(version.replica_id, "")
            keys.setdefault(key, []).append(Held(folded.replicaset_uuid, instance, version, fields, values))
    rows = {key: rule(sorted(held, key=lambda one: one.order)) for key, held in keys.items()}
    return {key: row for key, row in rows.items() if row is not None}


def first_write(held: Sequence[Held]) -> Any:
    return min(held, key=lambda one: (one.version.created, *[-ord(c) for c in one.replicaset])).values


def greatest(field: str) -> Rule:
    """Keep the greatest value; what has none loses to what has one."""

    def rank(one: Held) -> tuple[Any, ...]:
        value = one.fields.get(field)
        return (value is not None, 0 if value is None else value, one.order)

    return lambda held: max(held, key=rank).values


def least(field: str) -> Rule:
    return lambda held: min(held, key=lambda one: one.fields[field]).values


def prefer(replicaset: str) -> Rule:
    return lambda held: max(held, key=lambda one: (one.replicaset == replicaset, one.order)).values


def total(field: str) -> Rule:
    def rule(held: Sequence[Held]) -> Any:
        known = [one.fields[field] for one in held if one.fields.get(field) is not None]
        fields = {**held[-1].fields, field: sum(known)} if known else held[-1].fields
        return tuple(fields.values()) + held[-1].values[len(fields) :]

    return rule


def newest_field(field: str, by: str) -> Rule:
    def rule(held: Sequence[Held]) -> Any:
        best = max(enumerate(held), key=lambda pair: (pair[1].fields[by], pair[0]))[1]
        fields = {**held[-1].fields, field: best.fields[field], by: best.fields[by]}
        return tuple(fields.values()) + held[-1].values[len(fields) :]

    return rule
