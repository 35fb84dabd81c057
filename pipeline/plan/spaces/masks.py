"""Makes the table that readers see of a space: without masked fields, or with hashes, and with filters of its settings.

A space with masked fields, a filter, computed or excluded columns has two tables. The one named after the space has no
exact tuples, and no fields without a name, since a mask could not find them. The other one, `_exact_<table>`, has the
whole rows, and the aggregator computes on it alone: the code for keys, operations and policies does not deal with
masks. A reader who may not see a masked field must not be given access to tables whose names begin with `_`.

Pure. `pipeline.write.prepare` rewrites tables for a changed mask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructField, StructType

from config.spaces import MaskKind, Spaces, TableSettings
from schemas.errors import ConfigurationError, ExpressionError, UnsupportedError
from schemas.expression import Expression, parse
from schemas.layout import EXTRA_COLUMN, INEXACT_COLUMN, MISFITS_COLUMN, TableLayout
from schemas.space import Space
from schemas.tables import VERSION_COLUMNS
from sources.iproto.address import PasswordSource
from udfs.expressions import evaluate, keeps, spark_type
from udfs.tuples.masking import hash_text, hmac_column

TUPLE_COLUMN = "_tuple"
MASKS_PROPERTY = "aggregator.masks"
"""The table property with the masks that the table's rows were written with."""

MASK_FORMAT_VERSION = 2
"""The version of the way in which masked columns are written. It is incremented when the same masks give other columns
or values; tables with another version are rewritten."""

HASH_KEY_MIN_CHARACTERS = 16


@dataclass(frozen=True)
class Mask:
    """The masked columns of a table."""

    kinds: Mapping[str, MaskKind]
    """The kind of mask (`hash` or `drop`) of each masked column. Empty if the format no longer has the masked field;
    its value may then still be among the fields without a name."""
    password: PasswordSource
    """The source of the key of `hash`."""
    key: bytes | None = field(default=None, repr=False, compare=False)
    """The key of `hash` itself, for tasks on machines that cannot read `password`."""
    where: Expression | None = None
    computed: tuple[tuple[str, Expression, DataType], ...] = ()
    """The names, expressions and types of computed columns."""
    excluded: frozenset[str] = frozenset()
    """Columns that readers do not see, though they are no secret."""
    used_fields: tuple[pa.Field, ...] = ()
    """The columns that the expressions use."""

    def schema(self, layout: TableLayout) -> StructType:
        """Return the columns of the table that readers see."""
        typed = [
            StructField(one.name, StringType()) if self.kinds.get(one.name) == "hash" else one
            for one in layout.spark_schema()
            if self.shows(one.name) and one.name not in self._computed_names
        ]
        typed += [StructField(name, kind) for name, _, kind in self.computed]
        shared = [StructField(name, kind) for name, kind in VERSION_COLUMNS if self.shows(name)]
        return StructType([*typed, *shared])

    def masked(self, rows: pa.Table) -> pa.Table:
        """Return rows of the exact table as readers see them."""
        key = self._key() if "hash" in self.kinds.values() else b""
        columns = {}
        if self.where is not None:
            rows = rows.filter(keeps(self.where, self._used_columns(rows)))
        for name in filter(self.shows, rows.column_names):
            column = rows[name].combine_chunks()
            columns[name] = hmac_column(column, key) if self.kinds.get(name) == "hash" else column
        used = self._used_columns(rows)
        columns |= {name: evaluate(expression, used) for name, expression, _ in self.computed}
        if MISFITS_COLUMN in columns:
            columns[MISFITS_COLUMN] = self._shown_names(columns[MISFITS_COLUMN])
        if INEXACT_COLUMN in columns:
            columns[INEXACT_COLUMN] = self._shown_texts(columns[INEXACT_COLUMN])
        return pa.table(columns)

    @cached_property
    def _computed_names(self) -> frozenset[str]:
        return frozenset(name for name, _, _ in self.computed)

    def _used_columns(self, rows: pa.Table) -> pa.Table:
        """Return the columns that the expressions use; one that the rows of a file lack is null."""
        missing = [one for one in self.used_fields if one.name not in rows.column_names]
        for one in missing:
            rows = rows.append_column(one, pa.nulls(rows.num_rows, one.type))
        return rows.select([one.name for one in self.used_fields])

    def _shown_names(self, lists: pa.ListArray) -> pa.ListArray:
        """Remove the columns that readers do not see from lists of column names; an empty list becomes null."""
        names, rows = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
        distinct = pc.unique(names)
        seen = distinct.filter(pa.array([self.shows(name) for name in distinct.to_pylist()], pa.bool_()))
        shown = pc.is_in(names, seen)
        kept = rows[shown.to_numpy(zero_copy_only=False)]
        counts = np.bincount(kept, minlength=len(lists))
        offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(offsets), names.filter(shown), type=lists.type, mask=pa.array(counts == 0)
        )

    def _shown_texts(self, texts: pa.StringArray) -> pa.StringArray:
        """Remove the columns that readers do not see from comma-separated names; an empty text becomes null."""
        coded = texts.dictionary_encode()
        shown = [
            ",".join(filter(self.shows, text.split(","))) or None for text in coded.dictionary.to_pylist()
        ]
        return pa.array(shown, pa.string()).take(coded.indices)

    def property_value(self) -> str:
        """Return the value of `MASKS_PROPERTY`; another key of `hash` gives another value."""
        shown = hash_text(MASKS_PROPERTY, self._key())[:16] if "hash" in self.kinds.values() else None
        own: dict[str, Any] = {"columns": dict(self.kinds), "form": MASK_FORMAT_VERSION, "key": shown}
        own |= {"where": self.where.text} if self.where is not None else {}
        own |= {"computed": {name: one.text for name, one, _ in self.computed}} if self.computed else {}
        own |= {"excluded": sorted(self.excluded)} if self.excluded else {}
        return json.dumps(own, sort_keys=True)

    def shows(self, column: str) -> bool:
        """Return whether readers see a column of the exact table."""
        return (
            column not in (TUPLE_COLUMN, EXTRA_COLUMN)
            and self.kinds.get(column) != "drop"
            and column not in self.excluded
        )

    def with_loaded_key(self) -> Mask:
        """Return the mask with its key, read from the environment or a file that the tasks' machines may lack."""
        return replace(self, key=self._key()) if "hash" in self.kinds.values() else self

    def _key(self) -> bytes:
        if self.key is not None:
            return self.key
        key = self.password.read()
        if len(key) < HASH_KEY_MIN_CHARACTERS:
            raise ConfigurationError(
                f"the key of masks has {len(key)} characters, fewer than {HASH_KEY_MIN_CHARACTERS}: it can be guessed",
                advice="see spaces.mask_key_env, spaces.mask_key_file",
            )
        return key.encode()


def mask_of(config: Spaces, spaces: Sequence[Space], layout: TableLayout, *, is_masked: bool) -> Mask | None:
    """Return the mask of a table, None if it has no masked field.

    Args:
        is_masked: Whether the table is masked already: then it stays masked as long as the configuration has a mask for
            it.

    Raises:
        UnsupportedError: A field of the primary key is configured as masked: `_key` would still contain it.
    """
    kinds = {name: kind for space in spaces for name, kind in config.masks_of(space.name).items()}
    columns = dict(zip((one.name for one in layout.fields), layout.column_names, strict=True))
    found = {columns[name]: kind for name, kind in kinds.items() if name in columns}
    for space in spaces:
        keys = {space.fields[part.field].name for part in space.primary_key if part.field < len(space.fields)}
        if keys & kinds.keys():
            raise UnsupportedError(
                f"{', '.join(sorted(keys & kinds.keys()))}: a field of the primary key cannot be masked",
                space=space.name,
                advice="see spaces.masks",
            )
    settings = config.table_settings(layout.space)
    if not (found or (kinds and is_masked) or settings.has_readers_table):
        return None
    mask = Mask(found, config.mask_key())
    try:
        return _with_table_settings(mask, settings, layout, columns)
    except ExpressionError as error:
        raise UnsupportedError(error.reason, space=layout.space, advice="see spaces.tables") from error


def _with_table_settings(
    mask: Mask, settings: TableSettings, layout: TableLayout, columns: Mapping[str, str]
) -> Mask:
    where = None if settings.where is None else parse(settings.where)
    computed = {name: parse(text) for name, text in settings.columns.items()}
    used = frozenset[str]().union(*(one.columns for one in (where, *computed.values()) if one is not None))
    masked = used & set(mask.kinds)
    if masked:
        raise ExpressionError(f"an expression uses {', '.join(sorted(masked))}, which is masked")
    fields = [one for one in _exact_columns(layout) if one.name in used]
    unknown = used - {one.name for one in fields}
    if unknown:
        known = ", ".join(layout.column_names)
        raise ExpressionError(f"there is no column {', '.join(sorted(unknown))}; the space has {known}")
    if where is not None:
        keeps(where, pa.schema(fields).empty_table())
    return replace(
        mask,
        where=where,
        computed=tuple((name, one, spark_type(one, fields)) for name, one in computed.items()),
        excluded=frozenset(columns.get(name, name) for name in settings.exclude_columns) - _LASTING_COLUMNS,
        used_fields=tuple(fields),
    )


_LASTING_COLUMNS = frozenset((INEXACT_COLUMN, MISFITS_COLUMN, *(name for name, _ in VERSION_COLUMNS)))
"""Columns of each space's table that cannot be excluded."""


def _exact_columns(layout: TableLayout) -> list[pa.Field]:
    shared = to_arrow_schema(StructType([StructField(*one) for one in VERSION_COLUMNS]), timezone="UTC")
    return [*layout.arrow_fields()[:-1], *shared]


def check_still_masked(
    earlier: Iterable[Space], definition: Space, masks_of: Callable[[str], Mapping[str, MaskKind]]
) -> None:
    """Raise UnsupportedError if a field that was masked before is not masked in the new definition.

    The field or the space may have been renamed; `masks_of` returns the masked fields of a space by its name.
    """
    still = masks_of(definition.name)
    for before in earlier:
        masked = masks_of(before.name)
        for old, new in zip(before.fields, definition.fields, strict=False):
            if old.name in masked and new.name not in still:
                raise UnsupportedError(
                    f"{before.name}.{old.name} is masked, and is called {definition.name}.{new.name} now, "
                    "which is not masked",
                    space=definition.name,
                    advice="see spaces.masks",
                )
