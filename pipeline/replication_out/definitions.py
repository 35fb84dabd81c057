"""Merges the replicasets' definitions of a space into one that all tuples of its table fit.

A subscriber stops at a tuple that its space refuses. So a field has a name and a type only if the replicasets agree on
both, and secondary indexes are served without `unique`: two rows of a table may have the same key in a unique index,
since policies choose by primary key. All spaces are served as memtx: a transaction of one epoch may change any space,
and servers refuse a transaction over two engines.

A tuple that a policy made may still not fit (`misfit_reason`). Tuples of replicasets always do: their own servers
checked them by formats that are at least as strict.

Pure. Source: `field_mp_plain_type_is_compatible` in Tarantool's `src/box/field_def.h`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgpack import ExtType

from schemas.errors import TupleError
from schemas.field_types import DECIMAL_DIGITS, FIELD_TYPES, ValueClass, type_family
from schemas.iproto import SYSTEM_SPACE_ID_MAX
from schemas.space import Field, KeyPart, Space, parts_of, space_of
from schemas.system_tuples import field_at, fields_of, text_of
from udfs.keys.keys import parse_path
from udfs.operations.value_class import EXTENSION_CLASSES

ENGINE = "memtx"
FIRST_USER_SPACE_ID = SYSTEM_SPACE_ID_MAX + 1

MAX_COLLATION_ID = 3
"""The highest id of a collation in the stream (`pipeline.replication_out.bootstrap_rows.COLLATIONS`)."""

_INTEGER_TYPES = {"unsigned", "integer"}
_NUMBER_TYPES = {*_INTEGER_TYPES, "number", "double", "decimal"}
_SERVED_INDEX_OPTIONS = ("dimension", "distance", "hint")
_SERVED_INDEX_TYPES = {"tree": "tree", "hash": "tree", "rtree": "rtree", "bitset": "bitset"}


@dataclass(frozen=True)
class Index:
    """One index of a served space."""

    id: int
    name: str
    type: str
    parts: tuple[KeyPart, ...]
    options: tuple[tuple[str, Any], ...] = ()
    """The index options of Tarantool, without `unique`: only the primary index is served as unique."""


@dataclass(frozen=True)
class ServedSpace:
    """A space as subscribers see it."""

    name: str
    fields: tuple[Field, ...]
    indexes: tuple[Index, ...]
    """The primary index first."""
    field_count: int = 0
    """The number of fields of each tuple; 0 for any number."""
    id: int = 0
    """0 until an id is assigned."""

    @property
    def primary(self) -> Index:
        """The primary index."""
        return self.indexes[0]

    def space_tuple(self) -> list[Any]:
        """Return the space's row of `_space`."""
        return [self.id, 1, self.name, ENGINE, self.field_count, {}, [_field_map(one) for one in self.fields]]

    def index_tuple(self, index: Index) -> list[Any]:
        """Return the row of `_index` for an index of the space."""
        options = {"unique": index.id == 0, **dict(index.options)}
        return [self.id, index.id, index.name, index.type, options, [_part_map(p) for p in index.parts]]


@dataclass(frozen=True)
class MergedDefinition:
    """The merged definition of a space."""

    space: ServedSpace
    left_out: tuple[str, ...] = ()
    """For each index that is not served, a text that says why."""


@dataclass(frozen=True)
class ReplicasetSpace:
    """A replicaset's rows of `_space` and `_index` for one space."""

    space: bytes
    indexes: Mapping[int, bytes] = field(default_factory=dict)
    """Tuples of `_index`, by index id."""


def merge_definitions(
    name: str, definitions: Sequence[ReplicasetSpace], *, has_older_tuples: bool = False
) -> MergedDefinition:
    """Return a definition of a space that the tuples of all replicasets fit.

    Args:
        has_older_tuples: Whether the table may have tuples of earlier definitions. Then only the fields of the primary
            key have types.

    Raises:
        TupleError: A definition is malformed, or has no primary index.
    """
    spaces, secondaries, counts = [], [], set()
    for one in definitions:
        values = fields_of(one.space, "a row of _space")
        if 0 not in one.indexes:
            raise TupleError("the space has no primary index")
        rows = {i: fields_of(data, "a row of _index") for i, data in one.indexes.items()}
        spaces.append(space_of(values, rows[0]))
        secondaries.append([_index_and_refusal(rows[i]) for i in sorted(rows) if i])
        counts.add(values[4] if len(values) > 4 and isinstance(values[4], int) else 0)
    primary = _merged_primary_index(spaces, definitions[0])
    fields = common_format([space.fields for space in spaces])
    indexes, left_out = _shared_indexes(secondaries)
    if has_older_tuples:
        fields = tuple(replace(one, type="any", is_nullable=True) for one in fields)
        left_out += [
            f"index {index.name}: the space has tuples of an earlier definition" for index in indexes
        ]
        indexes, counts = [], {0}
    found = ServedSpace(name, fields, (primary, *indexes), counts.pop() if len(counts) == 1 else 0)
    return MergedDefinition(with_consistent_types(found), tuple(left_out))


def common_format(formats: Sequence[Sequence[Field]]) -> tuple[Field, ...]:
    """Return the fields of a format that the tuples of all given formats fit.

    The format ends at the first position with different names: later names would be wrong for some tuples. A field that
    one of the formats does not reach has the type `any`: tuples of that format may have any value there.
    """
    found: list[Field] = []
    for position in range(max(len(one) for one in formats)):
        there = [one[position] for one in formats if position < len(one)]
        if len({one.name for one in there}) > 1 or there[0].name in {one.name for one in found}:
            break
        types, in_all = {one.type for one in there}, len(there) == len(formats)
        nullable = not in_all or any(one.is_nullable for one in there)
        found.append(Field(there[0].name, types.pop() if in_all and len(types) == 1 else "any", nullable))
    return tuple(found)


def with_consistent_types(space: ServedSpace) -> ServedSpace:
    """Return a space whose format and indexes agree on the types and the nullability of fields."""
    fields = list(space.fields)
    for part in (part for index in space.indexes for part in index.parts):
        if part.field < len(fields) and not part.path and fields[part.field].type == "any":
            fields[part.field] = replace(fields[part.field], type=part.type)
    # Servers let only a secondary tree have nulls, so no tuple has one in another index.
    full = [index for index in space.indexes if index.id == 0 or index.type != "tree"]
    for part in (part for index in full for part in index.parts):
        if part.field < len(fields):
            fields[part.field] = replace(fields[part.field], is_nullable=False)
    nullable = {position for position, one in enumerate(fields) if one.is_nullable}
    indexes = [
        replace(
            index,
            parts=tuple(replace(p, is_nullable=p.is_nullable or p.field in nullable) for p in index.parts),
        )
        for index in space.indexes[1:]
    ]
    return replace(space, fields=tuple(fields), indexes=(space.primary, *indexes))


def assign_space_ids(
    spaces: Mapping[str, ServedSpace], served_ids: Mapping[str, int], preferred_ids: Mapping[str, int]
) -> dict[str, int]:
    """Return an id for each space, by table.

    It is the id that subscribers already have, else the preferred id if that is free, else the next free one.
    """
    found = {table: served_ids[table] for table in spaces if table in served_ids}
    taken = {*served_ids.values()}
    for table in sorted(spaces.keys() - found.keys()):
        number = preferred_ids.get(table, 0)
        if number < FIRST_USER_SPACE_ID or number in taken:
            number = max(taken | {SYSTEM_SPACE_ID_MAX}) + 1
        found[table] = number
        taken.add(number)
    return found


def _merged_primary_index(spaces: Sequence[Space], first_definition: ReplicasetSpace) -> Index:
    keys = [space.primary_key for space in spaces]
    if len({tuple((p.field, p.path, p.collation) for p in key) for key in keys}) > 1:
        raise TupleError("the primary key is not the same in all replicasets")
    parts = tuple(
        replace(same[0], type=_widest({part.type for part in same}), is_nullable=False)
        for same in zip(*keys, strict=True)
    )
    name = field_at(fields_of(first_definition.indexes[0], "a row of _index"), 2, "the name of an index")
    return Index(0, text_of(name, "the name of an index"), "tree", parts)


def _widest(types: set[str]) -> str:
    if len(types) == 1:
        return next(iter(types))
    types = set(map(type_family, types))
    if types <= _INTEGER_TYPES:
        return "integer"
    return "number" if types <= _NUMBER_TYPES else "scalar"


def _index_and_refusal(row: Sequence[Any]) -> tuple[Index, str | None]:
    """Return a secondary index, and why it cannot be served; None if it can."""
    name = text_of(field_at(row, 2, "the name of an index"), "the name of an index")
    kind = text_of(field_at(row, 3, "the type of an index"), "the type of an index").lower()
    given = field_at(row, 4, "the options of an index")
    options = given if isinstance(given, Mapping) else {}
    parts = parts_of(row)
    reason = None
    if kind not in _SERVED_INDEX_TYPES:
        reason = f"its type is {kind}"
    elif "func" in options or "func_id" in options:
        reason = "its keys are computed by a function"
    elif any((part.collation or 0) > MAX_COLLATION_ID for part in parts):
        reason = "its collation is not one of none, unicode, unicode_ci, binary"
    elif _excludes_null(row):
        reason = "it leaves out nulls"
    elif any("[*]" in part.path for part in parts):
        reason = "it has a key for each item of an array"
    kept = tuple((key, options[key]) for key in _SERVED_INDEX_OPTIONS if key in options)
    return Index(
        int(field_at(row, 1, "the id of an index")), name, _SERVED_INDEX_TYPES.get(kind, kind), parts, kept
    ), reason


def _excludes_null(row: Sequence[Any]) -> bool:
    return any(isinstance(part, Mapping) and part.get("exclude_null") for part in row[5])


def _shared_indexes(
    by_replicaset: Sequence[Sequence[tuple[Index, str | None]]],
) -> tuple[list[Index], list[str]]:
    """Return the secondary indexes that are the same in all replicasets, and a text for each of the others."""
    indexes, left_out = [], []
    for index, refusal in by_replicaset[0]:
        reason = refusal
        others = [next((i for i, _ in rest if i.name == index.name), None) for rest in by_replicaset[1:]]
        if reason is None and any(other is None or not _is_same_index(index, other) for other in others):
            reason = "not all replicasets have it alike"
        if reason is None:
            indexes.append(index)
        else:
            left_out.append(f"index {index.name}: {reason}")
    known = {index.name for index, _ in by_replicaset[0]}
    rest = {index.name for others in by_replicaset[1:] for index, _ in others} - known
    left_out += [f"index {name}: not all replicasets have it alike" for name in sorted(rest)]
    return indexes, left_out


def _is_same_index(one: Index, other: Index) -> bool:
    """Return whether two indexes are the same, apart from their ids and the nullability of parts."""

    def compared(index: Index) -> object:
        parts = tuple(replace(part, is_nullable=False) for part in index.parts)
        return index.type, parts, index.options

    return compared(one) == compared(other)


def _served_type(field_type: str) -> str:
    """Return the type that is served: a decimal without a size, which servers before 3.9 do not know."""
    return "decimal" if field_type in DECIMAL_DIGITS else field_type


def _field_map(format_field: Field) -> dict[str, Any]:
    return {
        "name": format_field.name,
        "type": _served_type(format_field.type),
        **({"is_nullable": True} if format_field.is_nullable else {}),
    }


def _part_map(part: KeyPart) -> dict[str, Any]:
    found: dict[str, Any] = {"field": part.field, "type": _served_type(part.type)}
    if part.path:
        found["path"] = part.path
    if part.collation is not None:
        found["collation"] = part.collation
    if part.is_nullable:
        found["is_nullable"] = True
    if part.is_descending:
        found["sort_order"] = "desc"
    return found


def space_from_rows(space: Sequence[Any], indexes: Mapping[int, Sequence[Any]]) -> ServedSpace:
    """Return a served space from its rows of `_space` and `_index`, the latter by index id."""
    primary = indexes.get(0)
    decoded = space_of(space, primary)
    found = [
        Index(
            *(number, row[2], row[3], parts_of(row)),
            tuple((key, value) for key, value in row[4].items() if key != "unique"),
        )
        for number, row in sorted(indexes.items())
    ]
    return ServedSpace(decoded.name, decoded.fields, tuple(found), space[4], decoded.id)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _has_class(value: Any, kind: ValueClass) -> bool:
    """Whether a decoded value is of a class, if this is a class of extensions."""
    return isinstance(value, ExtType) and EXTENSION_CLASSES.get(value.code, ValueClass.EXTENSION) is kind


_CLASS_CHECKS: Mapping[ValueClass, Callable[[Any], bool]] = {
    ValueClass.UNSIGNED: lambda value: _is_integer(value) and value >= 0,
    ValueClass.INTEGER: _is_integer,
    ValueClass.DOUBLE: lambda value: isinstance(value, float),
    ValueClass.BOOLEAN: lambda value: isinstance(value, bool),
    ValueClass.STRING: lambda value: isinstance(value, str),
    ValueClass.BINARY: lambda value: isinstance(value, bytes),
    ValueClass.ARRAY: lambda value: isinstance(value, list),
    ValueClass.MAP: lambda value: isinstance(value, dict),
}

_TYPE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "any": lambda _: True,
    "double": lambda value: isinstance(value, float),
    "scalar": lambda value: not isinstance(value, list | dict) and not _has_class(value, ValueClass.INTERVAL),
}
"""Types for which a server's check differs from the values of `schemas.field_types`."""


def misfit_reason(space: ServedSpace, tuple_: bytes) -> str | None:
    """Return why a space refuses a tuple (MessagePack), None if it accepts it."""
    try:
        values = fields_of(tuple_, "a tuple")
    except TupleError as error:
        return error.reason
    if space.field_count and len(values) != space.field_count:
        return f"it has {len(values)} fields, not {space.field_count}"
    for position, one in enumerate(space.fields):
        value = values[position] if position < len(values) else None
        if not _accepts_value(one.type, value, is_nullable=one.is_nullable):
            return f"field {one.name} is not of type {one.type}"
    for index in space.indexes:
        for part in index.parts:
            if not _accepts_value(
                part.type, _value_of_part(values, part, space.name), is_nullable=part.is_nullable
            ):
                return f"a part of index {index.name} is not of type {part.type}"
    return None


def _accepts_value(field_type: str, value: Any, *, is_nullable: bool) -> bool:
    if value is None:
        return is_nullable or field_type == "any"
    if field_type in _TYPE_CHECKS:
        return _TYPE_CHECKS[field_type](value)
    kind = FIELD_TYPES.get(type_family(field_type))
    accepted = () if kind is None else kind.accepted_classes
    return any(
        _CLASS_CHECKS[one](value) if one in _CLASS_CHECKS else _has_class(value, one) for one in accepted
    )


def _value_of_part(values: Any, part: KeyPart, space: str) -> Any:
    found: Any = values[part.field] if part.field < len(values) else None
    for step in parse_path(part.path, space):
        try:
            found = found[step.decode() if isinstance(step, bytes) else step]
        except (KeyError, IndexError, TypeError):
            return None
    return found
