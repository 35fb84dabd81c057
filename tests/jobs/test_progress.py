"""Lag: how far each leader is behind the end of its log."""

import json

import pytest

from jobs.runtime.progress import lag_by_leader


def offset(**entries: tuple[str, str, int]) -> str:
    named = {
        uuid: {"leader": leader, "file": file, "position": position}
        for uuid, (leader, file, position) in entries.items()
    }
    return json.dumps({"replicasets": named})


def test_within_a_file_it_is_bytes() -> None:
    end, latest = offset(A=("a1", "1.xlog", 100)), offset(A=("a1", "1.xlog", 350))
    assert lag_by_leader(end, latest) == {"a1": "250 B"}


def test_across_files_it_is_the_file() -> None:
    end, latest = offset(A=("a1", "1.xlog", 900)), offset(A=("a2", "7.xlog", 350))
    assert lag_by_leader(end, latest) == {"a2": "to 7.xlog"}


def test_a_leader_without_lag_is_left_out() -> None:
    end = offset(A=("a1", "1.xlog", 100), B=("b1", "1.xlog", 100))
    latest = offset(A=("a1", "1.xlog", 100), B=("b1", "1.xlog", 101), C=("c1", "1.xlog", 5))
    assert lag_by_leader(end, latest) == {"b1": "1 B"}


@pytest.mark.parametrize(
    ("end", "latest"),
    [(None, None), (offset(), None), (None, offset()), ("", ""), ("null", offset(A=("a1", "1.xlog", 1)))],
)
def test_without_offsets_there_is_no_lag(end: str | None, latest: str | None) -> None:
    assert lag_by_leader(end, latest) == {}
