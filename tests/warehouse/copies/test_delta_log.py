"""What happens to a log: names, plans for every relation of two logs, and whether a log opens at a version."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warehouse.copies.table import (
    DeltaLogFile,
    LogPlan,
    is_readable,
    log_file,
    log_files,
    plan_log,
)

UUID = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f"


@pytest.mark.parametrize(
    ("name", "version", "rank"),
    [
        ("00000000000000000042.json", 42, 0),
        ("00000000000000000042.checkpoint.parquet", 42, 1),
        ("00000000000000000042.checkpoint.0000000001.0000000003.parquet", 42, 1),
        (f"00000000000000000042.checkpoint.{UUID}.parquet", 42, 1),
        (f"00000000000000000042.checkpoint.{UUID}.json", 42, 1),
        ("00000000000000000040.00000000000000000042.compacted.json", 42, 2),
        ("00000000000000000042.crc", 42, 3),
    ],
)
def test_the_files_of_a_log(name: str, version: int, rank: int) -> None:
    assert log_file(name) == DeltaLogFile(version, rank, name)


@pytest.mark.parametrize(
    "name",
    [
        "_last_checkpoint",
        ".00000000000000000042.json.crc",
        "42.json",
        "00000000000000000042.json.tmp",
        "_commits",
    ],
)
def test_what_belongs_to_no_version(name: str) -> None:
    assert log_file(name) is None
    assert log_files([name]) == []


def name(file: str) -> str:
    """Return the full name of `3` (a commit), `3c` (a checkpoint), `3s` (a checksum)."""
    number, kind = (file[:-1], file[-1]) if file[-1] in "cs" else (file, "")
    return f"{int(number):020d}" + {"": ".json", "c": ".checkpoint.parquet", "s": ".crc"}[kind]


def planned(source: str, target: str, version: int, *, check_all: bool = False) -> str:
    """Plan logs written as `0 1 2b`: a letter b behind a file tells that its content is the target's own."""
    ours = {name(f): 1 for f in source.split()}
    own = {name(f[:-1]) for f in target.split() if f.endswith("b")}
    theirs = {name(f.removesuffix("b")): 1 for f in target.split()}
    plan = plan_log(ours, theirs, version, lambda n: n not in own, check_all=check_all)
    return " | ".join(" ".join(_short(f) for f in part) for part in (plan.truncate, plan.copy, plan.remove))


def _short(file: DeltaLogFile) -> str:
    return f"{file.version}{'c' if file.is_checkpoint else 's' if file.name.endswith('.crc') else ''}"


PLANS = [
    ("an empty target", "0 1 2", "", 2, " | 0 1 2 | "),
    ("up to the cut only", "0 1 2 2c 3", "", 1, " | 0 1 | "),
    ("what is new", "0 1 2 3", "0 1", 3, " | 2 3 | "),
    ("nothing", "0 1 2", "0 1 2", 2, " |  | "),
    ("a target beyond the cut", "0 1 2", "0 1 2 3 4", 2, "4 3 |  | "),
    ("a branch of its own", "0 1 2 3", "0 1 2b 3b 4", 3, "4 3 2 | 2 3 | "),
    ("one commit of its own", "0 1", "0 1b", 1, "1 | 1 | "),
    ("a checkpoint of its branch", "0 1 2 3 4", "0 1 2b 3b 3c", 4, "3c 3 2 | 2 3 4 | "),
    ("a checkpoint that only the target made", "0 1 2", "0 1 1c", 2, " | 2 | 1c"),
    ("the same checkpoint in other bytes", "0 1 1c 2", "0 1 1cb", 2, " | 1c 2 | "),
    ("a cleaned source", "3 3c 4", "0 1 2", 4, " | 3 3c 4 | 0 1 2"),
    ("a cleaned source beside a branch", "3 3c 4", "0 1 2 3b 4b 5", 4, "5 4 3 | 3 3c 4 | 0 1 2"),
    ("a checksum of its own", "0 0s 1 1s", "0 0sb 1 1s", 1, " | 0s | "),
    ("a killed truncation", "0 1 2 3", "0 1", 3, " | 2 3 | "),
]


@pytest.mark.parametrize("check_all", [False, True])
@pytest.mark.parametrize(
    ("source", "target", "version", "expected"), [p[1:] for p in PLANS], ids=[p[0] for p in PLANS]
)
def test_plan(source: str, target: str, version: int, expected: str, check_all: bool) -> None:
    assert planned(source, target, version, check_all=check_all) == expected


def test_commits_of_one_number_and_one_size_are_compared_by_content() -> None:
    files = {name(str(v)): 1 for v in range(6)}
    asked: list[str] = []

    def same(file: str) -> bool:
        asked.append(file)
        return int(file[:20]) < 4

    plan = plan_log(files, files, 5, same, check_all=False)
    assert [f.version for f in plan.truncate] == [5, 4]
    assert [f.version for f in plan.copy] == [4, 5]
    assert asked == [name("5"), name("4"), name("3")]


def test_all_of_them_are_compared_where_that_is_asked() -> None:
    files = {name(str(v)): 1 for v in range(3)}
    plan = plan_log(files, files, 2, lambda file: file != name("0"), check_all=True)
    assert [f.version for f in plan.truncate] == [2, 1, 0]


def test_another_size_needs_no_comparison() -> None:
    ours, theirs = {name("0"): 1, name("1"): 1}, {name("0"): 1, name("1"): 2}
    assert [f.version for f in plan_log(ours, theirs, 1, lambda _: True, check_all=False).copy] == [1]


CONTENT = st.dictionaries(st.integers(0, 6).map(lambda v: name(str(v))), st.integers(0, 2), max_size=7)


def result(plan: LogPlan, source: Mapping[str, int], target: Mapping[str, int]) -> dict[str, int]:
    """Return what the target has when a plan is done."""
    left = dict(target)
    for file in plan.truncate:
        del left[file.name]
    for file in plan.copy:
        left[file.name] = source[file.name]
    for file in plan.remove:
        del left[file.name]
    return left


@settings(deadline=None)
@given(CONTENT, CONTENT, st.integers(0, 6))
def test_the_target_ends_with_the_sources_log_up_to_the_cut(
    source: dict[str, int], target: dict[str, int], version: int
) -> None:
    sizes = dict.fromkeys(source, 1), dict.fromkeys(target, 1)
    plan = plan_log(*sizes, version, lambda n: source[n] == target[n], check_all=True)
    assert result(plan, source, target) == {n: c for n, c in source.items() if int(n[:20]) <= version}


@pytest.mark.parametrize(
    ("log", "version", "opens"),
    [
        ("0 1 2", 2, True),
        ("0 1 2", 3, False),
        ("0 2", 2, False),
        ("1 2", 2, False),
        ("2 2c 3", 3, True),
        ("2c 3", 3, True),
        ("0c 1", 1, True),
        ("3c 3", 2, False),
        ("0 1 1c 3", 3, False),
        ("", 0, False),
    ],
)
def test_whether_a_log_opens_at_a_version(log: str, version: int, opens: bool) -> None:
    assert is_readable({name(f): 1 for f in log.split()}, version) is opens
