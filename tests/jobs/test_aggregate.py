"""The main job on recorded logs of real servers, compared with the servers' own state and an independent fold."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.jobs.deployment import Deployment, folded, winners
from tests.oracle.fold import Folded
from tests.truth import Recording, own, recordings
from warehouse.catalog import register_tables

pytestmark = pytest.mark.spark

SEQUENCES = {"accounts": ("updated",)}


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Deployment:  # noqa: ARG001
    """Yield one run over a member of each replicaset of the repository's recording."""
    recording = own()
    sources = {"a1": recording.directory("a1"), "b1": recording.directory("b1")}
    policies = {"spaces": {name: {"sequence": list(columns)} for name, columns in SEQUENCES.items()}}
    deployment = Deployment(tmp_path_factory.mktemp("both"), sources, policies=policies)
    deployment.run()
    return deployment


@pytest.fixture(scope="module")
def truths() -> tuple[Folded, Folded]:
    return folded(own(), "a1"), folded(own(), "b1")


def names(truths: tuple[Folded, Folded]) -> set[str]:
    """Return the global spaces of both replicasets that have a table."""
    return {
        one.name
        for truth in truths
        for one in truth.by_name().values()
        if not one.is_local and not one.options.get("temporary")
    }


def test_every_space_is_what_the_policy_makes_of_both_replicasets(
    both: Deployment, truths: tuple[Folded, Folded]
) -> None:
    wrong = {}
    for name in sorted(names(truths)):
        expected = sorted(w.tuple for w in winners(*truths, name, SEQUENCES.get(name, ())))
        found = both.tuples(name)
        if found != expected:
            wrong[name] = (Counter(found) - Counter(expected), Counter(expected) - Counter(found))
    assert not wrong


def test_rows_name_the_replicaset_of_their_version(both: Deployment, truths: tuple[Folded, Folded]) -> None:
    uuids = {row["global_id"]: row["uuid"] for row in both.rows("_cluster")}
    for name in ("accounts", "counters", "docs"):
        expected = {w.tuple: w for w in winners(*truths, name, SEQUENCES.get(name, ()))}
        for row in both.table(name).values():
            winner = expected[row["_tuple"]]
            assert (uuids.get(row["_global_id"], ""), row["_lsn"]) == (
                winner.instance_uuid,
                winner.version.lsn,
            )
            assert row["_timestamp"].timestamp() == pytest.approx(winner.version.timestamp / 1e6, abs=2e-6)
            assert row["_created"].timestamp() == pytest.approx(winner.version.created / 1e6, abs=2e-6)


def test_no_space_of_the_recording_is_refused(both: Deployment) -> None:
    """One of the spaces was renamed, another one got a new primary key."""
    assert both.refused_spaces() == set()
    assert both.rows("rekeyed")


def test_each_row_of_the_logs_is_in_the_changelog_once(both: Deployment) -> None:
    columns = ["global_id", "replica_id", "lsn", "group_id", "state", "file"]
    rows = [row for row in both.rows("_changelog", columns) if row["file"].endswith(".xlog")]
    named = Counter((row["global_id"], row["lsn"], row["group_id"]) for row in rows)
    assert max(named.values()) == 1
    assert {row["state"] for row in rows} == {"committed", "rolled_back", "local"}
    found = Counter(row["replica_id"] for row in rows if row["group_id"] is None)
    vclocks = [dict(own().info(node).vclock) for node in ("a1", "b1")]
    assert found == {i: sum(vclock[i] for vclock in vclocks) for i in (1, 2)}


def test_the_vclock_is_the_servers_own(both: Deployment) -> None:
    rows = sorted(both.rows("_vclock"), key=lambda row: int(row["epoch"]))
    newest = {(row["replicaset_id"], row["local_id"]): row["lsn"] for row in rows}
    for number, node in ((1, "a1"), (2, "b1")):
        expected = dict(own().info(node).vclock)
        assert {i: lsn for (replicaset, i), lsn in newest.items() if replicaset == number} == expected


def test_instances_have_one_global_id_each(both: Deployment) -> None:
    rows = both.rows("_cluster")
    expected = {uuid for node in ("a1", "b1") for uuid in own().info(node).cluster.values()}
    members = [row for row in rows if row["replicaset_uuid"] != "aggregator"]
    assert {row["uuid"] for row in members} == expected
    assert sorted(row["global_id"] for row in rows) == list(range(1, len(rows) + 1))
    assert sorted(row["local_id"] for row in members) == [1, 1, 2, 2]


def test_conflicts_name_winner_and_loser(both: Deployment) -> None:
    rows = both.rows("_conflicts")
    assert rows
    tables = {name: both.table(name) for name in {row["space"] for row in rows}}
    last = max(row["epoch"] for row in both.rows("_epochs", ["epoch"]))
    for row in rows:
        assert row["winner_replicaset_id"] != row["loser_replicaset_id"]
    newest = [row for row in rows if row["epoch"] == last]
    assert newest
    # What was decided before may have been changed since by one replicaset alone.
    for row in newest:
        stands = tables[row["space"]].get(row["key"])
        if stands is not None:
            assert stands["_tuple"] == row["winner_tuple"]
            assert stands["_replicaset_id"] == row["winner_replicaset_id"]


def test_equal_keys_are_one_key_however_they_are_written(
    both: Deployment, truths: tuple[Folded, Folded]
) -> None:
    for name in ("keys_number", "keys_scalar", "keys_unsigned", "keys_integer", "keys_decimal", "keys_two"):
        keys = [row["_key"] for row in both.rows(name, ["_key"])]
        assert len(keys) == len(set(keys))
        assert len(keys) + len(both.unfit_tuples(name)) == len(winners(*truths, name))


@pytest.mark.soak
def test_tables_open_by_name_in_sql(both: Deployment, spark: SparkSession) -> None:
    database = both.database
    # The job itself does it, for all tables, where the catalog outlasts the session.
    register_tables(both.opened(spark), ["accounts", "docs", "_cluster", "_epochs"])
    accounts = spark.sql(f"SELECT count(*), count(_tuple) FROM {database}.accounts").collect()[0]
    assert accounts[0] == accounts[1] == len(both.rows("accounts", ["_key"]))
    joined = spark.sql(
        f"SELECT c.uuid, count(*) AS rows FROM {database}.accounts a JOIN {database}._cluster c "
        "ON a._global_id = c.global_id GROUP BY c.uuid"
    )
    assert sum(row["rows"] for row in joined.collect()) == accounts[0]


@pytest.mark.soak
def test_a_second_run_with_nothing_new_changes_nothing(both: Deployment) -> None:
    before = [both.rows("_epochs", ["epoch", "batch_id"]), len(both.rows("_changelog", ["lsn"]))]
    both.run()
    assert [both.rows("_epochs", ["epoch", "batch_id"]), len(both.rows("_changelog", ["lsn"]))] == before


def test_a_lost_checkpoint_costs_nothing(both: Deployment) -> None:
    before = {name: both.table(name) for name in ("accounts", "counters", "docs", "ledger")}
    changelog = len(both.rows("_changelog", ["lsn"]))
    both.forget_checkpoint()
    both.run()
    assert {name: both.table(name) for name in before} == before
    assert len(both.rows("_changelog", ["lsn"])) == changelog


@pytest.mark.parametrize(
    ("recording", "node"),
    [(r, n) for r in recordings() if r != own() for n in ("a2", "b1")] + [(own(), "b2")],
    ids=lambda value: value.name if isinstance(value, Recording) else value,
)
def test_one_member_alone_gives_its_servers_tuples(tmp_path: Path, recording: Recording, node: str) -> None:
    deployment = Deployment(tmp_path, {node: recording.directory(node)})
    deployment.write()
    wrong = {}
    for name in set(recording.global_spaces(node)) - deployment.refused_spaces():
        expected = sorted(recording.tuples(node, name))
        found = deployment.tuples(name)
        if found != expected:
            wrong[name] = (Counter(found) - Counter(expected), Counter(expected) - Counter(found))
    assert not wrong
