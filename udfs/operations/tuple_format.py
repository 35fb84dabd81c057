"""The format under which a server executed an operation: field names, doubles, primary key, server version.

Operations name fields, and the encoding of a sum depends on whether the field is a `double`
(`tuple_dictionary` and `tuple_format` in Tarantool). The type of a field is the narrowest one of the space's format and
of all index parts (`tuple_format_use_key_part`). One `TupleFormat` per version of a space; picklable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from schemas.errors import TupleError, UnsupportedError
from schemas.space import KeyPart, Space
from udfs.operations.json_path import ANY, END, NUMBER, Lexer
from udfs.operations.tuple_check import TupleCheck, check_of
from udfs.operations.update_rules import LATEST, Rules

Step = int | bytes
"""A step into a tuple: 0-based index of an array, or key of a map."""

EVERY_ELEMENT = -1
"""The step of a multikey index into every element of an array: `[*]`."""

_DOUBLE_TYPES = ("double", "float64")


@dataclass(frozen=True, slots=True)
class FormatNode:
    """A node of the format: a field, or a value inside one."""

    is_double: bool = False
    """Its type is double: a result is never written as MP_FLOAT."""
    is_float32: bool = False
    """Its type is float32 (3.x)."""
    children: Mapping[Step, FormatNode] = field(default_factory=dict)
    """The nodes inside it."""

    def child(self, step: Step) -> FormatNode | None:
        """Return the node of an element; None if the format has none."""
        return self.children.get(EVERY_ELEMENT) or self.children.get(step)


@dataclass(frozen=True, slots=True)
class TupleFormat:
    """A space's format at one moment, under one version of the server."""

    number_by_name: Mapping[bytes, int] = field(default_factory=dict)
    """UTF-8 name of each field → its 0-based number."""
    root: FormatNode | None = None
    """Fields that the format or an index declares as double; None if there are none."""
    primary_key: tuple[KeyPart, ...] = ()
    """The primary key: an UPSERT never changes it."""
    rules: Rules = LATEST
    """The rules of the server that wrote the log."""
    check: TupleCheck | None = None
    """What vinyl checks in the result of a logged UPSERT; None for other engines."""


def format_of_names(names: Sequence[str], rules: Rules = LATEST) -> TupleFormat:
    """Return a format with nothing but the names of the fields."""
    return TupleFormat({name.encode(): number for number, name in enumerate(names)}, rules=rules)


def steps_of_part(number: int, path: str) -> tuple[Step, ...]:
    """Return the steps of an index part: its field, then its JSON path."""
    lexer = Lexer(path.encode())
    found: list[Step] = [number]
    while (token := lexer.next()).kind != END:
        found.append(
            EVERY_ELEMENT if token.kind == ANY else token.index if token.kind == NUMBER else token.key
        )
    return tuple(found)


def format_of(space: Space, rules: Rules = LATEST) -> TupleFormat:
    """Return the format of a space."""
    types: dict[tuple[Step, ...], str] = {(number,): item.type for number, item in enumerate(space.fields)}
    for part in space.primary_key:
        _add_part(types, steps_of_part(part.field, part.path), part.type, rules)
    for part in space.secondary_parts:
        try:
            path = steps_of_part(part.field, part.path)
        except (TupleError, UnsupportedError):
            continue  # an operation that names this path cannot be applied either
        _add_part(types, path, part.type, rules)
    doubles = {path for path, kind in types.items() if kind in _DOUBLE_TYPES}
    singles = {path for path, kind in types.items() if kind == "float32"}
    names = {item.name.encode(): number for number, item in enumerate(space.fields)}
    root = _build_node((), doubles, singles) if doubles or singles else None
    check = check_of(space) if space.engine == "vinyl" and rules.checks_upserts else None
    return TupleFormat(names, root, space.primary_key, rules, check)


def _add_part(types: dict[tuple[Step, ...], str], path: tuple[Step, ...], kind: str, rules: Rules) -> None:
    """Set the type at a path in `types` to that of an index part, unless the part's type is the wider one."""
    widths = {"any": 4, "scalar": 3, "number": 2, "double": 2 if rules.double_includes_number else 1}
    if widths.get(kind, 0) <= widths.get(types.get(path, "any"), 0):
        types[path] = kind


def _build_node(
    prefix: tuple[Step, ...], doubles: set[tuple[Step, ...]], singles: set[tuple[Step, ...]]
) -> FormatNode:
    depth = len(prefix)
    inside = {path[depth] for path in doubles | singles if len(path) > depth and path[:depth] == prefix}
    children = {step: _build_node((*prefix, step), doubles, singles) for step in inside}
    return FormatNode(prefix in doubles, prefix in singles, children)
