"""The command `jobs.rid`: its output, its exit codes, and that it needs no Spark."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import rid as rid_command
from jobs.rid import main
from tests.udfs.rid.rids import EXAMPLE, SIMPLIFIED, rid
from tests.warehouse.copies.standby import Pair
from udfs.rid.value import Rid, parse_rid
from warehouse.copies import switch
from warehouse.copies.rid import RidTable
from warehouse.lock.lock import WriterLock

A = str(rid("0000:0003:0002:0001:0001"))
COMPARED = [
    ("same", A, A, 0, ["same", None, None, 3, None]),
    ("sync", A, str(rid("0000:0002:0001:0000:0001")), 3, ["sync", "a", "b", 2, None]),
    ("sync the other way", A, str(rid("0000:0004:0003:0002:0001")), 3, ["sync", "b", "a", 3, None]),
    ("split brain", A, str(rid("0000:0009:0002:0001:0001")), 4, ["split_brain", None, None, 2, "b"]),
    ("no common", A, str(rid("0000:0009:0008:0007:0001")), 4, ["split_brain", None, None, None, None]),
    ("unrelated", A, str(rid("0000:0003:0002:0001:0009")), 5, ["unrelated", None, None, None, None]),
    ("to an empty one", A, str(Rid()), 3, ["sync", "a", "b", None, None]),
]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def head(made: str | Path) -> Rid:
    """Return the RID in `show`'s output for a warehouse."""
    return parse_rid(json.loads(_out(["show", str(made), "--json"]))["rid"])


def _out(argv: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "jobs.rid", *argv], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


@pytest.mark.parametrize(
    ("a", "b", "code", "outcome"), [r[1:] for r in COMPARED], ids=[r[0] for r in COMPARED]
)
def test_compare_two_texts(
    a: str, b: str, code: int, outcome: list[str | int | None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", a, b, "--json"]) == code
    common = None if outcome[3] is None else str(rid(f"0000:{outcome[3]:04d}:0000:0000:0000").head)
    assert json.loads(capsys.readouterr().out) == {
        "verdict": outcome[0],
        "from": outcome[1],
        "to": outcome[2],
        "common": common,
        "younger": outcome[4],
    }
    assert main(["compare", a, b]) == code
    assert capsys.readouterr().out.splitlines()[-1].startswith(str(outcome[0]).replace("_", " "))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "neither a RID nor a warehouse"),
        ("a:b", "neither a RID nor a warehouse"),
        ("/nowhere/at/all", "neither a RID nor a warehouse"),
        (SIMPLIFIED, "give the RID in full, not simplified"),
        (EXAMPLE + ":0", "a RID has 10 parts, this has 11"),
        (EXAMPLE[:-1] + "7", "not a state of a lock"),
    ],
)
def test_text_that_is_not_a_rid_exits_with_2(
    text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in (["compare", text, A], ["compare", A, text, "--json"]):
        assert main(argv) == 2
        seen = capsys.readouterr()
        assert reason in seen.err
        assert seen.out == ""


@pytest.mark.parametrize(
    "argv", [[], ["compare", A], ["sync", "--from", "x"], ["show"], ["show", "/nowhere/x"]]
)
def test_wrong_use_exits_with_2(argv: list[str]) -> None:
    assert main(argv) == 2


def test_the_comparison_shows_the_epochs_of_both(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    pair.sync()
    switch.promote(pair.b.location)
    pair.b.resume()
    pair.batch_b("b", "accounts")
    pair.batch_a("a", "accounts")
    assert main(["compare", str(pair.a.folder), str(pair.b.folder.parent)]) == 4
    lines = capsys.readouterr().out.splitlines()
    drawn = lines[lines.index("a b") + 1 : -1]
    common = RidTable(pair.a.location).last().node.rid.old1
    assert [line[:3].rstrip() for line in drawn] == ["*", "| *", "* *"]
    assert "a: head, epoch 3" in drawn[0]
    assert "b: head, epoch 3" in drawn[1]
    assert f"{common}" in drawn[2]
    assert "a: epochs 0 to 2; b: epochs 0 to 2, copied from" in drawn[2]
    assert f"both were written after {common}; the younger primary is a" in lines[-1]


def test_a_warehouse_that_never_had_a_rid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(str(Rid()))
    assert "the first job that writes it makes it a primary" in out
    assert list(tmp_path.iterdir()) == []
    assert main(["demote", str(tmp_path)]) == 1
    assert "the warehouse has no RID" in capsys.readouterr().err


def test_promote_demote_and_show_by_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("warehouse: wh\ncheckpoint: cp\ndatabase: other\nsources: [{name: a1, path: a1}]\n")
    (tmp_path / "wh").mkdir()
    assert main(["promote", "--config", str(config)]) == 0
    assert "primary, consistent, unlocked; newest epoch: -1" in capsys.readouterr().out
    assert main(["demote", str(tmp_path / "wh"), "--database", "other", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not parse_rid(found["rid"]).primary
    assert main(["show", "--config", str(config), str(tmp_path)]) == 2
    assert (tmp_path / "wh" / "other.db" / "_rid").is_dir()


def test_a_warehouse_that_is_being_written_is_not_switched(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    with WriterLock(pair.a.location, "the stream"):
        assert main(["demote", str(pair.a.folder)]) == 1
        assert main(["promote", str(pair.a.folder)]) == 1
    assert capsys.readouterr().err.count("written by the stream") == 2


def test_a_split_brain_is_found_and_healed_by_the_documented_steps(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = str(pair.a.folder.parent), str(pair.b.folder.parent)
    steps = ["sync", "--from", a, "--to", b]
    assert main(steps) == 0
    assert "epoch 2, 6 tables, 9 rows" in capsys.readouterr().out
    assert main(["compare", a, b]) == 0
    assert main(["promote", b]) == 0
    pair.b.resume()
    pair.batch_b("only b", "accounts")
    pair.batch_a("only a", "accounts")
    assert main(["compare", a, b]) == 4
    assert main(["demote", b]) == 0
    capsys.readouterr()
    assert main(steps) == 1
    seen = capsys.readouterr()
    assert "lost would be epochs 3 to 3: 1 rows of the logs" in seen.out
    assert "in 2 tables: _changelog, accounts" in seen.out
    assert "--discard-target" in seen.err
    lost = str(head(b))
    assert main([*steps, "--discard-target", lost]) == 0
    assert main(["compare", a, b]) == 0
    assert pair.b.read_cut() == pair.a.read_cut()


def test_quick_verification_and_plain_lines(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    steps = ["sync", "--from", str(pair.a.folder), "--to", str(pair.b.folder), "--verify", "copied"]
    assert main(steps) == 0
    first = capsys.readouterr().err
    assert "bytes to copy" in first
    assert "bytes copied in" in first
    assert main(steps) == 0
    assert capsys.readouterr().err.startswith("0 bytes to copy")


def test_it_needs_neither_spark_nor_its_libraries() -> None:
    script = (
        "import sys; from jobs.rid import main; code = main(sys.argv[1:]); "
        "assert not [m for m in sys.modules if m.split('.')[0] in ('pyspark', 'delta', 'py4j')]; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "compare", A, EXAMPLE, "--json"], check=False, timeout=60
    )
    assert done.returncode == 5


def test_no_job_takes_the_lock_past_the_rid() -> None:
    jobs = Path(rid_command.__file__).parent
    takers = {file.name for file in jobs.rglob("*.py") if re.search(r"\bWriterLock\(", file.read_text())}
    assert takers == {"kernels.py"}, "set-up compiles kernels by a batch into a folder of its own"
    assert any("PrimaryLock(" in file.read_text() for file in jobs.rglob("*.py"))


def test_an_operator_disconnects_a_primary_also_while_it_is_written(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    head = RidTable(pair.a.location).last().node.rid.head
    with WriterLock(pair.a.location, "the stream"):
        assert main(["disconnect", str(pair.a.folder)]) == 0
    assert "the next data begin a new generation" in capsys.readouterr().out
    pair.batch_a("later", "accounts")
    assert RidTable(pair.a.location).last().node.rid.old1 == head


def test_a_copy_by_other_means_is_a_split_brain_if_it_was_said_before(pair: Pair) -> None:
    assert main(["disconnect", str(pair.a.folder)]) == 0
    shutil.copytree(pair.a.folder, pair.b.folder)
    pair.b.resume()
    pair.batch_a("of a", "accounts")
    pair.batch_b("of b", "accounts")
    assert main(["compare", str(pair.a.folder), str(pair.b.folder)]) == 4


def test_a_secondary_whose_primary_went_away_is_outdated(pair: Pair) -> None:
    pair.sync()
    assert main(["disconnect", str(pair.b.folder)]) == 0
    rid = head(pair.b.folder)
    assert (rid.outdated, rid.primary) == (True, False)


def test_an_operator_connects_what_is_the_same_and_nothing_else(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(pair.a.folder), str(pair.b.folder)]
    assert main(["connect", names[0]]) == 2
    pair.sync()
    switch.promote(pair.b.location)
    assert main(["connect", *names]) == 1
    assert "exactly one of the warehouses must be primary, not" in capsys.readouterr().err
    switch.demote(pair.b.location)
    with WriterLock(pair.b.location, "an operator"):
        assert main(["connect", *names]) == 1
    assert "written by an operator" in capsys.readouterr().err
    assert main(["connect", *names, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["next"] for one in found] == [None, None]
    pair.batch_a("later", "accounts")
    assert main(["connect", *names]) == 1
    assert "the two warehouses differ; nothing was changed" in capsys.readouterr().err


def test_a_writer_that_keeps_no_peer_ends_a_connection_that_an_operator_noted(pair: Pair) -> None:
    pair.sync()
    assert main(["connect", str(pair.a.folder), str(pair.b.folder)]) == 0
    before = RidTable(pair.a.location).last().node
    assert before.next_head is None
    pair.batch_a("alone", "accounts")
    assert RidTable(pair.a.location).last().node.rid.old1 == before.rid.head


def test_a_misspelt_source_of_a_copy_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was called a warehouse without a RID, with the advice to promote it."""
    assert main(["sync", "--from", str(tmp_path / "none"), "--to", str(tmp_path / "copy")]) == 2
    assert "nor the folder for it: check the address" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()
