"""The one list of conditions: alerts, documents and code name the same set."""

import ast
import subprocess

import pytest

from observe import alert_rules
from schemas.conditions import CONDITIONS, Job
from schemas.problems import (
    Problem,
    plain_text,
    problem,
    problem_as_json,
    problem_from_json,
    problem_text,
    sorted_problems,
)
from tests.observe.metrics.promtool import ROOT, rules


def names_in_code() -> set[str]:
    """Return the first arguments of all calls of `problem` in the product."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = set()
    for file in listed.stdout.split():
        if not file.startswith("tests/"):
            for node in ast.walk(ast.parse((ROOT / file).read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "problem":
                    found |= {
                        one.value
                        for one in ast.walk(node.args[0])
                        if isinstance(one, ast.Constant) and isinstance(one.value, str)
                    }
    return found


def test_code_finds_each_condition_that_is_not_only_an_alert() -> None:
    alone = {one.name for one in CONDITIONS.values() if one.is_alert_only}
    assert names_in_code() == CONDITIONS.keys() - alone


def test_the_alerts_are_written_from_the_list() -> None:
    assert alert_rules.RULES.read_text() == alert_rules.rules_text()
    assert rules().keys() == {one.alert for one in CONDITIONS.values()}


def test_names_and_alerts_are_the_same_words() -> None:
    for one in CONDITIONS.values():
        assert one.name.startswith(f"{one.job}_") or one.job is Job.STREAM
        prefix = "Aggregator" if one.job is Job.STREAM else ""
        assert one.alert == prefix + "".join(word.capitalize() for word in one.name.split("_"))
        assert one.means
        assert one.found
        assert one.advice


def test_a_name_that_is_not_in_the_list_is_refused() -> None:
    with pytest.raises(KeyError):
        problem("unheard_of", "x", "y")
    assert problem_from_json({"condition": "unheard_of"}) is None


def test_a_problem_crosses_a_status_page() -> None:
    one = problem("gap_open", "replicaset a", "lsns 1 to 2", since=1_700_000_000.0)
    same = problem_from_json(problem_as_json(one))
    assert same == Problem(**{**vars(one), "advice": one.shown_advice})
    assert problem_text(one) == (
        "replicaset a: lsns 1 to 2 [gap_open, page, since 2023-11-14T22:13:20+00:00]"
    )


def test_problems_are_in_the_order_of_the_list_and_once_each() -> None:
    found = [problem("misfits", "t", "1"), problem("down", "s", "2"), problem("misfits", "t", "3")]
    assert [one.text for one in sorted_problems(found)] == ["2", "1"]


def test_advice_on_a_terminal_has_no_links() -> None:
    assert plain_text("`a` is [b](c.md#d), e ([f](g.md))") == "a is b, e"
    assert not any("](" in plain_text(one.advice) for one in CONDITIONS.values())
