"""One instant over several replicasets: at each labelled epoch, what is moved between them is there exactly once."""

import random
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from jobs.status import show
from observe.sql_views import view_statements
from pipeline.batch import MakeDistributed
from pipeline.source_options import stream_options
from pipeline.state import State
from schemas.errors import ConfigurationError
from sources.xlog.directory.offset import InstantState, OffsetEntry, from_document, from_text, to_text
from sources.xlog.options import parse_options
from sources.xlog.spark_readers import XlogStreamReader
from sources.xlog.stream.instants import instant_between
from tests.jobs.written import BEGAN, replicasets_of
from tests.pipeline.bank import Bank, recovery_point, sum_at, sums_by_instant
from tests.pipeline.deployment import Deployment
from tests.pipeline.restarted import KilledError, Restarted
from tests.soaked import partly_soaked


def busy(folder: Path, *, is_apart: bool = False, kind: str = "point") -> Bank:
    bank = Bank(folder, is_apart=is_apart).transfers(3)
    for number in range(1, 5):
        bank.point(f"p{number}", kind=kind).transfers(number).describe(f"p{number}").transfers(2)
        if number % 2:
            bank.close()
    bank.close()
    return bank


def unpacked(deployment: Deployment) -> list[list[int]]:
    return deployment.fields("accounts")


@pytest.mark.parametrize("is_apart", [True, False])
@pytest.mark.parametrize("budget", partly_soaked([None, 1], [300]))
def test_the_sum_is_constant_at_each_instant(
    tmp_path: Path, executor: MakeDistributed | None, budget: int | None, is_apart: bool
) -> None:
    bank = busy(tmp_path, is_apart=is_apart)
    deployment = bank.deployment(tmp_path, executor)
    deployment.run(budget)
    assert sums_by_instant(deployment) == dict.fromkeys(bank.labels, bank.sum)


def test_other_epochs_have_money_in_flight(tmp_path: Path) -> None:
    bank = busy(tmp_path, is_apart=True)
    deployment = bank.deployment(tmp_path)
    deployment.run(1, batches=20)
    rows = deployment.rows("_epochs")
    sums = [sum_at(deployment, row["versions"]) for row in rows if "accounts" in dict(row["versions"])]
    assert len(set(sums)) > 1


@pytest.mark.parametrize("first", ["a1", "b1"])
def test_who_comes_first_waits(tmp_path: Path, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    bank = Bank(tmp_path)
    other = {"a1": "b1", "b1": "a1"}[first]
    bank.at = time.time() - BEGAN
    bank.transfers(5).point("p").transfers(5)
    bank.close(first)
    # The other one has begun, and has not come to the point.
    late = bank.nodes[other]
    rows, late._rows = late._rows, late._rows[:4]
    late.close()
    deployment = bank.deployment(tmp_path)
    assert deployment.run() == 1
    assert deployment.run() == 0
    assert sums_by_instant(deployment) == {}
    show(deployment.config(), as_json=False)
    (waiting,) = (line for line in capsys.readouterr().out.splitlines() if "waits for the others" in line)
    assert waiting.startswith(f"replicaset {first} (")
    assert waiting.count("at the instant p,") == 1
    late._rows = rows[4:]
    late._begins[-1] = 4
    late.close()
    deployment.run()
    assert sums_by_instant(deployment) == {"p": bank.sum}
    assert sum(row[1] for row in unpacked(deployment)) == bank.sum
    show(deployment.config(), as_json=False)
    assert "waits for the others" not in capsys.readouterr().out


@pytest.mark.parametrize("budget", [None, 1])
def test_a_point_that_one_replicaset_never_gets_is_given_up(
    tmp_path: Path, budget: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank(tmp_path, is_apart=budget is not None).transfers(2).point("lost", ["a1"])
    bank.transfers(2).point("found").transfers(2)
    bank.close()
    deployment = bank.deployment(tmp_path)
    deployment.run(budget)
    assert sums_by_instant(deployment) == {"found": bank.sum}
    named = [r.getMessage() for r in caplog.records if "is no instant of all replicasets" in r.getMessage()]
    assert len(named) == 1
    assert "'lost'" in named[0]


def test_nobody_waits_longer_than_the_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bank = Bank(tmp_path).transfers(5).point("lost", ["a1"]).transfers(5)
    deployment = bank.aggregated(tmp_path, instants={"wait": "1 hour"})
    # The logs are years old, so by the clock the bound is over.
    assert sum(row[1] for row in unpacked(deployment)) == bank.sum
    assert sums_by_instant(deployment) == {}
    assert "has not come to it in time" in caplog.text


def test_points_that_two_replicasets_have_in_another_order_are_not_both_instants(tmp_path: Path) -> None:
    bank = Bank(tmp_path).transfers(5)
    for one, other in (("p", "q"), ("q", "p")):
        bank.at += 1
        recovery_point(bank.nodes["a1"], one, bank.at)
        recovery_point(bank.nodes["b1"], other, bank.at)
        bank.transfers(1)
    bank.point("last")
    deployment = bank.aggregated(tmp_path)
    found = sums_by_instant(deployment)
    assert found.pop("last") == bank.sum
    assert len(found) <= 1


@pytest.mark.parametrize("label", ["name", 2])
def test_rows_of_a_space_of_the_users_mark_instants(tmp_path: Path, label: str | int) -> None:
    bank = busy(tmp_path, kind="row")
    markers = [{"space": "_recovery_point"}, {"space": "marks", "label": label}]
    deployment = bank.deployment(tmp_path, instants={"markers": markers})
    deployment.run(600)
    assert sums_by_instant(deployment) == dict.fromkeys(bank.labels, bank.sum)


def test_a_start_knows_the_marker_space_from_the_files(tmp_path: Path) -> None:
    bank = Bank(tmp_path).transfers(3)
    deployment = bank.aggregated(tmp_path, instants={"markers": [{"space": "marks", "label": "name"}]})
    bank.point("p", kind="row").transfers(3)
    bank.close()
    deployment.run()
    assert sums_by_instant(deployment) == {"p": bank.sum}


def test_a_label_may_come_again(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    for _ in range(3):
        bank.transfers(3).point("tick")
    bank.transfers(3)
    deployment = bank.aggregated(tmp_path)
    labelled = [row for row in deployment.rows("_epochs") if row["instant"] == "tick"]
    assert [sum_at(deployment, row["versions"]) for row in labelled] == [bank.sum] * 3


def test_points_come_one_after_another_in_one_block(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    for label in ("p", "q", "r"):
        bank.point(label)
    bank.transfers(3).point("s")
    deployment = bank.aggregated(tmp_path)
    assert sums_by_instant(deployment) == dict.fromkeys("pqrs", bank.sum)
    assert deployment.run() == 0


def test_one_replicaset_alone(tmp_path: Path) -> None:
    bank = Bank(tmp_path, names=("a1",))
    node = bank.nodes["a1"]
    bank.point("p")
    node.put(600, 999, 1, at=bank.at)
    deployment = bank.aggregated(tmp_path)
    assert sums_by_instant(deployment) == {"p": bank.sum}


def test_the_tables_are_those_without_instants(tmp_path: Path) -> None:
    bank = busy(tmp_path)
    cut, whole = bank.deployment(tmp_path / "cut"), bank.deployment(tmp_path / "whole", instants=None)
    cut.run(300)
    whole.run()
    assert unpacked(cut) == unpacked(whole)
    for table in ("_changelog", "accounts"):
        names = ["_lsn"] if table == "accounts" else ["replicaset_id", "lsn", "hash"]
        rows = [sorted(map(str, d.rows(table, names))) for d in (cut, whole)]
        assert rows[0] == rows[1]


def test_views_at_a_label(tmp_path: Path) -> None:
    bank = Bank(tmp_path).point("p1").transfers(3).point("2026-11-30")
    deployment = bank.aggregated(tmp_path)
    found = list(view_statements(deployment.config(), [], ["p1", "2026-11-30"]))
    assert any("`aggregator_at_p1`.`accounts`" in one for one in found)
    assert any("`aggregator_at_2026_11_30__x7_2dx10_2d`.`accounts`" in one for one in found)
    (epoch,) = [row for row in deployment.rows("_epochs") if row["instant"] == "p1"]
    version = dict(epoch["versions"])["accounts"]
    (view,) = [one for one in found if "`aggregator_at_p1`.`accounts`" in one]
    assert view.endswith(f"VERSION AS OF {version}")
    with pytest.raises(ConfigurationError, match="there is no instant other; the newest is 2026-11-30"):
        list(view_statements(deployment.config(), [], ["other"]))


def test_another_member_takes_over_at_a_point_and_behind_it(tmp_path: Path) -> None:
    bank = Bank(tmp_path).transfers(3).point("p").transfers(3)
    bank.close("a1")
    late = bank.nodes["b1"]
    rows, late._rows = late._rows, late._rows[:4]
    late.close()
    copy = tmp_path / "logs" / "a2"
    shutil.copytree(bank.nodes["a1"].path, copy)
    paths = {"a1": bank.nodes["a1"].path, "a2": copy, "b1": late.path}
    replicasets = {**replicasets_of("a1", "b1"), "a2": replicasets_of("a1")["a1"]}
    deployment = Deployment(tmp_path, paths, replicasets, instants={"wait": "10000 days"})
    deployment.run()
    assert sums_by_instant(deployment) == {}
    # The member that led is gone; the other one's log has the point as well, and it is not met again.
    shutil.rmtree(bank.nodes["a1"].path)
    del deployment.sources["a1"]
    deployment.run()
    late._rows, late._begins[-1] = rows[4:], 4
    late.close()
    deployment.run()
    assert sums_by_instant(deployment) == {"p": bank.sum}
    assert sum(row[1] for row in unpacked(deployment)) == bank.sum


@pytest.mark.parametrize("budget", [None, 1])
def test_a_point_up_to_which_rows_wait_is_no_instant(
    tmp_path: Path, budget: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank(tmp_path, is_apart=budget is not None).transfers(3)
    bank.nodes["a1"]._lsn += 1  # a row is missing
    bank.transfers(1).point("p")
    bank.close()
    deployment = bank.deployment(tmp_path)
    deployment.run(budget)
    assert sums_by_instant(deployment) == {}
    assert "'p' is no instant of all replicasets: rows of" in caplog.text


def test_a_source_that_is_removed_is_not_waited_for(tmp_path: Path) -> None:
    bank = Bank(tmp_path, names=("a1", "b1", "c1")).transfers(3)
    deployment = bank.aggregated(tmp_path, instants={"wait": "10000 days"})
    del deployment.sources["c1"]
    bank.point("p", ["a1", "b1"])
    bank.close()
    deployment.run()
    assert sums_by_instant(deployment) == {"p": bank.sum}


def test_a_whitelist_without_the_markers_leaves_the_instants(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    bank.close()
    bank.point("p")
    deployment = bank.aggregated(tmp_path)
    assert sums_by_instant(deployment) == {"p": bank.sum}
    other = Deployment(
        tmp_path / "other",
        {name: node.path for name, node in bank.nodes.items()},
        replicasets_of("a1", "b1"),
        origins={name: ["00000000-0000-4000-8000-000000000001"] for name in bank.nodes},
        instants={},
    )
    other.run()
    assert [row["instant"] for row in other.rows("_epochs")] == ["p"]


def test_an_offset_survives_its_text(tmp_path: Path) -> None:
    bank = busy(tmp_path)
    deployment = bank.deployment(tmp_path)
    deployment.run(300, batches=1)
    before: Mapping[str, OffsetEntry] = {}
    while deployment.offset != before:
        assert from_text(to_text(deployment.offset)) == deployment.offset
        before = deployment.offset
        deployment.run(300, batches=1)
    assert {one.instant.state for one in deployment.offset.values() if one.instant} == {InstantState.DONE}


@pytest.mark.parametrize("seed", partly_soaked([1], [0, *range(2, 6)]))
def test_the_sum_is_constant_whatever_comes_when_and_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    bank = Bank(tmp_path, seed, ("a1", "b1", "c1")[: dice.choice((2, 3))], is_apart=bool(seed % 2))
    bank.at = time.time() - BEGAN
    bank.close()
    restarted = Restarted(bank.deployment(tmp_path), monkeypatch)
    names = list(bank.nodes)
    for number in range(8):
        bank.transfers(dice.randrange(6)).point(f"p{number}").transfers(dice.randrange(3))
        bank.describe(f"p{number}")
        for name in dice.sample(names, dice.randrange(len(names) + 1)):
            bank.close(name)
        for _ in range(dice.randrange(3)):
            with suppress(KilledError):
                restarted.run(dice.choice((None, 1, 500)), dice.choice((0, *range(1, 30))))
    bank.close()
    restarted.run(None, 0)
    assert sums_by_instant(restarted.deployment) == dict.fromkeys(bank.labels, bank.sum)
    assert sum(row[1] for row in unpacked(restarted.deployment)) == bank.sum
    assert restarted.kills


def test_the_data_source_ends_batches_there(tmp_path: Path) -> None:
    bank = busy(tmp_path)
    config = bank.deployment(tmp_path).config()
    stream = XlogStreamReader(parse_options(stream_options(config, State(), 1)))
    offset, labels = stream.initialOffset(), []
    while (end := stream.latestOffset(offset, stream.getDefaultReadLimit())) != offset:
        stream.partitions(offset, end)
        found = instant_between(from_document(offset), from_document(end))
        labels += [] if found is None else [found.label]
        offset = end
    assert labels == bank.labels
