"""Describes the tables of a warehouse as a dbt source: YAML with columns, descriptions and tests.

The format is dbt's (docs.getdbt.com, "Source properties", dbt 1.8 or later: `data_tests`). `found` reads the tables of
the newest epoch through delta-rs, `sources` is a pure function.

Tests cover what always holds: `_key` of a space's table is unique, and columns that validation expects to be filled are
not null. A field of the primary key has no test: its column may hold the nearest value of its type, or NULL if
`_misfits` names it, so two different keys may look equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from deltalake import DeltaTable

from observe.validation.suites import PRESENT
from schemas.descriptions import COLUMNS, TABLES, UNIQUE, VERSION_COLUMNS
from schemas.names import column_name, exact_table, is_of_space, unescape
from schemas.states import SpaceState
from warehouse.place import Place
from warehouse.read import newest_of_each

KEYED = ("_key", "_tuple", "_replicaset_id")
"""Columns of a space's table that are never null."""

UNKNOWN = "Column that this release does not write."


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    name : str
    type : str
        In SQL.
    description : str
    is_unique, is_filled : bool
        Whether the column has no value twice, and whether it has no NULL.

    """

    name: str
    type: str
    description: str
    is_unique: bool = False
    is_filled: bool = False

    def as_dbt(self) -> dict[str, Any]:
        """Return the column in dbt's form."""
        tests = [name for name, holds in (("not_null", self.is_filled), ("unique", self.is_unique)) if holds]
        named = {"name": self.name, "description": self.description, "data_type": self.type}
        return named | ({"data_tests": tests} if tests else {})


@dataclass(frozen=True)
class Table:
    """A table of the newest epoch; `version` is Delta's, None for a table outside the epoch."""

    name: str
    description: str
    version: int | None
    columns: Sequence[Column]

    def as_dbt(self) -> dict[str, Any]:
        """Return the table in dbt's form."""
        named = {"name": self.name, "description": self.description}
        meta = {} if self.version is None else {"config": {"meta": {"delta_version": self.version}}}
        return named | meta | {"columns": [column.as_dbt() for column in self.columns]}


def sources(database: str, epoch: int, tables: Iterable[Table]) -> str:
    """Return the YAML text of a source.

    Parameters
    ----------
    database : str
        Name of the source and of the schema with its tables.
    epoch : int
        The newest one.
    tables : iterable of Table

    """
    source = {
        "name": database,
        "description": "Tables of several Tarantool replicasets, kept by the aggregator.",
        "schema": database,
        "loader": "tarantool-aggregator",
        "config": {"meta": {"epoch": epoch}},
        "tables": [table.as_dbt() for table in tables],
    }
    document = {"version": 2, "sources": [source]}
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    return "# Made by `aggregator views --dbt`; make it again after spaces were added.\n" + text


def found(place: Place, versions: Mapping[str, int]) -> list[Table]:
    """Return the tables of a warehouse at an epoch's versions; other tables in their current state.

    Parameters
    ----------
    place : Place
    versions : mapping of str to int
        Table to Delta version.

    """
    described = fields_of(place, versions.get("_schema"))
    tables = []
    for name in place.tables():
        opened = place.open(name, versions.get(name))
        if opened is not None and (name in versions or name in TABLES):
            tables.append(table_of(name, versions.get(name), opened, described))
    return tables


def fields_of(place: Place, version: int | None) -> dict[str, dict[str, str]]:
    """Return a description of each field, by table and column, from the newest definitions in `_schema`."""
    opened = place.open("_schema", version)
    rows = [] if opened is None else newest_of_each(opened, ["replicaset_id", "space_id"])
    result: dict[str, dict[str, str]] = {}
    for row in sorted(rows, key=lambda row: (row["replicaset_id"], row["space_id"])):
        if row["table_name"] is not None and row["state"] == SpaceState.PRESENT:
            result.setdefault(row["table_name"], {}).update(_fields(row["format"], row["primary_key"]))
    return result


def _fields(format_json: str, key_json: str) -> dict[str, str]:
    parts: dict[int, int] = {}
    for number, part in enumerate(json.loads(key_json), start=1):
        parts.setdefault(part["field"], number)
    return {
        column_name(field["name"]): f"Field {place + 1}, {field['type']}"
        + (f"; part {parts[place]} of the primary key." if place in parts else ".")
        for place, field in enumerate(json.loads(format_json))
    }


def table_of(
    name: str, version: int | None, opened: DeltaTable, described: Mapping[str, Mapping[str, str]]
) -> Table:
    """Return the description of a table.

    Parameters
    ----------
    name : str
    version : int or None
    opened : DeltaTable
    described : mapping
        Sentences about the fields of spaces, by table and column.

    """
    types = {field.name: sql_type(json.loads(field.type.to_json())) for field in opened.schema().fields}
    if name in TABLES:
        columns = [
            Column(
                one,
                kind,
                COLUMNS.get(one, UNKNOWN),
                one in UNIQUE.get(name, ()),
                one in PRESENT.get(name, ()),
            )
            for one, kind in types.items()
        ]
        return Table(name, TABLES[name], version, columns)
    exact = not is_of_space(name)
    seen = name.removeprefix(exact_table("")) if exact else name
    fields = described.get(seen, {})
    columns = [
        Column(
            column,
            kind,
            VERSION_COLUMNS.get(column) or fields.get(column) or "Field that no present format has.",
            column == "_key",
            column in KEYED,
        )
        for column, kind in types.items()
    ]
    what = "The whole rows of the masked space" if exact else "The winning version of each key of the space"
    return Table(name, f"{what} {unescape(seen)}, over all replicasets.", version, columns)


def sql_type(kind: Any) -> str:
    """Return a type of Delta's schema, decoded from its JSON, as Spark's SQL names it."""
    if isinstance(kind, str):
        return {"long": "bigint", "integer": "int"}.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{sql_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{sql_type(kind['keyType'])}, {sql_type(kind['valueType'])}>"
    fields = ", ".join(f"{one['name']}: {sql_type(one['type'])}" for one in kind["fields"])
    return f"struct<{fields}>"
