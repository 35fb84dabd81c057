"""Masks fields of a space: readers see its columns without them, or keyed hashes instead.

A space with masked fields has two tables. The one named after the space has no exact tuples, and no fields without a
name, since a mask could not find them. The other one, `_exact_<table>`, has the whole rows, and the aggregator computes
on it alone: the code for keys, operations and policies does not deal with masks. A reader who may not see
a masked field must not be given access to tables whose names begin with `_`.

Pure. `pipeline.write.prepare` rewrites tables for a changed mask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StringType, StructField, StructType

from config.spaces import MaskKind, Spaces
from schemas.errors import ConfigurationError, UnsupportedError
from schemas.layout import EXTRA_COLUMN, INEXACT_COLUMN, MISFITS_COLUMN, TableLayout
from schemas.space import Space
from schemas.tables import VERSION_COLUMNS
from sources.iproto.address import PasswordSource
from udfs.tuples.masking import hash_text, hmac_column

TUPLE_COLUMN = "_tuple"
MASKS_PROPERTY = "aggregator.masks"
"""The table property with the masks that the table's rows were written with."""

MASK_FORMAT_VERSION = 2
"""The version of the way in which masked columns are written. It is incremented when the same masks give other columns
or values; tables with another version are rewritten."""

HASH_KEY_MIN_CHARACTERS = 16
"""Minimum length of the key of `hash`, in characters."""


@dataclass(frozen=True)
class Mask:
    """The masked columns of a table."""

    kinds: Mapping[str, MaskKind]
    """The kind of mask (`hash` or `drop`) of each masked column. Empty if the format no longer has the masked field;
    its value may then still be among the fields without a name.
    """
    password: PasswordSource
    """The source of the key of `hash`."""
    key: bytes | None = field(default=None, repr=False, compare=False)
    """The key of `hash` itself, for tasks on machines that cannot read `password`."""

    def schema(self, layout: TableLayout) -> StructType:
        """Return the columns of the table that readers see."""
        typed = [
            StructField(one.name, StringType()) if self.kinds.get(one.name) == "hash" else one
            for one in layout.spark_schema()
            if self.shows(one.name)
        ]
        shared = [StructField(name, kind) for name, kind in VERSION_COLUMNS if self.shows(name)]
        return StructType([*typed, *shared])

    def masked(self, rows: pa.Table) -> pa.Table:
        """Return rows of the exact table as readers see them."""
        key = self._key() if "hash" in self.kinds.values() else b""
        columns = {}
        for name in filter(self.shows, rows.column_names):
            column = rows[name].combine_chunks()
            columns[name] = hmac_column(column, key) if self.kinds.get(name) == "hash" else column
        if MISFITS_COLUMN in columns:
            columns[MISFITS_COLUMN] = self._shown_names(columns[MISFITS_COLUMN])
        if INEXACT_COLUMN in columns:
            columns[INEXACT_COLUMN] = self._shown_texts(columns[INEXACT_COLUMN])
        return pa.table(columns)

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
        return json.dumps(
            {"columns": dict(self.kinds), "form": MASK_FORMAT_VERSION, "key": shown}, sort_keys=True
        )

    def shows(self, column: str) -> bool:
        """Return whether readers see a column of the exact table."""
        return column not in (TUPLE_COLUMN, EXTRA_COLUMN) and self.kinds.get(column) != "drop"

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
        spaces: All definitions of the table's space.
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
    return Mask(found, config.mask_key()) if found or (kinds and is_masked) else None


def check_still_masked(
    earlier: Iterable[Space], definition: Space, masks_of: Callable[[str], Mapping[str, MaskKind]]
) -> None:
    """Check that a renamed field, or a field of a renamed space, is still masked if it was masked before.

    Args:
        earlier: The earlier definitions of the space, in log order.
        definition: The new definition.
        masks_of: Returns the masked fields of a space by its name.

    Raises:
        UnsupportedError: A field is not masked any more.
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
