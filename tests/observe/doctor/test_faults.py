"""Faults in a healthy deployment: `doctor` reports each one under its name, and writes nothing."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from config.deployment import Config
from config.subscribe import Subscribe
from jobs.doctor import WITHOUT_TABLES, current_problems
from observe.doctor import sources
from observe.doctor.doctor import Deployment, findings_of
from observe.doctor.findings import Level
from pipeline.commit.epoch import commit_epoch
from sources.spool.acks import LOCK_FILE
from tests.observe.files import files
from tests.pipeline.deployment import Deployment as Tables
from tests.truth import OWN_ROOT
from warehouse.copies import switch
from warehouse.delta.location import location_of
from warehouse.lock.lock import WriterLock

A, B = OWN_ROOT / "2.6.0" / "a1", OWN_ROOT / "2.6.0" / "b1"
A_UUID, B_UUID = "a0000000-0000-4000-8000-000000000000", "b0000000-0000-4000-8000-000000000000"

Fault = Callable[["Healthy"], None]


class Healthy:
    """A deployment without a fault, in which tests break something: a copy of a recorded log, its tables, settings."""

    def __init__(self, folder: Path, made: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.made, self.patch = folder, made, patch
        self.logs = folder / "a1"
        shutil.copytree(A, self.logs)
        self.settings: dict[str, Any] = {"start": "logs"}
        self.source: dict[str, Any] = {"name": "a1", "path": str(self.logs)}
        self.undo: list[Callable[[], object]] = []

    def config(self) -> Config:
        return Config.model_validate(
            {
                "warehouse": str(self.folder / "warehouse"),
                "checkpoint": str(self.folder / "checkpoint"),
                "sources": [self.source],
                **self.settings,
            }
        )

    def aggregate(self, *, is_complete: bool = True) -> Tables:
        """Write the tables of the logs as they are now; those of the complete logs are copied from the fixture."""
        tables = Tables(self.folder, {"a1": self.logs})
        if is_complete:
            shutil.copytree(self.made, self.folder / "warehouse")
        else:
            tables.run()
        return tables

    def log(self, number: int) -> Path:
        return sorted(self.logs.glob("*.xlog"))[number]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    Tables(folder, {"a1": A}).run()
    return folder / "warehouse"


@pytest.fixture
def healthy(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Healthy]:
    found = Healthy(tmp_path, made, monkeypatch)
    yield found
    for undo in reversed(found.undo):
        undo()


def no_java(one: Healthy) -> None:
    one.patch.setenv("JAVA_HOME", str(one.folder))


def no_delta_jar(one: Healthy) -> None:
    home = one.folder / "spark"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core_2.13-4.2.0.jar").touch()
    one.patch.setenv("SPARK_HOME", str(home))


def other_delta_jar(one: Healthy) -> None:
    no_delta_jar(one)
    (one.folder / "spark" / "jars" / "delta-spark_4.2_2.13-4.0.0.jar").touch()


def little_memory(one: Healthy) -> None:
    one.settings["local_bytes"] = 1 << 50


def full_disk(one: Healthy) -> None:
    """Use a tmpfs of one MiB if this user may mount one; else replace the reported free space."""
    one.settings["warehouse"] = str(one.folder / "small")
    (one.folder / "small").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(one.folder / "small")],
        capture_output=True,
        check=False,
    )
    if mounted.returncode == 0:
        one.undo.append(lambda: subprocess.run(["umount", str(one.folder / "small")], check=True))
        return
    whole = os.statvfs(one.folder)
    small = os.statvfs_result((*whole[:3], 1, 1, *whole[5:]))
    one.patch.setattr(os, "statvfs", lambda _: small)


def path_gone(one: Healthy) -> None:
    shutil.rmtree(one.logs)


def empty_folder(one: Healthy) -> None:
    path_gone(one)
    one.logs.mkdir()


def damaged_header(one: Healthy) -> None:
    one.log(1).write_bytes(b"XLOX\n0.13\n\n" + one.log(1).read_bytes()[11:])


def damaged_log(one: Healthy) -> None:
    data = bytearray(one.log(-2).read_bytes())
    data[len(data) // 2] ^= 0xFF
    one.log(-2).write_bytes(data)


def gap(one: Healthy) -> None:
    one.log(2).unlink()


def gap_behind_the_tables(one: Healthy) -> None:
    last = one.log(-1)
    last.rename(one.folder / "aside")
    one.log(-1).unlink()
    one.aggregate(is_complete=False)
    (one.folder / "aside").rename(last)


def no_snapshot(one: Healthy) -> None:
    one.settings["start"] = "snapshot"
    for file in one.logs.glob("*.snap"):
        file.unlink()
    one.source["replicaset"] = A_UUID


def only_snapshots(one: Healthy) -> None:
    one.settings["start"] = "snapshot"
    for file in one.logs.glob("*.xlog"):
        file.unlink()


def two_instances(one: Healthy) -> None:
    shutil.copy(sorted(B.glob("*.xlog"))[-1], one.logs)


def wrong_replicaset(one: Healthy) -> None:
    one.source["replicaset"] = B_UUID


def unknown_replicaset(one: Healthy) -> None:
    for file in (*one.logs.glob("*.snap"), one.log(0)):
        file.unlink()


def clock_behind(one: Healthy) -> None:
    """Set the clock that `doctor` reads to a time before the newest row's."""
    newest = sources.gather_source(one.config().sources[0], 1 << 30).newest_row_time
    assert newest is not None
    one.patch.setattr("observe.doctor.sources.time.time", lambda: newest - 60)


def damaged_spool(one: Healthy) -> None:
    spool = one.folder / "spool"
    spool.mkdir()
    (spool / LOCK_FILE).touch()
    shutil.copy(one.log(0), spool)
    first = spool / one.log(0).name
    first.write_bytes(b"nonsense" + first.read_bytes())
    one.settings["subscribe"] = {
        "replicasets": [{"name": "a", "spool": str(spool), "peers": [f"unix/:{one.folder}/none"]}]
    }


def servers_own_folder(one: Healthy) -> None:
    one.settings["subscribe"] = {
        "replicasets": [{"name": "a", "spool": str(one.logs), "peers": [f"unix/:{one.folder}/none"]}]
    }


def unwritable(one: Healthy) -> None:
    # Even root cannot write there.
    one.settings["warehouse"] = "/proc/aggregator"


def unwritable_checkpoint(one: Healthy) -> None:
    (one.folder / "file").touch()
    one.settings["checkpoint"] = str(one.folder / "file" / "checkpoint")


def warehouse_among_logs(one: Healthy) -> None:
    one.settings["warehouse"] = str(one.logs / "warehouse")


def logs_in_the_warehouse(one: Healthy) -> None:
    """Move the logs there; a link leads to them."""
    (one.folder / "warehouse").mkdir()
    one.logs.rename(one.folder / "warehouse" / "logs")
    one.logs.symlink_to(one.folder / "warehouse" / "logs")


def held_lock(one: Healthy) -> None:
    one.aggregate()
    lock = WriterLock(location_of(str(one.folder / "warehouse")), "a test")
    lock.__enter__()
    one.undo.append(lambda: lock.__exit__(None, None, None))


def secondary(one: Healthy) -> None:
    one.aggregate()
    location = location_of(str(one.folder / "warehouse"))
    switch.promote(location)
    switch.demote(location)


def newer_release(one: Healthy) -> None:
    with one.aggregate().writer() as (_, writer):
        state = replace(writer.state, settings='{"format": 2}')
        commit_epoch(writer.tables, state, {}, ("newer", 1))


def lost_file(one: Healthy) -> None:
    one.aggregate()
    next((one.folder / "warehouse").glob("aggregator.db/_schema/*.parquet")).unlink()


def lost_table(one: Healthy) -> None:
    one.aggregate()
    shutil.rmtree(one.folder / "warehouse" / "aggregator.db" / "_changelog")


def other_allocation(one: Healthy) -> None:
    one.aggregate()
    one.settings["cluster"] = {"allocation": "preserve"}


def no_function(one: Healthy) -> None:
    one.settings["policies"] = {"default": {"policy": "custom", "function": "no.such:function"}}


def no_mask_key(one: Healthy) -> None:
    one.settings["spaces"] = {"masks": {"*": {"name": "hash"}}, "mask_key_env": "NO_SUCH_VARIABLE"}


def bad_checkpoint(one: Healthy) -> None:
    offsets = one.folder / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1\n{}\nnonsense")
    (one.folder / "checkpoint" / "commits").mkdir()
    (one.folder / "checkpoint" / "commits" / "0").touch()


def no_checkpoint(one: Healthy) -> None:
    one.aggregate()


def rows_wait(one: Healthy) -> None:
    gap(one)
    one.aggregate(is_complete=False)


def shorter_logs(one: Healthy) -> None:
    one.aggregate()
    for file in (one.log(-1), one.log(-2)):
        file.unlink()


FAIL, WARN = Level.FAIL, Level.WARN
FAULTS: list[tuple[Fault, str, Level]] = [
    (no_java, "java_missing", FAIL),
    (no_delta_jar, "delta_jar_missing", WARN),
    (other_delta_jar, "delta_jar_version", FAIL),
    (little_memory, "memory_small", WARN),
    (full_disk, "disk_full", FAIL),
    (path_gone, "source_unreadable", FAIL),
    (empty_folder, "source_empty", FAIL),
    (damaged_header, "header_damaged", FAIL),
    (damaged_log, "log_damaged", FAIL),
    (gap, "log_gap", FAIL),
    (gap_behind_the_tables, "log_gap", FAIL),
    (no_snapshot, "no_snapshot", FAIL),
    (only_snapshots, "no_logs", WARN),
    (two_instances, "mixed_replicasets", FAIL),
    (wrong_replicaset, "other_replicaset", FAIL),
    (unknown_replicaset, "replicaset_unknown", FAIL),
    (clock_behind, "clock_ahead", WARN),
    (damaged_spool, "spool_damaged", FAIL),
    (servers_own_folder, "spool_damaged", FAIL),
    (unwritable, "warehouse_unwritable", FAIL),
    (unwritable_checkpoint, "checkpoint_unwritable", FAIL),
    (warehouse_among_logs, "warehouse_in_logs", WARN),
    (logs_in_the_warehouse, "logs_in_warehouse", WARN),
    (held_lock, "lock_held", WARN),
    (secondary, "not_primary", FAIL),
    (newer_release, "tables_newer", FAIL),
    (lost_file, "table_unreadable", FAIL),
    (lost_table, "table_lost", FAIL),
    (other_allocation, "allocation_changed", FAIL),
    (no_function, "custom_function", FAIL),
    (no_mask_key, "mask_key_missing", FAIL),
    (bad_checkpoint, "checkpoint_damaged", FAIL),
    (no_checkpoint, "checkpoint_missing", WARN),
    (rows_wait, "gap_open", WARN),
    (rows_wait, "rows_waiting", WARN),
    (shorter_logs, "source_behind", WARN),
]


def test_a_healthy_deployment_has_no_finding(healthy: Healthy) -> None:
    found = findings_of(Deployment(healthy.config(), None))
    assert [one for one in found if one.level is not Level.OK] == []
    assert {"java", "delta", "disk", "warehouse", "lock", "source", "begin"} <= {one.name for one in found}


@pytest.mark.parametrize(
    ("fault", "name", "level"),
    [pytest.param(*one, id=f"{one[0].__name__}-{one[1]}") for one in FAULTS],
)
def test_a_fault_is_reported_under_its_name(healthy: Healthy, fault: Fault, name: str, level: Level) -> None:
    fault(healthy)
    config = healthy.config()
    before = files(healthy.folder)
    found = findings_of(Deployment(config, config.subscribe))
    if not {one.name for one in found} & WITHOUT_TABLES:
        found += current_problems(config)
    assert files(healthy.folder) == before
    assert (name, level) in {(one.name, one.level) for one in found}
    (first, *_) = (one for one in found if one.name == name and one.level is level)
    assert first.advice


def test_a_fault_causes_no_other_finding(healthy: Healthy) -> None:
    """A gap in the logs of a source causes one finding only."""
    gap(healthy)
    found = findings_of(Deployment(healthy.config(), None))
    assert [one.name for one in found if one.level is not Level.OK] == ["log_gap"]


def test_a_gap_before_the_rows_in_the_tables_is_no_finding(healthy: Healthy) -> None:
    healthy.aggregate()
    numbers = count()
    for file in sorted(healthy.logs.glob("*.xlog"))[:3]:
        file.rename(healthy.folder / f"aside{next(numbers)}")
    names = {one.name for one in findings_of(Deployment(healthy.config(), None))}
    assert "log_gap" not in names


def test_a_spool_that_its_daemon_has_not_begun(tmp_path: Path) -> None:
    """Nothing is wrong with the path: the daemon makes the folder."""
    spool = tmp_path / "spool"
    subscribed = {"name": "a", "spool": str(spool), "peers": ["localhost:1"]}
    config = Config.model_validate(
        {
            "warehouse": str(tmp_path / "warehouse"),
            "checkpoint": str(tmp_path / "checkpoint"),
            "sources": [{"name": "a", "path": str(spool)}],
        }
    )
    subscribe = Subscribe.model_validate({"replicasets": [subscribed]})
    (finding,) = (one for one in findings_of(Deployment(config, subscribe)) if one.subject == "source a")
    assert (finding.level, finding.name) == (Level.FAIL, "spool_not_begun")
    assert finding.advice == "start `aggregator subscribe` with this file first"
