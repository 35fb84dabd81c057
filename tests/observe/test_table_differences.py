"""Whatever somebody does to a table while the job is stopped: each command names it, until it is taken back."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from config.deployment import Config
from jobs import doctor, plan, status
from jobs.doctor import current_problems
from observe.deployment_problems import deployment_problems
from observe.doctor.doctor import Deployment as Checked
from observe.doctor.doctor import findings_of
from observe.doctor.findings import Level
from observe.planned_changes import planned_changes
from pipeline.preview import preview_next_run
from schemas.errors import AggregatorError
from tests.pipeline.deployment import Deployment
from tests.soaked import IS_SOAK, partly_soaked
from tests.truth import OWN_ROOT
from warehouse.delta.newest_epoch import newest_row
from warehouse.system_tables.table_differences import table_differences

A = OWN_ROOT / "2.6.0" / "a1"
Act = Callable[[Path], object]
"""Does something to the folder of the tables."""


def table(name: str, act: Callable[[DeltaTable], object]) -> Act:
    return lambda folder: act(DeltaTable(str(folder / name)))


def delete(name: str) -> Act:
    return table(name, lambda opened: opened.delete())


def append_again(opened: DeltaTable) -> None:
    write_deltalake(opened, opened.to_pyarrow_table().slice(0, 1), mode="append")


def lose(name: str) -> Act:
    return lambda folder: shutil.rmtree(folder / name)


def cut_log(name: str) -> Act:
    """Lose the newest commit, as an older copy of the folder has it."""

    def cut(folder: Path) -> None:
        log = folder / name / "_delta_log"
        sorted(log.glob("*.json"))[-1].unlink()
        for checkpoint in (*log.glob("*.parquet"), *log.glob("_last_checkpoint")):
            checkpoint.unlink()

    return cut


CHANGES: Mapping[str, tuple[Act, str, str]] = {
    "delete": (delete("accounts"), "table_changed", "accounts"),
    "append": (table("accounts", append_again), "table_changed", "accounts"),
    "restore": (table("accounts", lambda opened: opened.restore(0)), "table_changed", "accounts"),
    "constraint": (
        table("accounts", lambda opened: opened.alter.add_constraint({"positive": "id > -1"})),
        "table_changed",
        "accounts",
    ),
    "delete of the log": (delete("_changelog"), "table_changed", "_changelog"),
    "delete of versions": (table("_schema", append_again), "table_changed", "_schema"),
    "delete of ids": (delete("_cluster"), "table_changed", "_cluster"),
    "delete of maps": (delete("_applier_map"), "table_changed", "_applier_map"),
    "delete of epochs": (
        table("_epochs", lambda opened: opened.delete("epoch > 0")),
        "table_changed",
        "_epochs",
    ),
    "lost": (lose("accounts"), "table_lost", "accounts"),
    "lost ids": (lose("_cluster"), "table_lost", "_cluster"),
    "older": (cut_log("accounts"), "table_lost", "accounts"),
    "older log": (cut_log("_vclock"), "table_lost", "_vclock"),
}

ASKED = {"delete", "constraint", "delete of maps", "delete of epochs", "lost ids", "older"}
"""Changes about which the suite asks each command: each state of a table of a space, and of an own one."""

HARMLESS: Mapping[str, Act] = {
    "compact": table("_changelog", lambda opened: opened.optimize.compact()),
    "comment": table("accounts", lambda opened: opened.alter.set_table_description("a table")),
    "taken back": lambda folder: [
        delete("accounts")(folder),
        table("accounts", lambda opened: opened.restore(opened.version() - 1))(folder),
    ],
    "a table of their own": lambda folder: [
        write_deltalake(str(folder / "mine"), DeltaTable(str(folder / "_gaps")).to_pyarrow_table(), mode=mode)
        for mode in ("append", "overwrite")
    ],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    Deployment(folder, {"a1": A}).run(6_000)
    return folder / "warehouse"


@pytest.fixture
def stopped(tmp_path: Path, made: Path) -> Deployment:
    shutil.copytree(made, tmp_path / "warehouse")
    return Deployment(tmp_path, {"a1": A})


def tables_of(stopped: Deployment) -> Path:
    return stopped.folder / "warehouse" / "aggregator.db"


def named_by_doctor(config: Config) -> set[tuple[str, str]]:
    found = findings_of(Checked(config, None))
    if not {one.name for one in found} & doctor.WITHOUT_TABLES:
        found += current_problems(config)
    assert "batch_unfinished" not in {one.name for one in found}
    return {(one.name, one.subject.removeprefix("table ")) for one in found if one.level is Level.FAIL}


@pytest.mark.parametrize("change", CHANGES)
def test_each_command_names_it(stopped: Deployment, change: str) -> None:
    act, name, changed = CHANGES[change]
    act(tables_of(stopped))
    config, location = stopped.config(), stopped.location
    assert [one.table for one in table_differences(location, newest_row(location))] == [changed]
    if IS_SOAK or change in ASKED:
        problems = {(one.condition, one.subject) for one in deployment_problems(config)}
        assert (name, f"table {changed}") in problems
        assert (name, changed) in named_by_doctor(config)
        planned = {(one.name, one.subject) for one in planned_changes(config, preview_next_run(config))}
        assert (name, changed) in planned
    if not changed.startswith("_"):
        with stopped.writer() as (_, writer):
            assert set(writer.state.set_aside) == {changed}
        return
    with pytest.raises(AggregatorError) as refused, stopped.writer():
        pass
    assert refused.value.fields["table"] == changed
    assert refused.value.fields["advice"]


@pytest.mark.parametrize("change", HARMLESS)
def test_what_changes_no_rows_is_not_named(stopped: Deployment, change: str) -> None:
    HARMLESS[change](tables_of(stopped))
    config, location = stopped.config(), stopped.location
    assert list(table_differences(location, newest_row(location))) == []
    assert named_by_doctor(config) == set()
    with stopped.writer():
        pass
    if change == "a table of their own":
        assert DeltaTable(str(tables_of(stopped) / "mine")).version() == 1


@pytest.mark.parametrize("name", partly_soaked(["_epochs", "_vclock"], ["_changelog", "_cluster"]))
def test_a_hole_in_the_log_of_an_own_table(
    stopped: Deployment, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = DeltaTable(str(tables_of(stopped) / name))
    while opened.version() % 10 != 5:  # each tenth one has a checkpoint
        opened.alter.set_table_properties({"note": str(opened.version())}, raise_if_not_exists=False)
    commit = sorted((tables_of(stopped) / name / "_delta_log").glob("*.json"))[-4]
    copied = commit.rename(stopped.folder / "copied")
    said = f"the log of the table lacks its version {int(commit.stem)}, but has later ones"
    with pytest.raises(AggregatorError, match=said) as refused, stopped.writer():
        pass
    assert refused.value.fields["table"] == name
    assert "copy" in str(refused.value.fields["advice"])
    if name in ("_epochs", "_cluster"):
        with pytest.raises(AggregatorError, match=said):
            status.show(stopped.config(), as_json=False)
    else:
        assert status.show(stopped.config(), as_json=False) == 1
        assert said in "".join(capsys.readouterr())
    shutil.copy(copied, commit)
    with stopped.writer():
        pass
    location = stopped.location
    assert list(table_differences(location, newest_row(location))) == []


def test_lost_epochs_are_not_a_new_warehouse(stopped: Deployment) -> None:
    lose("_epochs")(tables_of(stopped))
    with pytest.raises(AggregatorError, match="it has no epoch, but _vclock has rows of epoch"):
        deployment_problems(stopped.config())
    with (
        pytest.raises(AggregatorError, match="it has no epoch, but _vclock has rows of epoch"),
        stopped.writer(),
    ):
        pass


def test_exit_codes(stopped: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    delete("accounts")(tables_of(stopped))
    config = stopped.config()
    assert status.show(config, as_json=False) == 1
    assert plan.show(config, "d.yaml", is_json=False) == 1
    said = "".join(capsys.readouterr())
    assert said.count("somebody else has changed the table: version") == 2
    assert said.count("`aggregator rebuild SPACE`") == 2
