"""What readers see of a space with masked fields: its columns without them, or with keyed hashes instead.

Such a space lies in two tables. The one that is named after it has no exact tuples, and nothing without a name, which a
mask cannot find; the other one, `_exact_<table>`, is what all computing is done on. So keys, operations and policies
know nothing of masks, and who may not read a field is given no table whose name begins with `_`.

Pure. Not here: writing (`jobs.batch.apply`), bringing tables into the form that a changed mask asks for
(`jobs.batch.prepare`, `jobs.batch.remask`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from pyspark.sql import Column
from pyspark.sql.types import StringType, StructField, StructType

from config.spaces import Kind, Spaces
from schemas.errors import ConfigurationError, UnsupportedError
from schemas.layout import EXTRA_COLUMN, TableLayout
from schemas.space import Space
from schemas.tables import VERSION_COLUMNS
from sources.iproto.address import Password
from udfs.masking import keyed, keyed_hash, text_of

TUPLE_COLUMN = "_tuple"
PROPERTY = "aggregator.masks"
"""The property of a table that says which masks its rows were written with."""

KEY_MIN = 16
"""Characters of the key of `hash`."""


@dataclass(frozen=True)
class Mask:
    """The masked columns of a table.

    Parameters
    ----------
    kinds : mapping of str to str
        By column; may be empty: its field has left the format, and may stand in what has no name.
    password : Password
        Where the key of `hash` is found.

    """

    kinds: Mapping[str, Kind]
    password: Password

    def schema(self, layout: TableLayout) -> StructType:
        """Return the table's columns."""
        typed = [
            StructField(field.name, StringType()) if self.kinds.get(field.name) == "hash" else field
            for field in layout.spark_schema()
            if self._is_shown(field.name)
        ]
        shared = [StructField(name, kind) for name, kind in VERSION_COLUMNS if self._is_shown(name)]
        return StructType([*typed, *shared])

    def columns(self, exact: Mapping[str, Column], layout: TableLayout) -> dict[str, Column]:
        """Return what goes into them, of what goes into the columns of the exact table."""
        types = {field.name: field.dataType for field in layout.spark_schema()}
        hashed = keyed_hash(self._key()) if "hash" in self.kinds.values() else None
        return {
            name: hashed(text_of(column, types[name]))
            if hashed is not None and self.kinds.get(name) == "hash"
            else column
            for name, column in exact.items()
            if self._is_shown(name)
        }

    def text(self) -> str:
        """Return what the property says: another key is another mask."""
        told = keyed(PROPERTY, self._key())[:16] if "hash" in self.kinds.values() else None
        return json.dumps({"columns": dict(self.kinds), "key": told}, sort_keys=True)

    def _is_shown(self, column: str) -> bool:
        return column not in (TUPLE_COLUMN, EXTRA_COLUMN) and self.kinds.get(column) != "drop"

    def _key(self) -> bytes:
        key = self.password.read()
        if len(key) < KEY_MIN:
            raise ConfigurationError(
                f"the key of masks has {len(key)} characters, fewer than {KEY_MIN}: it can be guessed",
                advice="see spaces.mask_key_env, spaces.mask_key_file",
            )
        return key.encode()


def mask_of(config: Spaces, spaces: Sequence[Space], layout: TableLayout, *, lasts: bool) -> Mask | None:
    """Return the mask of a table, None where none of its fields is to be masked.

    Parameters
    ----------
    spaces : sequence of Space
        The definitions that the table is of.
    layout : TableLayout
    lasts : bool
        Whether the table is masked already: then it stays so, as long as the configuration has a mask for it.

    Raises
    ------
    UnsupportedError
        A field of the primary key is to be masked: it would still stand in `_key`.

    """
    kinds = {name: kind for space in spaces for name, kind in config.masks_of(space.name).items()}
    columns = dict(zip((field.name for field in layout.fields), layout.names, strict=True))
    found = {columns[name]: kind for name, kind in kinds.items() if name in columns}
    for space in spaces:
        keys = {space.fields[part.field].name for part in space.primary_key if part.field < len(space.fields)}
        if keys & kinds.keys():
            raise UnsupportedError(
                f"{', '.join(sorted(keys & kinds.keys()))}: a field of the primary key cannot be masked",
                space=space.name,
                advice="see spaces.masks",
            )
    return Mask(found, config.mask_key()) if found or (kinds and lasts) else None


def check_exposed(definitions: Iterable[Space], masks_of: Callable[[str], Mapping[str, Kind]]) -> None:
    """Refuse that a masked field goes on under a name, or in a space, without a mask.

    Parameters
    ----------
    definitions : iterable of Space
        Of one space, in the order of its replicaset's log.
    masks_of : callable
        Returns the masked fields of a space by its name.

    Raises
    ------
    UnsupportedError
        With both names.

    """
    for before, after in combinations(definitions, 2):
        masked, still = masks_of(before.name), masks_of(after.name)
        for old, new in zip(before.fields, after.fields, strict=False):
            if old.name in masked and new.name not in still:
                raise UnsupportedError(
                    f"{before.name}.{old.name} is masked, and is called {after.name}.{new.name} now, which is not",
                    space=after.name,
                    advice="see spaces.masks",
                )
