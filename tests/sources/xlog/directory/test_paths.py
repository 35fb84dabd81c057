"""Globs: what they match now, what they would match, and what is none."""

from pathlib import Path

import pytest

from sources.xlog.directory import paths


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "a1/1.xlog",
        "a1/2.xlog",
        "a1/2.snap",
        "a1/lock",
        "b1/1.xlog",
        "b1/512/0/3.run",
        ".old/1.xlog",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a1/*.xlog", ["a1/1.xlog", "a1/2.xlog"]),
        ("?1/1.xlog", ["a1/1.xlog", "b1/1.xlog"]),
        ("[!b]1/1.xlog", ["a1/1.xlog"]),
        ("[^b]1/1.xlog", ["a1/1.xlog"]),
        ("a1/{2.snap,1.xlog}", ["a1/1.xlog", "a1/2.snap"]),
        ("{a,b}1/{1,2}.{xlog,snap}", ["a1/1.xlog", "a1/2.snap", "a1/2.xlog", "b1/1.xlog"]),
        ("a1/*", ["a1/1.xlog", "a1/2.snap", "a1/2.xlog"]),
        ("a1/*c*k", ["a1/lock"]),
        ("*", ["a1", "b1"]),
        ("*/512/*/*", ["b1/512/0/3.run"]),
        (".o*/*", [".old/1.xlog"]),
        ("*/9*.xlog", []),
        ("c1/*.xlog", []),
        ("a1/1.xlog/*", []),
    ],
)
def test_a_glob_matches(tree: Path, pattern: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths.expand_glob(f"{tree}/{pattern}") == [f"{tree}/{name}" for name in found]
    assert paths.expand_glob(f"file://{tree}/{pattern}") == [
        f"file://{tree}/{name}" for name in found if "?" not in pattern
    ]
    assert all(paths.glob_matches(f"{tree}/{pattern}", f"{tree}/{name}") for name in found)
    assert not paths.glob_matches(f"{tree}/{pattern}", f"{tree}/a/b/c/d/e")
    monkeypatch.chdir(tree)
    assert paths.expand_glob(pattern) == found, "a relative one"


def test_a_name_that_exists_is_no_glob(tree: Path) -> None:
    assert paths.is_glob(f"{tree}/a1/*.xlog")
    assert paths.is_glob(f"file://{tree}/{{a,b}}1")
    assert not paths.is_glob(f"{tree}/a1")
    (tree / "a[1]").mkdir()
    assert not paths.is_glob(f"{tree}/a[1]")
    assert not paths.is_glob("s3://bucket/a1?endpoint_override=localhost"), "the query of a URI"
