"""The section `spaces` of the configuration: which spaces become tables, their names, and what readers see of them.

It never holds the key of `hash` masks, only the name of an environment variable or of a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from config.lookups import VectorMode
from config.values import ConfigSection, DecimalType, Location, SqlName, mistake, unsupported_values
from schemas.errors import ExpressionError
from schemas.expression import parse
from schemas.names import table_name
from sources.iproto.address import PasswordSource

MaskKind = Literal["drop", "hash"]
"""How a field is masked: it has no column, or its column holds a keyed hash."""

StringColumnType = Literal["binary"]
"""The type of a string field's column: binary, for strings that may not be UTF-8."""

MisfitHandling = Literal["quarantine"]
"""The only value is `quarantine`: a row with a value that its column cannot hold is in `_quarantine` only."""


def _types_by_field_pattern(setting: object) -> object:
    """Convert a space's entry of `strings`: a single type, for all fields, to {`*`: type}; others are unchanged."""
    return {"*": setting} if isinstance(setting, str) else setting


StringFields = Annotated[
    dict[str, StringColumnType],
    BeforeValidator(_types_by_field_pattern),
    WithJsonSchema(
        {"anyOf": [{"const": "binary"}, {"type": "object", "additionalProperties": {"const": "binary"}}]}
    ),
]
"""`binary` for all string fields of a space, or {pattern of fields: `binary`}."""


OnDdl = Literal["evolve", "hold", "refuse"]
"""What a DROP or TRUNCATE of a space does to its table."""


class TableSettings(ConfigSection):
    """What the table of a space is; each key that is left out has the value of the deployment."""

    where: str | None = None
    """An SQL filter (`schemas.expression`): the readers' table has only the rows for which it is true."""
    columns: dict[SqlName, str] = Field(default_factory=dict)
    """Computed columns: name to SQL expression. One with the name of a field replaces its column."""
    exclude_columns: tuple[str, ...] = ()
    """Fields without a column in the readers' table."""
    nested: Literal["json", "variant"] | None = None
    """As `types.nested`."""
    decimal: DecimalType | None = None
    """As `types.decimal`."""
    on_ddl: OnDdl | None = None
    """`evolve` (default): a DROP or TRUNCATE empties the replicaset's part of the table. `hold`: the table stays as it
    is, and later rows of the space are not applied, until `aggregator heal` or `snapshot`. `refuse`: the job stops."""
    cluster_by: tuple[str, ...] = ()
    """Columns in whose order files are written, for readers who filter by them."""
    retention: Annotated[int, Field(ge=1)] | None = None
    """Days for which earlier versions stay readable, if more than `maintain --keep-days`."""
    deletion_vectors: VectorMode | None = None
    """As `deletion_vectors`."""

    @model_validator(mode="after")
    def _check_expressions(self) -> TableSettings:
        for text, path in ((self.where, ("where",)), *((t, ("columns", n)) for n, t in self.columns.items())):
            if text is not None:
                try:
                    parse(text)
                except ExpressionError as error:
                    raise mistake(f"{text!r} is no expression: {error}", *path) from None
        return self

    @property
    def has_readers_table(self) -> bool:
        """Whether readers see other rows or columns than those of the exact table."""
        return self.where is not None or bool(self.columns) or bool(self.exclude_columns)


class Spaces(ConfigSection):
    """Which spaces become tables, under which names."""

    include: tuple[str, ...] = ("*",)
    """Patterns of names, case-sensitive, `*` and `?` as in a shell."""
    exclude: tuple[str, ...] = ()
    """As `include`; a space that both match is left out."""
    rename: dict[str, str] = Field(default_factory=dict)
    """From a space's name to the name of its table."""
    per_replicaset: tuple[str, ...] = ()
    """Patterns of spaces that are not merged: each replicaset has its own table, `<table>__r<id>`."""
    strings: dict[str, StringFields] = Field(default_factory=dict)
    """From a pattern of spaces' names to `binary`, or to {pattern of fields: `binary`}: these fields of type string
    have binary columns, which can hold any string."""
    misfits: dict[str, MisfitHandling] = Field(default_factory=dict)
    """From a pattern of spaces' names to `quarantine`: a row with a value that its column cannot hold is left out of
    the table. Otherwise the row is in the table, the column is null, and `_misfits` names it."""
    local: Annotated[Literal[False], unsupported_values(True)] = False
    """Whether rows of local spaces, which belong to one instance, are included."""
    deletion_vectors: dict[str, VectorMode] = Field(default_factory=dict)
    """From a pattern of spaces' names to `auto`, `always` or `never`, in place of the deployment's `deletion_vectors`.
    The first pattern that matches counts."""
    masks: dict[str, dict[str, MaskKind]] = Field(default_factory=dict)
    """From a pattern of spaces' names to {field: `drop` or `hash`}. If patterns contradict, `drop` wins."""
    tables: dict[str, TableSettings] = Field(default_factory=dict)
    """From a pattern of spaces' names to what their tables are. Of several patterns that match, a later one adds to the
    earlier ones, and its keys win."""
    mask_key_env: str | None = None
    """The environment variable with the key of `hash`."""
    mask_key_file: Location | None = None
    """Or the file whose first line is that key."""

    @model_validator(mode="after")
    def _check_table_names(self) -> Spaces:
        taken: dict[str, str] = {}
        for space, table in self.rename.items():
            if not table or table_name(table) != table:
                raise mistake(f"{table!r} is not a table's name; allowed: a-z, 0-9, _", "rename", space)
            if table in taken:
                raise mistake(f"{table!r} is the name of {taken[table]!r} already", "rename", space)
            taken[table] = space
        return self

    @model_validator(mode="after")
    def _check_mask_key(self) -> Spaces:
        given = (self.mask_key_env is not None) + (self.mask_key_file is not None)
        hashes = any("hash" in kinds.values() for kinds in self.masks.values())
        if hashes and given != 1:
            raise mistake("hash needs a key; allowed: one of mask_key_env, mask_key_file", "masks")
        return self

    def masks_of(self, space_name: str) -> dict[str, MaskKind]:
        """Return field name to mask, by all patterns that match a space; the space may lack some of the fields."""
        masks: dict[str, MaskKind] = {}
        for pattern, kinds in self.masks.items():
            if fnmatchcase(space_name, pattern):
                masks |= {f: kind for f, kind in kinds.items() if masks.get(f) != "drop"}
        return masks

    def table_settings(self, space_name: str) -> TableSettings:
        """Return what the table of a space is, by all patterns that match its name."""
        found: dict[str, Any] = {}
        for pattern, settings in self.tables.items():
            if fnmatchcase(space_name, pattern):
                given = {name: getattr(settings, name) for name in settings.model_fields_set}
                columns = found.get("columns", {}) | given.pop("columns", {})
                found |= given | ({"columns": columns} if columns else {})
        return TableSettings(**found)

    def on_ddl(self, space_name: str) -> OnDdl:
        """Return what a DROP or TRUNCATE of a space does to its table."""
        return self.table_settings(space_name).on_ddl or "evolve"

    @property
    def has_readers_tables(self) -> bool:
        """Whether readers of some space may see a table other than the exact one."""
        return bool(self.masks) or any(one.has_readers_table for one in self.tables.values())

    def binary_fields(self, space_name: str, fields: Iterable[str]) -> frozenset[str]:
        """Return those of a space's string fields whose columns are binary."""
        patterns = [
            pattern
            for space, types in self.strings.items()
            if fnmatchcase(space_name, space)
            for pattern in types
        ]
        return frozenset(name for name in fields if _matches(name, tuple(patterns)))

    def quarantines_misfits(self, space_name: str) -> bool:
        """Whether rows with a value that its column cannot hold are left out of the space's table."""
        return _matches(space_name, tuple(self.misfits))

    def mask_key(self) -> PasswordSource:
        """Return where the secret key of `hash` masks is stored: in an environment variable or in a file."""
        return PasswordSource(self.mask_key_env, self.mask_key_file)

    def vector_mode(self, space_name: str) -> VectorMode | None:
        """Return when the table of a space gets deletion vectors; None if no pattern names the space."""
        modes = (mode for pattern, mode in self.deletion_vectors.items() if fnmatchcase(space_name, pattern))
        return self.table_settings(space_name).deletion_vectors or next(modes, None)

    def becomes_table(self, space_name: str) -> bool:
        """Whether a space becomes a table."""
        return _matches(space_name, self.include) and not _matches(space_name, self.exclude)

    def table(
        self, space_name: str, local_instance: int | None = None, replicaset_id: int | None = None
    ) -> str:
        """Return the name of a space's table: as renamed, or as `schemas.names` escapes it.

        Args:
            local_instance: Of a local space: the global id of its instance.
            replicaset_id: The replicaset of the space's rows; used only for spaces of `per_replicaset`.
        """
        unmerged = replicaset_id if _matches(space_name, self.per_replicaset) else None
        return table_name(self.rename.get(space_name, space_name), local_instance, unmerged)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
