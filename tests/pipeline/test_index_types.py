"""A secondary index makes the type of a field narrower, and a sum in it is encoded so, from the index's row on."""

import struct
from pathlib import Path

import pytest

from observe.log_rows.catalog import LogCatalog
from observe.log_rows.read import read_rows
from pipeline.commit.load import load_state
from schemas.iproto import BodyKey, RequestType, SystemSpace
from schemas.space import KeyPart
from tests.jobs.written import Node
from tests.pipeline.deployment import Deployment

S = 600
FIELDS = (("id", "unsigned"), ("n", "number"))
ADD = ["+", 1, 1]


def node_with_index(folder: Path, kind: str = "double") -> Node:
    """Return a node with a space that has an index on its field `n`, and the tuple [1, 1.5]."""
    return Node(folder, "a1").define(S, "s", FIELDS, [[(1, kind)]]).put(S, 1, 1.5)


def drop_index(node: Node, number: int = 1) -> Node:
    return node.row(RequestType.DELETE, SystemSpace.INDEX, {BodyKey.KEY: [S, number]})


def expected(form: str, value: float) -> list[bytes]:
    return [b"\x92\x01" + struct.pack(f">B{form}", 0xCA if form == "f" else 0xCB, value)]


@pytest.mark.parametrize("budget", [None, 1], ids=["one batch", "a batch a block"])
def test_the_index_counts_until_it_is_dropped(tmp_path: Path, budget: int | None) -> None:
    node = node_with_index(tmp_path)
    node.is_apart = True
    deployment = Deployment.of(tmp_path, node)
    node.update(S, 1, ADD).close()
    deployment.run(budget)
    assert deployment.tuples("s") == expected("d", 2.5)
    node.update(S, 1, ADD).close()
    deployment.run(budget)
    assert deployment.tuples("s") == expected("d", 3.5)
    drop_index(node).update(S, 1, ADD).close()
    deployment.run(budget)
    # As in Tarantool, the sum of a double and an integer is as short as possible.
    assert deployment.tuples("s") == expected("f", 4.5)


def test_another_index_makes_no_new_version_of_the_space(tmp_path: Path) -> None:
    node = node_with_index(tmp_path, "number")
    deployment = Deployment.of(tmp_path, node)
    node.update(S, 1, ADD).close()
    deployment.run()
    versions = len(deployment.rows("_schema"))
    drop_index(node).update(S, 1, ADD).close()
    deployment.run()
    assert deployment.tuples("s") == expected("f", 3.5)
    layouts = {row["layout"] for row in deployment.rows("_changelog") if row["space_id"] == S}
    assert layouts == {0}
    assert len(deployment.rows("_schema")) == versions + 1, "the rows of its indexes have changed"


def test_the_definition_of_a_refused_space_is_the_same_after_a_start(tmp_path: Path) -> None:
    node = node_with_index(tmp_path)
    deployment = Deployment.of(tmp_path, node)
    node.close()
    deployment.run()
    node.rekey_to(S, [{"field": 0, "type": "map"}]).close()
    with deployment.writer() as (warehouse, writer):
        deployment.batch(writer)
        (before,) = writer.state.replicasets.values()
        (after,) = load_state(warehouse).replicasets.values()
    assert before.applied_definitions == after.applied_definitions
    assert before.applied_definitions[S].secondary_parts == (KeyPart(1, "double"),)


def test_tuples_of_a_log_are_computed_by_the_index(tmp_path: Path) -> None:
    path = node_with_index(tmp_path).update(S, 1, ADD).close()
    catalog = LogCatalog(has_all_rows=True, stores_all_tuples=True)
    *_, last = (row for block in read_rows(path, catalog) for row in block)
    assert last.context.tuple_after == expected("d", 2.5)[0]
