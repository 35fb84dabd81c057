"""Subscribers take every tuple where formats reach less far: in one replicaset, before a change, or after it."""

import pytest

from tests.pipeline.replication_out.world import World

pytestmark = pytest.mark.live

NARROW, WIDE = "{'id', 'unsigned'}", "{'id', 'unsigned'}, {'v', 'string'}"
MADE = "box.schema.space.create('s', {format = {%s}}):create_index('p')"
ROUND = "box.space.s:create_index('r', {type = 'rtree', unique = false, parts = {3, 'array'}})"


def test_a_format_that_reaches_less_far_than_another(two: World, binary: str) -> None:
    two.eval(
        "a", f"{MADE % f'''{WIDE}, {{'box', 'array'}}'''} {ROUND} box.space.s:insert{{1, 'x', {{1, 2}}}}"
    )
    two.eval("b", f"{MADE % NARROW} {ROUND} box.space.s:insert{{2, 7, {{3, 4}}}}")
    two.settle()
    with two.writing() as writer, two.serving():
        writer.advance()
        with two.subscriber(binary) as subscriber:
            two.await_epoch(subscriber, writer)
            two.check(subscriber, "s")
            assert subscriber.eval("return box.space.s.index.r:count()") == 2


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (
            f"{MADE % WIDE} box.space.s:insert{{1, 'x'}}",
            f"box.space.s:format{{{NARROW}}} box.space.s:insert{{2, 7}}",
        ),
        (
            f"{MADE % NARROW} box.space.s:insert{{1, 7}}",
            f"box.space.s:replace{{1, 'x'}} box.space.s:format{{{WIDE}}}",
        ),
    ],
)
def test_a_format_that_changes_together_with_tuples(
    two: World, binary: str, before: str, change: str
) -> None:
    two.eval("a", before)
    two.settle()
    with two.writing() as writer, two.serving():
        writer.advance()
        with two.subscriber(binary) as subscriber:
            two.await_epoch(subscriber, writer)
            two.eval("a", change)
            two.settle()
            writer.advance()
            two.await_epoch(subscriber, writer)
            two.check(subscriber, "s")


def test_an_index_that_goes_does_not_hold_new_tuples(two: World, binary: str) -> None:
    index = "box.space.s:create_index('v', {unique = false, parts = {2, 'string'}})"
    two.eval("a", f"{MADE % WIDE} {index} box.space.s:insert{{1, 'x'}}")
    two.eval("b", f"{MADE % NARROW} {index} box.space.s:insert{{2, 'y'}}")
    two.settle()
    with two.writing() as writer, two.serving():
        writer.advance()
        with two.subscriber(binary) as subscriber:
            two.await_epoch(subscriber, writer)
            two.eval("a", "box.space.s.index.v:drop()")
            two.eval("b", "box.space.s.index.v:drop() box.space.s:insert{3, 7}")
            two.settle()
            writer.advance()
            two.await_epoch(subscriber, writer)
            two.check(subscriber, "s")
