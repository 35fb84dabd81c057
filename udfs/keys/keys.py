"""Writes primary keys in canonical form, in which keys that Tarantool's index treats as equal have equal bytes.

A canonical key is a MessagePack array of the parts, so it can be decoded; `udfs.keys.kernels.canonical` describes the
parts, and two rare exceptions. A canonical key comes from a tuple, by the field numbers and JSON paths of the primary
key, or from the `key` array of a DELETE or UPDATE. `udfs.operations.json_path` has the syntax of paths,
`udfs.keys.kernels.keys` follows them through a tuple. `udfs.keys.key_order` orders keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from schemas.errors import TupleError, UnsupportedError
from schemas.field_types import FIELD_TYPES, ValueClass, type_family
from schemas.space import BYTE_COLLATIONS, PARTS_MAX, KeyPart, Space
from udfs.buffers import (
    SMALLER_BATCHES_ADVICE,
    arrow_column_function,
    binary_array,
    flatten,
    index_per_row,
    offsets_of,
    texts_of_rows,
)
from udfs.kernels.values import CLASS_NAMES, DECIMAL, OVERREAD_BYTES
from udfs.keys.kernels import canonical
from udfs.keys.kernels.keys import (
    AMBIGUOUS,
    MISSING,
    NO_DEFINITION,
    NO_ROOM,
    NOT_ARRAY,
    NOT_MSGPACK,
    PREFIX,
    WRONG_COUNT,
    WRONG_TYPE,
    Parts,
    write_keys,
)
from udfs.operations.json_path import ANY, NUMBER, Lexer
from udfs.tuples.tuples import accepted_class_bits


def parse_path(path: str, space: str) -> tuple[int | bytes, ...]:
    """Return the steps of a path: 0-based indexes of arrays, and keys of maps.

    Args:
        path: As in the index's definition.
        space: Name of the space, for the error.

    Raises:
        UnsupportedError: The path is not valid, or has `[*]`, which a primary key cannot have.
    """
    lexer = Lexer(path.encode())
    steps: list[int | bytes] = []
    while not lexer.at_end:
        try:
            token = lexer.next()
        except TupleError as error:
            raise UnsupportedError(
                f"the JSON path {path} of an index part is not valid", space=space
            ) from error
        if token.kind == ANY:
            raise UnsupportedError(f"the JSON path {path} of an index part has several values", space=space)
        steps.append(token.index if token.kind == NUMBER else token.key)
    return tuple(steps)


KEY_FIELD = "key"
ERROR_FIELD = "error"
KEY_ARROW = pa.struct([pa.field(KEY_FIELD, pa.binary()), pa.field(ERROR_FIELD, pa.string())])
KEY_SPARK = StructType([StructField(KEY_FIELD, BinaryType()), StructField(ERROR_FIELD, StringType())])

FIELD_MAX = 2**31 - 1
"""The highest 1-based number of a field in an index (`BOX_INDEX_FIELD_MAX`)."""


def _comparison(field_type: str) -> int:
    """Return how an index compares the numbers of a type (`udfs.keys.kernels.canonical.BY_VALUE`)."""
    accepted = frozenset(FIELD_TYPES[type_family(field_type)].accepted_classes)
    if accepted <= {ValueClass.UNSIGNED, ValueClass.UNSIGNED_BIG}:
        return canonical.BY_ENCODING
    if ValueClass.DOUBLE not in accepted:
        return canonical.BY_VALUE
    return canonical.MIXED if ValueClass.DECIMAL in accepted else canonical.AS_DOUBLE


@dataclass(frozen=True)
class KeyPlan:
    """The primary keys of several spaces, as arguments of `udfs.keys.kernels.keys.write_keys`.

    `parts_max` is the greatest number of parts of a key.
    """

    spaces: tuple[Space, ...]
    parts: Parts
    parts_max: int
    with_doubles: frozenset[int] = frozenset()
    """Indexes of the spaces whose keys have a part of type double."""


def _check_part(space: Space, part: KeyPart) -> None:
    """Raise `UnsupportedError` for a part that has no canonical form."""
    if not 0 <= part.field < FIELD_MAX:
        raise UnsupportedError(f"a primary key part names the field {part.field + 1}", space=space.name)
    kind = FIELD_TYPES.get(type_family(part.type))
    if kind is None or not kind.is_indexable:
        raise UnsupportedError(f"a primary key part of type {part.type} is not known", space=space.name)
    if ValueClass.STRING in kind.accepted_classes and part.collation not in BYTE_COLLATIONS:
        raise UnsupportedError(
            f"the primary key compares field {part.field + 1} by collation {part.collation}",
            space=space.name,
            advice="leave the space out by `spaces.exclude`, or give its primary key a part without a collation",
        )


def _checked_paths(space: Space) -> Iterator[tuple[int | bytes, ...]]:
    """Yield the path of each part of a space's primary key; raise for a key that has no canonical form."""
    if len(space.primary_key) > PARTS_MAX:
        reason = f"the primary key has {len(space.primary_key)} parts, the most are {PARTS_MAX}"
        raise UnsupportedError(reason, space=space.name)
    seen: set[tuple[int, tuple[int | bytes, ...]]] = set()
    for part in space.primary_key:
        _check_part(space, part)
        path = parse_path(part.path, space.name)
        # No server makes such an index, and the result could need more room than the tuple has.
        if (part.field, path) in seen:
            reason = f"field {part.field + 1}{part.path} appears twice in the primary key"
            raise UnsupportedError(reason, space=space.name)
        seen.add((part.field, path))
        yield path


def _accepted_bits(space: Space, part: KeyPart) -> int:
    """Return the value classes that a part of a primary key accepts, as bits.

    The hash of a number in a HASH index is that of its encoding, but for doubles (`src/box/tuple_hash.cc`): for the
    server 2, the decimals 2 and 2.0, and 0.5 as a double and as a decimal are different keys.
    """
    bits = accepted_class_bits(part.type, is_nullable=False)
    return bits & ~(1 << DECIMAL) if space.is_hashed else bits


def key_plan(spaces: Sequence[Space]) -> KeyPlan:
    """Return the plan for the primary keys of spaces; the `space_indexes` of other functions count in `spaces`.

    Raises:
        UnsupportedError: A key has a collation, a type or a path that has no canonical form; the error names the space.
    """
    parts = [part for space in spaces for part in space.primary_key]
    names = bytearray()
    steps: list[tuple[int, int]] = []
    step_starts = [0]
    for path in chain.from_iterable(map(_checked_paths, spaces)):
        for step in path:
            if isinstance(step, int):
                steps.append((step, -1))
            else:
                steps.append((len(names), len(step)))
                names += step
        step_starts.append(len(steps))
    flat = Parts(
        part_starts=np.cumsum([0] + [len(space.primary_key) for space in spaces], dtype=np.int32),
        fields=np.array([part.field for part in parts], np.int32),
        class_bits=np.array(
            [_accepted_bits(space, part) for space in spaces for part in space.primary_key], np.int64
        ),
        comparisons=np.array([_comparison(part.type) for part in parts], np.int64),
        step_starts=np.array(step_starts, np.int32),
        steps=np.array(steps, np.int64).reshape(-1, 2),
        map_keys=np.array([*names, 0], np.uint8),
    )
    doubles = frozenset(
        number
        for number, space in enumerate(spaces)
        if any(_comparison(part.type) == canonical.AS_DOUBLE for part in space.primary_key)
    )
    return KeyPlan(tuple(spaces), flat, max([len(space.primary_key) for space in spaces], default=0), doubles)


def _fault_text(plan: KeyPlan, numbers: bytes) -> str:
    """Return why a row has no key; `numbers` are int32: code, part and class of `write_keys`, index of the space."""
    code, part, kind, index = np.frombuffer(numbers, np.int32).tolist()
    if code == NO_DEFINITION:
        return f"there is no primary key with index {index}"
    space = plan.spaces[index]
    if code in (NOT_MSGPACK, NOT_ARRAY):
        return f"space {space.name}: not a MessagePack array, {CLASS_NAMES[kind]} found"
    if code == WRONG_COUNT:
        return f"space {space.name}: the key has {part} parts, the primary key {len(space.primary_key)}"
    one = space.primary_key[part]
    wrong_type = f": {one.type} expected, {CLASS_NAMES[kind]} found"
    if space.is_hashed and kind == DECIMAL:
        wrong_type = ": a HASH index takes equal decimals of different digits for different keys, so the key is refused"
    texts = {
        MISSING: " is missing",
        WRONG_TYPE: wrong_type,
        AMBIGUOUS: ": a server takes this decimal of more than 15 digits and the equal double for two keys, and an "
        "equal integer for either of them, so the key is refused",
    }
    text = texts.get(code, f": the content of the {CLASS_NAMES[kind]} is not valid")
    return f"space {space.name}: key part {part + 1} (field {one.field + 1}{one.path}){text}"


def _flag_per_row(flag: pa.Array | bool, rows: int) -> NDArray[np.uint8]:
    if isinstance(flag, bool):
        return np.full(rows, flag, np.uint8)
    return np.array(flag.cast(pa.uint8()).fill_null(0).to_numpy(zero_copy_only=False))


def canonical_keys_with_plan(
    data: pa.Array, plan: KeyPlan, space_indexes: pa.Array | int = 0, from_tuple: pa.Array | bool = True
) -> pa.StructArray:
    """Return canonical keys like `canonical_keys`, for callers that keep the plan of `key_plan`."""
    return _keys_of_rows(data, plan, space_indexes, _flag_per_row(from_tuple, len(data)))


def canonical_prefixes(data: pa.Array, plan: KeyPlan, space_indexes: pa.Array | int = 0) -> pa.StructArray:
    """Return the canonical form of prefixes: arrays of the first parts of keys. See `canonical_keys_with_plan`."""
    return _keys_of_rows(data, plan, space_indexes, np.full(len(data), PREFIX, np.uint8))


def _keys_of_rows(
    data: pa.Array, plan: KeyPlan, space_indexes: pa.Array | int, row_kinds: NDArray[np.uint8]
) -> pa.StructArray:
    """Return the canonical keys of rows; `row_kinds` says what each row is: KEY, TUPLE or PREFIX."""
    flat = flatten(data, OVERREAD_BYTES)
    rows = len(data)
    index = index_per_row(space_indexes, rows)
    room = int(flat.offsets[-1] - flat.offsets[0]) + rows * (
        canonical.HEADER_MAX_BYTES + canonical.PART_GROWTH_BYTES * plan.parts_max
    )
    out, ends = np.empty(room, np.uint8), np.zeros(rows + 1, np.int64)
    errors = np.zeros((3, rows), np.int32)
    write_keys(flat.data, flat.offsets, flat.nulls, row_kinds, index, plan.parts, out, ends, errors)
    if (errors[0] == NO_ROOM).any():
        raise TupleError(
            "a key takes more bytes than its tuple has", advice="check for a field that is in the key twice"
        )
    offsets = offsets_of(ends, "the keys of one batch", SMALLER_BATCHES_ADVICE)
    bad = np.flatnonzero(errors[0])
    faults = np.stack([*errors[:, bad], index[bad]], axis=1).astype(np.int32).view(np.uint8)
    present = (errors[0] == 0) & (flat.nulls == 0)
    return pa.StructArray.from_arrays(
        [
            binary_array(pa.binary(), offsets, out[: ends[-1]], present),
            texts_of_rows(faults, bad, rows, lambda numbers: _fault_text(plan, numbers)),
        ],
        fields=list(KEY_ARROW),
    )


def canonical_keys(
    data: pa.Array,
    spaces: Sequence[Space],
    space_indexes: pa.Array | int = 0,
    from_tuple: pa.Array | bool = True,
) -> pa.StructArray:
    """Return the canonical primary key of each row.

    Args:
        data: Tuples, or arrays of key parts, as MessagePack; may be a slice. A null row gives nulls.
        spaces: The key definitions.
        space_indexes: Index in `spaces` of each row's space.
        from_tuple: Whether the row is a tuple (true), or the `key` of a DELETE or UPDATE.

    Returns:
        `key` (binary, or null) and `error` (why there is no key; null if there is one, or no data).

    Raises:
        UnsupportedError: As in `key_plan`.
    """
    return canonical_keys_with_plan(data, key_plan(spaces), space_indexes, from_tuple)


def has_nan(keys: pa.Array, plan: KeyPlan, space_indexes: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which canonical keys have NaN in a part of type double."""
    found = np.isin(space_indexes, list(plan.with_doubles))
    if found.any():
        texts = [pc.find_substring(keys, pattern=one) for one in canonical.NANS]
        found &= np.logical_or(*(pc.fill_null(one, -1).to_numpy(zero_copy_only=False) >= 0 for one in texts))
    return found


def key_columns(spaces: Sequence[Space]) -> Callable[[Column, Column, Column], Column]:
    """Return an Arrow UDF `(data binary, space index int, from tuple boolean) → struct<key, error>`.

    One call serves rows of all the spaces at once. Errors as in `key_plan`.
    """
    plan = key_plan(spaces)

    def keys_of_batch(data: pa.Array, space_indexes: pa.Array, from_tuple: pa.Array) -> pa.Array:
        return canonical_keys_with_plan(data, plan, space_indexes, from_tuple)

    return arrow_column_function(keys_of_batch, KEY_SPARK)
