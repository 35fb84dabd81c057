"""`aggregator views --dbt`: the text equals the golden file, dbt accepts it, and its tests hold."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from observe.dbt_sources import sql_type
from observe.sql_views import dbt_source
from schemas.descriptions import COLUMNS, TABLES, VERSION_COLUMNS
from schemas.tables import SYSTEM_TABLES, VALIDATIONS
from schemas.tables import VERSION_COLUMNS as WRITTEN
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment

GOLDEN = Path(__file__).parent / "golden" / "sources.yml"
USERS, PEOPLE = 600, 601


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the dbt source of two spaces, one with a masked field, after two batches."""
    folder = tmp_path_factory.mktemp("dbt")
    a, b = Node(folder, "a1").define(USERS, "users"), Node(folder, "b1").define(PEOPLE, "my-people")
    a.put(USERS, 1, "a", 1, 1).close()
    b.put(PEOPLE, 1, "b", 2, 3).close()
    masks = {"masks": {"my-people": {"name": "drop"}}}
    first = Deployment.aggregated(folder, a, spaces=masks)
    deployment = Deployment.of(folder, a, b, spaces=masks)
    deployment.offset = first.offset
    deployment.run()
    return dbt_source(deployment.config())


def tables(text: str) -> dict[str, Any]:
    (source,) = yaml.safe_load(text)["sources"]
    return {table["name"]: table for table in source["tables"]}


def test_the_text_is_the_golden_file(text: str) -> None:
    """After an intended change, run this file with GOLDEN=1 to write the golden file."""
    if os.environ.get("GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_the_key_of_each_space_is_tested_and_a_masked_table_has_no_tuple(text: str) -> None:
    found = tables(text)
    for name in ("users", "my_people__x2_2d", "_exact_my_people__x2_2d"):
        columns = {column["name"]: column for column in found[name]["columns"]}
        assert columns["_key"]["data_tests"] == ["not_null", "unique"]
        assert ("_tuple" in columns) == (name != "my_people__x2_2d")
        assert columns["id"]["description"].endswith("part 1 of the primary key.")
    assert "name" not in {column["name"] for column in found["my_people__x2_2d"]["columns"]}
    assert "my-people" in found["my_people__x2_2d"]["description"]


def test_the_versions_are_those_of_the_newest_epoch(text: str) -> None:
    found = tables(text)
    versions = {
        name: table.get("config", {}).get("meta", {}).get("delta_version") for name, table in found.items()
    }
    assert versions["users"] > 0 < versions["_changelog"]
    assert versions["_cluster"] is None


def test_each_column_of_each_table_is_described() -> None:
    own = {**SYSTEM_TABLES, "_validations": VALIDATIONS}
    assert {name for name in own if name not in TABLES} == set()
    assert {column.name for table in own.values() for column in table if column.name not in COLUMNS} == set()
    assert {name for name, _ in WRITTEN if name not in VERSION_COLUMNS} == set()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("long", "bigint"),
        ("decimal(20,0)", "decimal(20,0)"),
        ({"type": "array", "elementType": "string"}, "array<string>"),
        ({"type": "map", "keyType": "string", "valueType": "long"}, "map<string, bigint>"),
        ({"type": "struct", "fields": [{"name": "a", "type": "integer"}]}, "struct<a: int>"),
    ],
)
def test_types_are_those_of_sql(kind: Any, expected: str) -> None:
    assert sql_type(kind) == expected


DBT = os.environ.get("DBT") or shutil.which("dbt")


@pytest.mark.skipif(DBT is None, reason="no dbt on PATH, and none named by DBT")
def test_dbt_accepts_the_source(text: str, tmp_path: Path) -> None:
    """Tried with dbt-core 1.10.23 and dbt-duckdb 1.11.1."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models/sources.yml").write_text(text)
    (tmp_path / "dbt_project.yml").write_text('{name: t, version: "1.0", profile: t}')
    (tmp_path / "profiles.yml").write_text('t: {target: t, outputs: {t: {type: duckdb, path: ":memory:"}}}')
    command = [str(DBT), "--no-send-anonymous-usage-stats", "--warn-error", "-q", "ls", "--profiles-dir", "."]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [*command, "--resource-type", "test"],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    tests = sum(
        len(column.get("data_tests", ())) for table in tables(text).values() for column in table["columns"]
    )
    assert len(ended.stdout.splitlines()) == tests
