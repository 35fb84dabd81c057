"""Rows of `_changelog` go when nothing can apply them again; whoever would need them hears that they are gone."""

from collections import Counter
from pathlib import Path

import pytest

from pipeline.requests.snapshots import read_spaces_again
from schemas.errors import SourceError
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment
from tests.pipeline.retention.cleaned import S, cleaned, gone, planned

MONTH = {"changelog": 30}


def types(deployment: Deployment) -> Counter[tuple[int | None, str]]:
    rows = deployment.rows("_changelog", ["space_id", "type", "replicaset_id"])
    return Counter((row["space_id"], row["type"]) for row in rows if row["replicaset_id"])


def retaken(deployment: Deployment) -> str:
    with deployment.writer() as (warehouse, writer):
        name = f"snapshot {writer.state.epoch}"
        return read_spaces_again(deployment.config(), warehouse, writer, ["s"], None, name)


def begun(folder: Path) -> Node:
    return Node(folder, "a1").define(S, "s").put(S, 1, "first", 1, 1).put(S, 2, "first", 1, 1).delete(S, 2)


def test_rows_of_tables_go_and_definitions_stay(tmp_path: Path) -> None:
    node = begun(tmp_path)
    deployment = Deployment.aggregated(tmp_path, node)
    before, control = deployment.rows("s"), types(deployment)
    assert gone(planned(deployment, days=29, **MONTH)) == {}, "not old enough"
    assert gone(cleaned(deployment, **MONTH)) == {"_changelog": 3}
    assert types(deployment) == {key: n for key, n in control.items() if key[0] != S}
    (removal,) = deployment.rows("_retention")
    assert (removal["table"], removal["replicaset_id"], removal["rows"]) == ("_changelog", 1, 3)
    assert removal["lsn"] == 6
    assert deployment.rows("s") == before
    node.update(S, 1, ["=", 1, "later"]).close()
    deployment.run()
    assert deployment.fields() == [[1, "later", 1, 1]]
    assert gone(planned(deployment, **MONTH)) == {"_changelog": 1}


def test_what_is_read_once_more_is_no_divergence(tmp_path: Path) -> None:
    node = begun(tmp_path)
    deployment = Deployment.aggregated(tmp_path, node)
    cleaned(deployment, **MONTH)
    node.put(S, 3, "later", 1, 1).close()
    deployment.offset = {}
    deployment.run()
    assert deployment.rows("_gaps") == []
    assert deployment.fields() == [[1, "first", 1, 1], [3, "later", 1, 1]]
    assert types(deployment)[S, "REPLACE"] == 1


def test_rows_behind_the_newest_snapshot_stay_and_are_applied_from_it(tmp_path: Path) -> None:
    node = begun(tmp_path)
    deployment = Deployment.aggregated(tmp_path, node)
    node.snapshot({S: [(1, "first", 1, 1)]})
    node.update(S, 1, ["=", 1, "since"]).put(S, 3, "since", 1, 1).close()
    deployment.run()
    assert gone(cleaned(deployment, **MONTH)) == {"_changelog": 3}, "those that the snapshot covers"
    assert types(deployment)[S, "UPDATE"] == types(deployment)[S, "REPLACE"] == 1
    assert "2 later rows applied again" in retaken(deployment)
    assert deployment.fields() == [[1, "since", 1, 1], [3, "since", 1, 1]]


def test_an_older_snapshot_is_refused_by_name(tmp_path: Path) -> None:
    node = begun(tmp_path)
    deployment = Deployment.of(tmp_path, node)
    node.snapshot({S: [(1, "first", 1, 1)]})
    (old,) = node.path.glob("*.snap")
    old = old.rename(tmp_path / old.name)
    node.update(S, 1, ["=", 1, "since"]).close()
    deployment.run()
    assert gone(cleaned(deployment, **MONTH)) == {"_changelog": 4}, "nothing could be read from a snapshot"
    old.rename(node.path / old.name)
    with pytest.raises(SourceError, match="rows since the snapshot are not in _changelog any more"):
        retaken(deployment)
    assert deployment.fields() == [[1, "since", 1, 1]]
    node.snapshot({S: [(1, "since", 1, 1)]})
    assert "0 later rows applied again" in retaken(deployment)


def test_rows_that_wait_for_a_definition_stay_in_their_order(tmp_path: Path) -> None:
    whole = Node(tmp_path, "a1").put(S + 1, 7, "other", 1, 1)
    whole.put(S, 1, "first", 1, 1).update(S, 1, ["=", 1, "second"]).close()
    whole.update(S, 1, ["=", 1, "third"])
    deployment = Deployment.aggregated(tmp_path, whole)
    assert len(deployment.rows("_pending")) == 4
    assert gone(cleaned(deployment, **MONTH)) == {}
    whole.define(S, "s").close()
    deployment.run()
    assert deployment.fields() == [[1, "third", 1, 1]]
    assert gone(cleaned(deployment, **MONTH)) == {"_changelog": 3}, "those of the other space still wait"


def test_rows_of_a_refused_space_stay(tmp_path: Path) -> None:
    node = begun(tmp_path).define(S + 1, "other").put(S + 1, 1, "kept", 1, 1)
    deployment = Deployment.aggregated(tmp_path, node, spaces={"rename": {"other": "s"}})
    assert gone(cleaned(deployment, **MONTH)) == {"_changelog": 3}
    assert types(deployment)[S + 1, "REPLACE"] == 1


def test_an_open_divergence_keeps_the_rows_of_its_replicaset(tmp_path: Path) -> None:
    node = begun(tmp_path)
    deployment = Deployment.aggregated(tmp_path, node)
    other = Node(tmp_path / "other", "a1").define(S, "s").put(S, 1, "differs", 1, 1)
    other.close()
    deployment.sources["a1"], deployment.offset = other.path, {}
    deployment.run()
    found = planned(deployment, **MONTH)
    assert gone(found) == {}
    assert found.stay_reasons == ["_changelog of replicaset 1 stays: a divergence is open"]


def test_a_source_that_cannot_be_read_keeps_all_rows(tmp_path: Path) -> None:
    node = begun(tmp_path)
    deployment = Deployment.aggregated(tmp_path, node)
    deployment.sources["a2"] = tmp_path / "nowhere"
    found = planned(deployment, **MONTH)
    assert (gone(found), found.stay_reasons) == ({}, ["_changelog stays: a2 cannot be read"])
