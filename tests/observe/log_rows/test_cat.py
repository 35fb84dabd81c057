"""`aggregator cat`: names and tuples from the log itself, filters, following; compared with a server's own reader."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner

from jobs.main import commands
from observe.log_rows.catalog import LogCatalog
from observe.log_rows.read import read_rows
from observe.log_rows.row_format import to_json_value
from tests.jobs.written import Node
from tests.sources.xlog import samples
from tests.sources.xlog.format.test_pairs import LOGS, pairs
from tests.truth import own
from udfs.before_replace.row import decode

ESCAPED = "surrogateescape"
ROOT = Path(__file__).resolve().parents[3]


def cat(*words: object) -> list[str]:
    done = CliRunner().invoke(commands, ["cat", *map(str, words)])
    assert done.exit_code == 0, done.output
    return str(done.stdout).splitlines()


def lines(*words: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cat(*words, "--json")]


def test_names_of_others_cannot_forge_a_line(tmp_path: Path) -> None:
    evil = "x\n! forged line\r\x1b[31mred\x9b2J\u202egnp\u2028."
    log = Node(tmp_path, "a1").define(600, evil, (("id", "unsigned"),)).put(600, 1).close()
    printed = [cat(log, *words) for words in ((), ("--json",))]
    assert all(line.isprintable() for found in printed for line in found)
    assert len(printed[0]) == len(printed[1]) > 1
    assert evil in [json.loads(line).get("space") for line in printed[1]]


@pytest.mark.live
@pytest.mark.skipif(shutil.which("tarantool") is None, reason="there is no tarantool on PATH")
def test_every_line_has_what_the_servers_reader_shows(tmp_path: Path) -> None:
    for path, server_rows in zip(LOGS, pairs(tmp_path, LOGS), strict=True):
        cat_rows = lines(path)
        assert len(cat_rows) == len(server_rows)
        for one, pair in zip(cat_rows, server_rows, strict=True):
            body = pair.get("BODY", {})
            body = {} if isinstance(body, list) else dict(body)  # keyed by numbers of the protocol
            if one["type"] == "UPDATE":
                body["operations"] = body.pop("tuple")
            for name in ("space_id", "index_base"):
                assert one.get(name) == body.get(name)
            for name in ("key", "tuple", "operations"):
                # Decoded as the bytes of the log are.
                expected = (
                    None
                    if name not in body
                    else to_json_value(decode(msgpack.packb(body[name], unicode_errors=ESCAPED)))
                )
                assert lua(one.get(name)) == lua(expected), (path, one)


def lua(value: Any) -> Any:
    """Return a value as Lua represents it: an empty map is an empty array."""
    if isinstance(value, dict):
        return [] if not value else {name: lua(one) for name, one in value.items()}
    return [lua(one) for one in value] if isinstance(value, list) else value


def is_rolled_back(data: bytes) -> bool:
    return b"rolled back" in data


@pytest.mark.parametrize("node", ["a1", "b1"])
def test_the_last_tuples_are_the_servers(node: str) -> None:
    catalog = LogCatalog(stores_all_tuples=True)
    for _ in read_rows(own().directory(node), catalog):
        pass
    stored: dict[int, list[bytes]] = {}
    for (space_id, _), data in catalog._tuple_by_key.items():
        if data is not None:
            stored.setdefault(space_id, []).append(data)
    spaces = own().global_spaces(node)
    # A log has the rows of a synchronous transaction even if it is rolled back later; cat shows them.
    assert any(is_rolled_back(data) for one in stored.values() for data in one)
    compared = 0
    for name, space in spaces.items():
        if space.engine == "memtx" and not space.is_local and not space.is_temporary:
            expected = sorted(own().tuples(node, name))
            found = [data for data in stored.get(space.id, []) if not is_rolled_back(data)]
            assert sorted(found) == expected, name
            compared += len(expected)
    assert compared > 300


def test_names_come_from_the_snapshot_before_the_log() -> None:
    log = own().logs("a1")[-2]
    assert {one["space"] for one in lines(log, "--space", "accounts")} == {"accounts"}
    found = lines(log, "--space", "accounts", "--type", "REPLACE")[0]
    assert list(found["fields"]) == ["id", "name", "balance", "updated"][: len(found["tuple"])]
    assert list(found["fields"].values())[: len(found["tuple"])] == found["tuple"]


def test_a_row_must_pass_every_filter() -> None:
    path = own().directory("a1")
    every = lines(path)
    assert lines(path, "--lsn", "100..120", "--origin", 2) == [
        one for one in every if one.get("replica_id") == 2 and 100 <= one["lsn"] <= 120
    ]
    uuid = next(one["origin"] for one in every if one.get("replica_id") == 2 and "origin" in one)
    assert len(lines(path, "--origin", uuid)) > len(every) // 10
    key = next(one["key"] for one in every if one["type"] == "UPDATE" and one.get("space") == "accounts")
    found = lines(path, "--space", "accounts", "--key", json.dumps(key))
    assert {one["type"] for one in found} >= {"UPDATE"}
    assert all(one.get("key", one.get("tuple", [])[:1]) == key for one in found)
    since, until = every[500]["timestamp"], every[900]["timestamp"]
    within = lines(path, "--since", since, "--until", until)
    assert within == [one for one in every if since <= one["timestamp"] < until]


def test_an_update_is_shown_with_the_resulting_tuple() -> None:
    path = own().directory("a1")
    found = lines(path, "--space", "accounts", "--tuples")
    updates = [one for one in found if one["type"] == "UPDATE" and one.get("result")]
    assert updates
    last = {json.dumps(one["key"]): one["result"] for one in updates}
    assert all(result["id"] == json.loads(key)[0] for key, result in last.items())
    texts = cat(path, "--space", "accounts", "--type", "UPDATE", "--tuples")
    assert sum(" -> {" in one for one in texts) == len(updates)


def test_tuples_continue_under_another_primary_key(tmp_path: Path) -> None:
    node = Node(tmp_path, "a1").define(600, "people").put(600, 1, "x", 5, 1)
    first = node.close()
    node.snapshot({600: [[1, "x", 5, 1]]})
    node.rekey(600, (1, "string")).update(600, "x", ["+", 2, 1]).upsert(
        600, [3, "x", 1, 1], ["+", 2, 1]
    ).close()
    first.unlink()
    found = lines(node.path, "--space", "people", "--tuples")
    assert [(one["type"], one["result"]["value"]) for one in found] == [("UPDATE", 6), ("UPSERT", 7)]


def test_a_log_that_grows_is_followed(tmp_path: Path) -> None:
    parts = samples.blocks(3)
    log = tmp_path / "00000000000000000005.xlog"
    log.write_bytes(samples.log(parts[0], marker=False))
    command = [sys.executable, "-m", "aggregator", "cat", str(tmp_path), "-f", "--json"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ})
    assert process.stdout is not None
    try:
        first = [json.loads(process.stdout.readline())["lsn"] for _ in range(2)]
        with log.open("ab") as stream:
            stream.write(parts[1])
        then = [json.loads(process.stdout.readline())["lsn"] for _ in range(2)]
        # A new log starts, so the one before no longer grows.
        (tmp_path / "00000000000000000009.xlog").write_bytes(samples.log(parts[2], marker=False))
        last = [json.loads(process.stdout.readline())["lsn"] for _ in range(2)]
        process.send_signal(2)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    assert [*first, *then, *last] == list(range(first[0], first[0] + 6))


def test_damage_prints_one_line_and_exits_with_1(tmp_path: Path) -> None:
    parts = samples.blocks(2)
    data = bytearray(samples.log(*parts))
    data[-8] ^= 1
    file = tmp_path / "00000000000000000005.xlog"
    file.write_bytes(data)
    done = CliRunner().invoke(commands, ["cat", str(file)], standalone_mode=False)
    assert done.return_value == 1
    assert len(done.stdout.splitlines()) == 2
    assert "checksum" in done.stderr


@pytest.mark.parametrize("words", [["--lsn", "x"], ["--since", "yesterday"], ["nosuch"]])
def test_wrong_use_exits_with_2(words: list[str]) -> None:
    path = [] if words == ["nosuch"] else [str(own().directory("a1"))]
    assert CliRunner().invoke(commands, ["cat", *path, *words]).exit_code == 2


def test_cat_imports_neither_numpy_nor_pyarrow() -> None:
    """These imports would delay the first row; the time is in docs/benchmarks.md."""
    script = (
        "import sys; from jobs.main import main; main(None, sys.argv[1:]);"
        "print([name for name in ('numpy', 'pyarrow', 'numba', 'pyspark') if name in sys.modules])"
    )
    command = [sys.executable, "-c", script, "cat", str(own().logs("a1")[0])]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output.endswith("\n[]\n")
