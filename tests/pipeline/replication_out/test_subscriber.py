"""Real servers that follow the decided tables: whatever changes, they end with the tables' tuples."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.replication_out.stream import Stream
from pipeline.replication_out.users import SubscriberUser
from pipeline.replication_out.writer import ReplicationWriter
from sources.iproto.address import PasswordSource
from tests.live.server import Tarantool
from tests.pipeline.replication_out.world import READERS, World, instance_uuid, vclock_of, world

pytestmark = pytest.mark.live


def test_conflicts_deletions_and_later_epochs(two: World, binary: str) -> None:
    ids = two.global_ids()
    with two.writing() as writer, two.serving():
        assert writer.advance()
        with two.subscriber(binary) as subscriber:
            two.await_epoch(subscriber, writer)
            two.check(subscriber, "accounts")
            assert subscriber.eval("return box.space.accounts:get(15)")[1] == "b15"
            two.eval("a", "box.space.accounts:delete(1) box.space.accounts:replace{15, 'again', 1}")
            two.eval("b", "box.space.accounts:delete(12) box.space.accounts:update(30, {{'=', 3, 7}})")
            two.settle()
            assert writer.advance()
            assert not writer.advance()
            two.await_epoch(subscriber, writer)
            two.check(subscriber, "accounts")
            assert subscriber.eval("return box.space.accounts:get(15)")[1] == "again"
            # What b had deleted is a's again.
            assert subscriber.eval("return box.space.accounts:get(12)")[1] == "a12"
            assert subscriber.eval("return box.space._cluster:get(...)[2]", ids["b"]).startswith("b0000000")
            lsn = two.eval("a", "return box.info.lsn")
            assert vclock_of(subscriber)[ids["a"]] == lsn
            epoch = subscriber.eval("return box.space._schema:get('aggregator_epoch')[2]")
            assert epoch == two.deployment.rows("_epochs")[-1]["epoch"] or epoch == 1


def test_definitions_follow(two: World, binary: str) -> None:
    with two.writing() as writer, two.serving():
        writer.advance()
        with two.subscriber(binary) as subscriber:

            def follow(*spaces: str) -> None:
                two.settle()
                assert writer.advance()
                two.await_epoch(subscriber, writer)
                two.check(subscriber, "accounts", *spaces)

            two.eval(
                "a", "box.schema.space.create('only_a'):create_index('p') box.space.only_a:insert{1, 'x'}"
            )
            follow("only_a")
            for name in "ab":
                two.eval(
                    name,
                    "box.space.accounts:create_index('by', {parts = {{3, is_nullable = true}}, unique = false})",
                )
            follow("only_a")
            assert subscriber.eval("return box.space.accounts.index.by:count()") == 30
            two.eval(
                "a", "box.space.accounts:format({{'id', 'unsigned'}, {'name', 'string'}, {'sum', 'any'}})"
            )
            follow("only_a")
            assert subscriber.eval("return #box.space.accounts:format()") == 2
            two.eval(
                "b", "box.space.accounts:format({{'id', 'unsigned'}, {'name', 'string'}, {'sum', 'any'}})"
            )
            follow("only_a")
            assert subscriber.eval("return box.space.accounts:format()[3].name") == "sum"
            two.eval("a", "box.space.only_a.index.p:alter{parts = {2, 'string'}}")
            follow("only_a")
            assert subscriber.eval("return box.space.only_a:get('x')") == [1, "x"]
            two.eval("a", "box.space.only_a:truncate()")
            follow("only_a")
            two.eval("a", "box.space.only_a:drop()")
            follow()
            assert subscriber.eval("return box.space.only_a == nil")
            assert subscriber.eval("return box.space.accounts.index.by:count()") == 30


def test_restarts_and_new_subscribers(two: World, binary: str) -> None:
    with two.writing() as writer, two.serving():
        writer.advance()
        with two.subscriber(binary) as first:
            two.await_epoch(first, writer)
    two.eval("a", "box.space.accounts:insert{500, 'later'}")
    two.settle()
    with two.writing(transaction_rows=1) as writer:
        writer.advance()
        two.eval("b", "for i = 600, 609 do box.space.accounts:insert{i, 'b' .. i} end")
        two.settle()
        writer.advance()
        with (
            two.serving(),
            two.subscriber(binary) as first,
            two.subscriber(binary, "second") as second,
        ):
            for subscriber in (first, second):
                two.await_epoch(subscriber, writer)
                two.check(subscriber, "accounts")


def test_an_epoch_that_was_taken_back(two: World, binary: str, tmp_path: Path) -> None:
    """A warehouse is restored from a copy: the same versions and epochs have other rows than subscribers got."""
    shutil.copytree(tmp_path / "warehouse", tmp_path / "copy")
    offset = dict(two.deployment.offset)
    two.eval("a", "box.space.accounts:insert{500, 'taken back'} box.space.accounts:delete(2)")
    two.settle()
    with two.writing() as writer, two.serving():
        writer.advance()
        with two.subscriber(binary) as subscriber:
            two.await_epoch(subscriber, writer)
            assert subscriber.eval("return box.space.accounts:get(500) ~= nil")
            shutil.rmtree(tmp_path / "warehouse")
            shutil.copytree(tmp_path / "copy", tmp_path / "warehouse")
            assert writer.advance()
            assert writer.mark is not None
            assert writer.mark.epoch == 0
            two.await_stopped(subscriber)
        with two.subscriber(binary) as subscriber:
            two.await_epoch(subscriber, writer)
            two.check(subscriber, "accounts")
            assert subscriber.eval("return box.space.accounts:get(500) == nil")
            two.deployment.offset = offset
            two.settle()
            assert writer.advance()
            two.await_epoch(subscriber, writer)
            two.check(subscriber, "accounts")
            assert subscriber.eval("return box.space.accounts:get(500) ~= nil")


def test_users_follow_the_configuration(two: World, binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "secret")
    password = PasswordSource(env_variable="SECRET")
    names = "local t = {} for _, u in box.space._user:pairs() do table.insert(t, u[3]) end return t"
    users = [
        [*READERS, SubscriberUser("one", password), SubscriberUser("two", password, executes=True)],
        [*READERS, SubscriberUser("two", password), SubscriberUser("three", password)],
        READERS,
    ]
    expected = [["one", "two"], ["three", "two"], []]
    with ExitStack() as stack:
        subscriber = None
        for readers, named in zip(users, expected, strict=True):
            with Stream(two.directory) as stream, two.serving():
                writer = ReplicationWriter(two.warehouse, stream, readers)
                assert writer.advance()
                assert not writer.advance()
                subscriber = subscriber or stack.enter_context(two.subscriber(binary))
                two.await_epoch(subscriber, writer)
                assert sorted(subscriber.eval(names)[5:] or []) == named
                id_ = "box.space._user.index.name:get('two').id"
                if named:
                    rights = (
                        f"return box.space._priv:count({id_}), box.space._priv:get{{{id_}, 'universe', 0}}[5]"
                    )
                    assert subscriber.eval(rights) == [2, 29 if "one" in named else 25]


def test_the_lines_of_the_page_are_run_as_printed(two: World, binary: str) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "relay.md").read_text(encoding="utf-8")
    lines = page.partition("```lua\n")[2].partition("\n```")[0].splitlines()
    settings, *questions = (line.partition("--")[0].strip() for line in lines)
    cfg = two.eval("a", f"return {settings.removeprefix('box.cfg')}")
    assert list(cfg.pop("replication")[0].rpartition("@")[::2]) == ["user:password", "relay:3402"]
    own, lsn = two.eval("a", "return box.space.accounts:get(7), box.info.lsn")
    with two.writing() as writer, two.serving():
        writer.advance()
        followed = {"replication": two.subscriber_cfg()["replication"]}
        with Tarantool(two.root / "page", cfg=cfg | followed, binary=binary) as subscriber:
            two.await_epoch(subscriber, writer)
            found = [subscriber.eval(f"local lsn = ... return {one}", lsn) for one in questions]
    decided, epoch, is_here, instances = found
    assert (decided, is_here) == (own, True)
    assert epoch == max(row["epoch"] for row in two.deployment.rows("_epochs"))
    assert [2, instance_uuid("a")] in [row[:2] for row in instances]


CUSTOM = {"default": {"policy": "custom", "function": "tests.pipeline.replication_out.rules:resolve"}}


def test_tuples_that_no_server_takes(tmp_path: Path, binary: str) -> None:
    """A policy of the user's makes what it likes: such a tuple is left out by name, and nobody stops."""
    with world(tmp_path, policies=CUSTOM) as two:
        two.eval("a", "for i = 1, 20 do box.space.accounts:insert{i, 'a' .. i, i} end")
        two.eval("b", "for i = 10, 30 do box.space.accounts:insert{i, 'b' .. i, i} end")
        two.settle()
        with two.writing() as writer, two.serving():
            writer.advance()
            with two.subscriber(binary) as subscriber:
                two.await_epoch(subscriber, writer)
                assert subscriber.eval("return box.space.accounts:get(11)[2]") == "a11+b11"
                assert subscriber.eval("return box.space.accounts:get(12) == nil")
                assert writer.left_out == {"accounts: made tuples": "field name is not of type string"}
                two.eval("a", "box.space.accounts:delete(12) box.space.accounts:replace{13, 'x'}")
                two.eval("b", "box.space.accounts:insert{4, 'four'} box.space.accounts:delete(14)")
                two.eval("a", "box.space.accounts:delete(14)")
                two.settle()
                writer.advance()
                two.await_epoch(subscriber, writer)
                name = "local t = box.space.accounts:get(...) return t and t[2]"
                names = {i: subscriber.eval(name, i) for i in (4, 12, 13, 14)}
                assert names == {4: None, 12: "b12", 13: "b13+x", 14: None}


def test_a_masked_space_is_not_served(tmp_path: Path, binary: str) -> None:
    masks = {"accounts": {"name": "drop"}}
    with world(tmp_path, spaces={"masks": masks}) as two:
        two.eval("a", "box.schema.space.create('open'):create_index('pk') box.space.open:insert{1, 'x'}")
        two.eval("a", "box.space.accounts:insert{1, 'secret'}")
        two.settle()
        with two.writing() as writer, two.serving():
            writer.advance()
            assert writer.left_out == {"accounts": "it is masked"}
            with two.subscriber(binary) as subscriber:
                two.await_epoch(subscriber, writer)
                two.check(subscriber, "open")
                assert subscriber.eval("return box.space.accounts == nil")
        assert not any(b"secret" in path.read_bytes() for path in two.directory.glob("*.[sx]*"))
