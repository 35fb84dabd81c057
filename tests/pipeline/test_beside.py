"""A table is built beside the stream under another configuration, compared, and swapped in one epoch."""

import json
import re
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from config.deployment import Config
from jobs.main import main
from observe.beside_comparison import compare
from pipeline.batch import BatchWriter
from pipeline.requests import beside
from pipeline.requests.arguments import SwapArguments
from pipeline.requests.beside import (
    BesideTable,
    beside_location,
    discard,
    refuse_other_changes,
    swap,
    with_sections,
)
from pipeline.requests.service import Service
from schemas.errors import UnsupportedError
from tests.jobs.written import Node, replicasets_of
from tests.pipeline.deployment import Deployment
from tests.udfs.messages import decimal_ext
from warehouse.system_tables import requests
from warehouse.warehouse import Warehouse

S, OTHER = 600, 601
FIELDS = (("id", "unsigned"), ("price", "decimal"), ("value", "integer"), ("tags", "any"))
KEYS = 60

SETTINGS: dict[str, dict[str, Any]] = {
    "policy": {"policies": {"spaces": {"orders": {"policy": "max", "column": "value"}}}},
    "type": {"spaces": {"tables": {"orders": {"decimal": "decimal(38,2)", "nested": "variant"}}}},
    "filter": {"spaces": {"tables": {"orders": {"where": "value > 5", "columns": {"twice": "value * 2"}}}}},
}
SETTINGS["all"] = {**SETTINGS["policy"], **SETTINGS["filter"]}


class Case:
    """Two replicasets that write the same keys, in two deployments: one changes its settings, the other had them."""

    def __init__(self, folder: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
        self.nodes = [Node(folder, "a1"), Node(folder, "b1")]
        for number, node in enumerate(self.nodes):
            node.define(S, "orders", FIELDS).define(OTHER, "others", FIELDS)
            for key in range(number * KEYS // 2, KEYS + number):
                node.put(
                    S, key, decimal_ext("1.005"), (key * 7 + number * 3) % 11, {"n": key}, at=key + number
                )
            node.put(OTHER, 1, decimal_ext("1.005"), 1, None, at=1).close()
        paths = {node.path.name: node.path for node in self.nodes}
        uuids = replicasets_of("a1", "b1")
        vectors: dict[str, Any] = {"deletion_vectors": "always"} if "policies" in after else {}
        self.made = Deployment(folder / "made", paths, uuids, **before, **vectors)
        self.wanted = Deployment(folder / "wanted", paths, uuids, **after, **vectors)
        self.after = after
        self.made.run()

    def config(self) -> Config:
        return Config.model_validate({**self.made.config().model_dump(exclude_unset=True), **self.after})

    def go_on(self, at: int) -> None:
        """Write rows of all kinds: new keys, changed ones, deleted ones, in one replicaset and in both."""
        a, b = self.nodes
        a.put(S, 1000 + at, decimal_ext("2.5"), 9, None, at=at).update(S, 3, ["=", 2, at % 13], at=at).delete(
            S, 4, at=at
        )
        b.delete(S, KEYS - 1, at=at).put(S, 40, decimal_ext("7.125"), at % 12, [at], at=at).put(
            S, 3, None, 6, None, at=at
        )
        for node in self.nodes:
            node.close()

    def built(self, writer: BatchWriter) -> BesideTable:
        found = BesideTable.of(writer.tables, writer.state, self.config(), "orders")
        found.bring_up()
        return found

    def swap(self, writer: BatchWriter) -> int:
        config = with_sections(writer.config, sections(self.config()))
        refuse_other_changes(writer.state, writer.config, config, "orders")
        done = swap(writer.tables, writer.state, config, "orders", "swap 1")
        writer.state = done.state
        writer.use_config(config)
        return done.changed_keys

    def batches(self, writer: BatchWriter) -> None:
        while self.made.batch(writer) is not None:
            pass


def sections(config: Config) -> SwapArguments:
    """Return the arguments of a request, as they are after a stay in `_requests`."""
    names = ("spaces", "types", "policies")
    found = {name: getattr(config, name).model_dump(mode="json", exclude_unset=True) for name in names}
    return SwapArguments.model_validate(json.loads(json.dumps({"space": "orders", **found})))


def rows(deployment: Deployment, table: str = "orders") -> list[str]:
    return sorted(repr(sorted(row.items())) for row in deployment.rows(table))


CHANGES = [
    ({}, SETTINGS["policy"]),
    ({}, SETTINGS["type"]),
    ({}, SETTINGS["filter"]),
    (SETTINGS["filter"], {"spaces": {}}),
    (SETTINGS["type"], SETTINGS["all"]),
]


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=["policy", "type", "filter", "no filter", "all"])
def test_after_a_swap_the_table_is_as_if_its_settings_had_been_there_from_the_start(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    case = Case(tmp_path, before, after)
    with case.made.writer() as (_, writer):
        case.built(writer)
        case.go_on(at=101)
        case.batches(writer)
        case.built(writer)
        case.go_on(at=102)
        case.batches(writer)
        old = rows(case.made)
        epoch = writer.state.epoch
        case.swap(writer)
        assert writer.state.epoch == epoch + 1
        case.wanted.run()
        assert rows(case.made) == rows(case.wanted) != old
        if after != {"spaces": {}}:  # the table is not needed then; `Service` removes it
            assert rows(case.made, "_exact_orders") == rows(case.wanted, "_exact_orders")
        case.go_on(at=103)
        case.batches(writer)
    case.wanted.run()
    assert rows(case.made) == rows(case.wanted)
    # A restart with the configuration of the swap finds nothing to change.
    case.made.settings |= {"spaces": {}, "policies": {}, **after}
    version = DeltaTable(str(tmp_path / "made/warehouse/aggregator.db/orders")).version()
    case.made.run()
    assert DeltaTable(str(tmp_path / "made/warehouse/aggregator.db/orders")).version() == version
    assert rows(case.made, "others") == rows(case.wanted, "others")


def test_the_second_table_is_brought_up_by_the_keys_that_differ(tmp_path: Path) -> None:
    case = Case(tmp_path, {}, SETTINGS["type"])
    steps: list[str] = []
    with case.made.writer() as (_, writer):
        case.built(writer).bring_up(steps.append)
        assert steps == []
        case.go_on(at=101)
        case.batches(writer)
        BesideTable.of(writer.tables, writer.state, case.config(), "orders").bring_up(steps.append)
    assert steps[0] == "looking for keys that differ"
    assert re.fullmatch(r"writing [567] keys that differ", steps[1])


def test_what_differs_is_shown_by_key(tmp_path: Path) -> None:
    case = Case(tmp_path, {}, {**SETTINGS["policy"], **SETTINGS["type"]})
    with case.made.writer() as (_, writer):
        found = compare("orders", writer.tables, case.built(writer).tables)
    assert found.types["price"] == ("decimal(38,18)", "decimal(38,2)")
    assert found.types["tags"] == ("string", "variant")
    assert found.rows == (KEYS + 1, KEYS + 1)
    assert (found.only_in_table, found.only_beside) == (0, 0)
    assert found.by_column["price"] == KEYS + 1
    assert 0 < found.by_column["value"] < KEYS // 2
    assert "price 1.005000000000000000 -> 1.00" in found.examples[0]


def test_rows_that_a_filter_leaves_out_are_counted_in_ranges_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("observe.beside_comparison.ROWS_AT_ONCE", 7)
    case = Case(tmp_path, {}, SETTINGS["filter"])
    with case.made.writer() as (_, writer):
        found = compare("orders", writer.tables, case.built(writer).tables)
    shown = sum(row["value"] > 5 for row in case.made.rows("orders"))
    assert (found.rows, found.only_in_table, found.differing) == ((KEYS + 1, shown), KEYS + 1 - shown, 0)
    assert found.types["twice"][0] is None


def test_a_swap_is_refused_unless_the_table_alone_changes(tmp_path: Path) -> None:
    case = Case(tmp_path, {}, SETTINGS["type"])
    with case.made.writer() as (_, writer):
        with pytest.raises(UnsupportedError, match="no table is built beside"):
            case.swap(writer)
        case.built(writer)
        case.after = {"types": {"decimal": "string"}}
        with pytest.raises(UnsupportedError, match="changes other tables too: others"):
            case.swap(writer)
        case.after = {"spaces": {"exclude": ["others"], "tables": SETTINGS["type"]["spaces"]["tables"]}}
        with pytest.raises(UnsupportedError, match=r"differs in spaces\.exclude"):
            case.swap(writer)
        case.after = SETTINGS["filter"]
        with pytest.raises(UnsupportedError, match="built under another configuration"):
            case.swap(writer)


def test_a_swap_that_fails_is_rolled_back_and_may_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, {}, SETTINGS["all"])

    def fail(*_: Any) -> Any:
        raise OSError("no")

    with case.made.writer() as (_, writer):
        before = rows(case.made)
        case.built(writer)
        monkeypatch.setattr(beside, "commit_epoch", fail)
        with pytest.raises(OSError, match="no"):
            case.swap(writer)
        monkeypatch.undo()
        assert rows(case.made) != before
        writer.roll_back()
        assert rows(case.made) == before
        case.go_on(at=101)
        case.batches(writer)
        assert case.swap(writer) > 0
    case.wanted.run()
    assert rows(case.made) == rows(case.wanted)


def test_a_stop_between_the_swap_and_its_epoch_is_rolled_back_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, {}, SETTINGS["filter"])

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    before = rows(case.made)
    with case.made.writer() as (_, writer):
        case.built(writer)
        monkeypatch.setattr(beside, "commit_epoch", stop)
        with pytest.raises(KeyboardInterrupt):
            case.swap(writer)
        monkeypatch.undo()
    with case.made.writer() as (_, writer):
        assert rows(case.made) == before
        case.swap(writer)
    case.wanted.run()
    assert rows(case.made) == rows(case.wanted)


def test_the_writer_serves_the_request_and_continues_with_the_new_settings(
    tmp_path: Path, spark: SparkSession
) -> None:
    case = Case(tmp_path, SETTINGS["filter"], {"spaces": {}})
    with case.made.writer() as (warehouse, writer):
        service = Service(spark, warehouse, writer.config, writer)
        arguments = sections(case.config()).model_dump(mode="json", exclude_unset=True)
        early = requests.ask(warehouse, "swap", arguments)
        service.serve()
        case.built(writer)
        asked = requests.ask(warehouse, "swap", arguments)
        case.go_on(at=101)
        case.batches(writer)
        service.serve()
        answers = {one.id: one for one in requests.load(warehouse)}
        assert "no table is built beside" in str(answers[early.id].message)
        assert str(answers[asked.id].message).startswith(
            f"orders was swapped in epoch {writer.state.epoch}, in "
        )
        assert not warehouse.exists("_exact_orders")
        case.go_on(at=102)
        case.batches(writer)
    case.wanted.run()
    assert rows(case.made) == rows(case.wanted)


def read(path: str) -> tuple[bool, int, int]:
    """Return of the newest version of a table: whether it has the new column, its rows, and those in the filter."""
    table = DeltaTable(path)
    is_new = "twice" in {field.name for field in table.schema().fields}
    query = "SELECT count(*) AS n, sum(CASE WHEN value > 5 THEN 1 ELSE 0 END) AS shown FROM opened"
    found = QueryBuilder().register("opened", table).execute(query).read_all()
    return is_new, int(found["n"][0].as_py()), int(found["shown"][0].as_py())


def seen_during_swap(case: Case, reads: int, threads: int = 2) -> set[tuple[bool, int, int]]:
    """Return what readers see who read as fast as they can while a table is swapped, for at least so many reads."""
    path = str(case.made.folder / "warehouse/aggregator.db/orders")
    found: list[tuple[bool, int, int]] = []
    is_swapped = threading.Event()

    def read_on() -> None:
        while not is_swapped.is_set() or len(found) < reads:
            found.append(read(path))

    with case.made.writer() as (_, writer):
        case.built(writer)
        workers = [threading.Thread(target=read_on) for _ in range(threads)]
        for worker in workers:
            worker.start()
        while len(found) < reads // 2:
            is_swapped.wait(0.01)
        case.swap(writer)
        is_swapped.set()
        for worker in workers:
            worker.join()
    assert len(found) >= reads
    return set(found)


def test_readers_see_the_old_table_or_the_new_one(tmp_path: Path) -> None:
    case = Case(tmp_path, {}, SETTINGS["filter"])
    shown = sum(row["value"] > 5 for row in case.made.rows("orders"))
    assert seen_during_swap(case, reads=40) == {(False, KEYS + 1, shown), (True, shown, shown)}


@pytest.mark.soak
def test_readers_see_the_old_table_or_the_new_one_in_ten_thousand_reads(tmp_path: Path) -> None:
    case = Case(tmp_path, {}, SETTINGS["filter"])
    shown = sum(row["value"] > 5 for row in case.made.rows("orders"))
    assert seen_during_swap(case, reads=10_000) == {(False, KEYS + 1, shown), (True, shown, shown)}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    case = Case(tmp_path, {}, SETTINGS["type"])
    path = tmp_path / "deployment.yaml"
    path.write_text(case.config().model_dump_json(exclude_unset=True))
    yield path
    location = Warehouse(None, case.config().warehouse).location
    assert not discard(location, "orders")


def test_the_command_builds_compares_and_discards(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["orders", "--config", str(file)]
    assert main("rebuild", [*words, "--compare"]) == 1
    assert "no table is built beside" in capsys.readouterr().err
    assert main("rebuild", [*words, "--beside"]) == 0
    path = capsys.readouterr().out.split()[-1]
    assert path == beside_location(Warehouse(None, str(file.parent / "made/warehouse")).location).uri(
        "orders"
    )
    prices = DeltaTable(path).to_pyarrow_table(columns=["price"])["price"].to_pylist()
    assert set(prices) == {Decimal("1.00")}
    assert main("rebuild", [*words, "--compare"]) == 0
    printed = capsys.readouterr().out
    assert "column price: decimal(38,18) -> decimal(38,2)" in printed
    assert f"keys with other values: {KEYS + 1}; price of {KEYS + 1}" in printed
    assert main("rebuild", [*words, "--discard"]) == 0
    assert main("rebuild", [*words, "--discard"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "what was built beside is removed",
        "nothing was built beside",
    ]
    assert main("rebuild", [*words, "--beside", "--dry-run"]) == 2
