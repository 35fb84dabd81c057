"""The SQL, Python and Lua of the pages, as printed, over the tables of two real servers with the default policy.

Sums are those that the servers themselves compute, to the last digit.
"""

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from observe.sql_views import view_statements
from tests.jobs.written import Node
from tests.live import Tarantool
from tests.pipeline.deployment import Deployment
from warehouse.delta.location import location_of

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [
    (page.relative_to(ROOT).as_posix(), language, text)
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    for language, text in re.findall(r"^```(sql|python|lua)\n(.*?)^```", page.read_text(), re.M | re.S)
]
"""Page, language and text of each block of code."""

MAKE = r"""
local number = ...
local decimal = require('decimal')
math.randomseed(number)
local function space(name, ...)
    local made = box.schema.space.create(name, {format = {...}})
    made:create_index('pk')
    return made
end
local function field(name, type) return {name = name, type = type, is_nullable = true} end
local id = {name = 'id', type = 'unsigned'}
local function digits(count)
    local found = {}
    for k = 1, count do found[k] = tostring(math.random(0, 9)) end
    return table.concat(found)
end
local accounts = space('accounts', id, field('balance', 'decimal'), field('updated', 'unsigned'))
for k = 1, 100 do
    local sign = k % 3 == 0 and '-' or ''
    accounts:insert{1000 * number + k, decimal.new(sign .. digits(14) .. '.' .. digits(math.random(1, 18))), k}
end
accounts:insert{202, decimal.new(number), number}
local items = space('items', id, field('tags', 'map'))
local docs = box.schema.space.create('docs')
docs:create_index('pk')
local people = space('people', id, field('name', 'string'))
if number == 1 then
    items:insert{1, {color = 'red', price = decimal.new('12345678901234567.01'), sizes = {7, 2}}}
    items:insert{2, {color = 'blue', price = decimal.new('0.5'), sizes = {1, 2}}}
    docs:insert{1, {name = 'Ann'}}
    docs:insert{2, {name = 'Bob'}}
    people:insert{1, 'Ann'}
    people:insert{2, '\xff'}
end
local bucket = space('_bucket', id, field('status', 'string'), field('destination', 'string'))
local users = space('users', id, field('bucket_id', 'unsigned'))
users:create_index('bucket_id', {parts = {{2, 'unsigned'}}, unique = false})
if number == 1 then
    bucket:insert{3, 'receiving'}
    users:insert{10, 3}
    bucket:replace{3, 'active'}
    users:insert{11, 3}
end
space('marks', id, field('label', 'string')):insert{number, 'month-end'}
"""

LATER = """
local number, decimal = ..., require('decimal')
for k = 1, 50 do
    box.space.accounts:update(1000 * number + k, {{'+', 'balance', decimal.new('0.000000000000000001')}})
end
box.space.accounts:delete{1000 * number + 99}
"""

SUM = """
local sum = require('decimal').new(0)
for _, tuple in box.space.accounts:pairs() do
    if tuple.id ~= ... then sum = sum + tuple.balance end
end
return tostring(sum)
"""

ORDER = "box.schema.space.create('orders'):create_index('pk') local order = {1} "

KEYS = {number: {1000 * number + k for k in range(1, 101) if k != 99} for number in (1, 2)}
"""Keys of accounts that are at the end in one replicaset alone, by its number; both have key 202."""

NOW = datetime(2026, 11, 27, tzinfo=UTC)

COLORS = [("red", Decimal("12345678901234567.01"), 7), ("blue", Decimal("0.5"), 1)]
NAMES = [(1, "Ann"), (2, "Bob")]


@dataclass
class Shop:
    """A deployment, and what its servers say."""

    deployment: Deployment
    uuids: list[str]
    sums: tuple[Decimal, ...]
    """Of all balances, at the marked instant and at the end."""
    epochs: tuple[int, ...]
    """Those of the marked instant and of the end."""
    wrote: tuple[str, int]
    """The instance and the lsn that the page's code has for a client's row."""

    def placed(self, text: str) -> str:
        """Return a page's text with the folders, epochs and instance of this deployment."""
        places = {
            "/data/warehouse": str(self.deployment.folder / "warehouse"),
            "/var/lib/tarantool/a1": str(self.deployment.sources["a1"]),
            "_epoch_41": f"_epoch_{self.epochs[0]}",
            "_epoch_42": f"_epoch_{self.epochs[1]}",
            "64d22e4d-ac92-4a23-899a-e59f34af5479": self.wrote[0],
            "lsn >= 1500": f"lsn >= {self.wrote[1]}",
        }
        for old, new in places.items():
            text = text.replace(old, new)
        return text


def block(page: str, language: str, beginning: str) -> str:
    """Return the only block of a page that begins so."""
    of_page = [text for on, kind, text in BLOCKS if (on, kind) == (page, language)]
    (found,) = (str(text) for text in of_page if text.startswith(beginning))
    return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                Tarantool(folder / name, cfg={"replicaset_uuid": str(UUID(int=n << 64 | 1 << 63, version=4))})
            )
            for n, name in enumerate(("a1", "b1"), start=1)
        }
        instants = {"markers": [{"space": "marks", "label": "label"}]}
        deployment = Deployment(
            folder, {name: one.directory for name, one in servers.items()}, instants=instants
        )

        def read() -> tuple[Decimal, int]:
            deployment.run()
            # Key 202 is in both, and the second server wrote it later.
            with localcontext(prec=60):
                total = Decimal(servers["a1"].eval(SUM, 202)) + Decimal(servers["b1"].eval(SUM, 0))
            return total, max(row["epoch"] for row in deployment.rows("_epochs", ["epoch"]))

        for number, server in enumerate(servers.values(), start=1):
            server.eval(MAKE, number)
        first = read()
        for number, server in enumerate(servers.values(), start=1):
            server.eval(LATER, number)
        write_order = block("docs/deploy.md", "lua", "box.space.orders")
        uuid, lsn = servers["b1"].eval(f"{ORDER} {write_order}")
        then = read()
        uuids = [server.eval("return box.info.uuid") for server in servers.values()]
    validated(deployment)
    return Shop(deployment, uuids, (first[0], then[0]), (first[1], then[1]), (uuid, lsn))


def validated(deployment: Deployment) -> None:
    """Write two runs of validation: one expectation fails in both, one in the first alone."""
    location = location_of(deployment.config().warehouse, "aggregator")
    rows = [
        {"validated_at": NOW + timedelta(days=run), "table": "people", "expectation": name, "holds": holds}
        | {"examples": f"[{run}]"}
        for name, *runs in (("fails", False, False), ("mended", False, True))
        for run, holds in enumerate(runs)
    ]
    write_deltalake(location.uri("_validations"), pa.Table.from_pylist(rows))


def logged(number: int) -> list[tuple[int, str, str | None]]:
    """Return what `MAKE` and `LATER` do to accounts, in their order: replicaset, type, key (None: in the tuple)."""
    made = [("INSERT", None)] * 101
    later = [("UPDATE", f"[{1000 * number + k}]") for k in range(1, 51)] + [
        ("DELETE", f"[{1000 * number + 99}]")
    ]
    return [(number, kind, key) for kind, key in [*made, *later]]


Answer = tuple[str, Collection[Any]]
"""Names of columns, and their values in each row: a list in the statement's order, or a set."""


def answers(shop: Shop) -> Mapping[tuple[str, str], list[Answer]]:
    """Return what each statement of each block of SQL finds, by the block's page and beginning."""
    first, later = shop.epochs
    origins = {(key, shop.uuids[number - 1]) for number, keys in KEYS.items() for key in keys}
    place = "replicaset_id segment position row"
    changes = {tuple(row[name] for name in place.split()) for row in shop.deployment.rows("_changelog")}
    return {
        ("docs/sql.md", "-- Which instance"): [
            ("local_id replicaset_id", [(None, 0), (1, 1), (1, 2)]),
            (
                "space key_json(key) policy winner_replicaset_id loser_replicaset_id",
                [("accounts", "[202]", "last_write_wins", 2, 1)],
            ),
            ("replicaset_id type key_json(key)", [*logged(1), *logged(2)]),
            ("space in_the_table count(1)", [("people", True, 1)]),
            ("reason count(1)", []),
            ("not_text rows", [(1, 2)]),
            ("type replicaset_id", [("INSERT", 1)]),
            ("bucket_id replicaset_id status", [(3, 1, "active")]),
        ],
        ("docs/sql.md", "-- Spark"): [("", {*COLORS}), ("id name", {("1", "Ann"), ("2", "Bob")})],
        ("docs/sql.md", "SELECT w.origin"): [
            ("id origin", origins | {(202, shop.uuids[1])}),
            ("then later", [shop.sums]),
            ("epoch instant", [(first, "month-end")]),
            ("sum(balance)", [shop.sums[:1]]),
        ],
        ("docs/sql.md", "-- Expectations"): [("table expectation", [("people", "fails")])],
        ("docs/columns.md", "SELECT _misfits"): [("_misfits hex(_tuple)", [(["name"], "9202A1FF")])],
        ("docs/deploy.md", "SELECT min"): [("min(epoch)", [(later,)])],
        ("docs/foreign-changes.md", "SELECT c.*"): [(place, changes)],
    }


@pytest.fixture(scope="module")
def session(spark: SparkSession, shop: Shop) -> SparkSession:
    """Return a session with the tables, views and functions of the deployment."""
    # Another test of the session may have registered tables of a folder that is gone.
    spark.sql("DROP DATABASE IF EXISTS aggregator CASCADE")
    for statement in view_statements(shop.deployment.config(), list(shop.epochs), ["month-end"]):
        spark.sql(statement)
    exec(shop.placed(block("docs/sql.md", "python", "from warehouse.sql_functions")), {"spark": spark})
    changes = eval(
        shop.placed(block("docs/foreign-changes.md", "python", "spark.readStream")), {"spark": spark}
    )
    stream = changes.writeStream.format("memory").queryName("my_changes").trigger(availableNow=True).start()
    stream.awaitTermination()
    return spark


SQL = [(page, text) for page, language, text in BLOCKS if language == "sql"]


@pytest.mark.spark
@pytest.mark.parametrize(("page", "text"), SQL, ids=[f"{page} {text[:20]}" for page, text in SQL])
def test_a_statement_finds_what_the_servers_have(
    page: str, text: str, shop: Shop, session: SparkSession
) -> None:
    (expected,) = (
        rows for (where, start), rows in answers(shop).items() if where == page and text.startswith(start)
    )
    statements = [one for one in re.split(r";\s*$", shop.placed(text), flags=re.MULTILINE) if one.strip()]
    for statement, (columns, rows) in zip(statements, expected, strict=True):
        found = session.sql(statement).collect()
        values = [tuple(row[name] for name in columns.split()) if columns else tuple(row) for row in found]
        assert (values if isinstance(rows, list) else {*values}) == rows, statement
        assert len(values) == len(rows), statement


def is_sum(found: Mapping[str, Any], shop: Shop) -> bool:
    return bool(found["total"] == shop.sums[1])


def are_values(found: Mapping[str, Any], _: Shop) -> bool:
    return (found["colors"], found["names"]) == (COLORS, NAMES)


PYTHON: Mapping[tuple[str, str], Callable[[Mapping[str, Any], Shop], bool]] = {
    ("docs/sql.md", "# Polars\nimport polars as pl\n\naccounts"): is_sum,
    ("docs/sql.md", "# DuckDB\nimport duckdb, polars as pl\n\naccounts"): is_sum,
    ("docs/sql.md", "# pandas: its decimals"): is_sum,
    ("docs/sql.md", "# DuckDB\nimport duckdb, polars as pl\n\nitems"): are_values,
    ("docs/sql.md", "# Polars\nimport polars as pl\n\nitems"): are_values,
    ("docs/sql.md", "# pandas\nimport decimal, json"): are_values,
    ("docs/readers.md", "import pyarrow"): lambda found, shop: (
        sum(found["arrow"]["balance"].to_pylist()) == shop.sums[1]
    ),
}
"""Whether a block of Python without Spark finds what the servers have, by its page and beginning."""


@pytest.mark.parametrize(("page", "start"), PYTHON, ids=[f"{page} {start[:20]}" for page, start in PYTHON])
def test_python_finds_what_the_servers_have(page: str, start: str, shop: Shop) -> None:
    found: dict[str, Any] = {}
    with localcontext(prec=60):
        exec(shop.placed(block(page, "python", start)), found)
        assert PYTHON[page, start](found, shop)


@pytest.mark.spark
def test_the_data_source_reads_what_the_server_wrote(
    shop: Shop, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, Any] = {"spark": spark}
    exec(shop.placed(block("docs/reference/data-source.md", "python", "from sources.xlog")), found)
    assert re.search(r"\|\s+\d+\|\s+1\|", capfd.readouterr().out)  # the bucket's second state
    assert found["rows"].columns == found["stream"].columns


def test_the_function_of_the_page_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page_rules.py").write_text(block("docs/semantics.md", "python", "def resolve"))
    monkeypatch.syspath_prepend(tmp_path)
    nodes = [Node(tmp_path, name) for name in ("a1", "b1")]
    for balance, node in zip((30, 10), nodes, strict=True):
        node.define(600, "accounts", (("id", "unsigned"), ("balance", "unsigned"))).put(600, 1, balance)
    policy = {"policy": "custom", "function": "page_rules:resolve"}
    deployment = Deployment.aggregated(tmp_path, *nodes, policies={"spaces": {"accounts": policy}})
    assert deployment.fields("accounts") == [[1, 30]]


RUN = {
    *PYTHON,
    ("docs/sql.md", "from warehouse.sql_functions"),
    ("docs/foreign-changes.md", "spark.readStream"),
    ("docs/reference/data-source.md", "from sources.xlog"),
    ("docs/semantics.md", "def resolve"),
    ("docs/deploy.md", "box.space.orders"),
    ("docs/deploy.md", "box.schema.user"),  # test_deploy_page.py
    ("docs/relay.md", "box.cfg"),  # tests/pipeline/replication_out/test_subscriber.py
}
"""Blocks of Python and Lua that tests run, by page and beginning."""


def test_each_block_of_python_and_lua_is_run() -> None:
    """One of SQL without an answer fails above."""
    blocks = [(page, text) for page, language, text in BLOCKS if language != "sql"]
    assert [
        one for one in blocks if not any(one[0] == page and one[1].startswith(t) for page, t in RUN)
    ] == []
