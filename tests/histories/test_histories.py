"""Tables are what the servers hold, whatever they did to their spaces and wherever the log is cut.

`HISTORIES=300` in the environment plays so many histories, `TARANTOOL=/path/of/one:/path/of/another` on these servers;
`python -m tests.histories` plays longer ones, in more ways each.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.histories import check, members
from tests.histories.__main__ import Ways, report
from tests.histories.acts import (
    Act,
    History,
    Step,
    acts_of,
    history,
    history_from,
    merged,
    names_in,
    number_of,
)
from tests.histories.check import examine
from tests.histories.play import Held, Played, UnplayableError, play
from tests.histories.shrink import shrink
from tests.live.server import find_servers
from tests.soaked import partly_soaked

COUNT = int(os.environ.get("HISTORIES", "6"))
SERVERS = find_servers() or [""]
SHORT = 9
"""About as many steps as a history has here that is done transaction by transaction."""


def examined(whole: History, binary: str, folder: Path) -> None:
    ways = Ways(vary=True)
    try:
        outcome = examine(whole, folder, binary, ways.of(whole))
    except UnplayableError as error:
        pytest.skip(f"the server itself does not start from its files: {error}")
    if outcome.problems:
        pytest.fail(report(outcome, binary, ways))


@pytest.mark.live
@pytest.mark.parametrize("binary", SERVERS, ids=lambda path: Path(path).name)
@pytest.mark.parametrize("seed", partly_soaked(range(COUNT // 3), range(COUNT // 3, 8)))
def test_the_tables_are_what_the_server_holds(seed: int, binary: str, tmp_path: Path) -> None:
    examined(history(seed, 1, SHORT), binary, tmp_path)


@pytest.mark.live
@pytest.mark.parametrize("binary", SERVERS, ids=lambda path: Path(path).name)
@pytest.mark.parametrize("count", partly_soaked([8], [40]))
def test_the_tables_of_many_histories_at_once(count: int, binary: str, tmp_path: Path) -> None:
    able = [one for one in (history(seed, 1, SHORT) for seed in range(100, 200)) if not one.is_sync]
    examined(merged(able[:count]), binary, tmp_path)


@pytest.mark.live
@pytest.mark.parametrize("binary", SERVERS, ids=lambda path: Path(path).name)
@pytest.mark.parametrize(
    "seed", partly_soaked(range(COUNT - COUNT * 2 // 3), range(COUNT - COUNT * 2 // 3, 4))
)
def test_the_tables_are_what_two_servers_hold(seed: int, binary: str, tmp_path: Path) -> None:
    examined(history(seed, 2, SHORT), binary, tmp_path)


@pytest.mark.live
@pytest.mark.parametrize("binary", SERVERS, ids=lambda path: Path(path).name)
@pytest.mark.parametrize("seed", partly_soaked(range(COUNT // 4), range(COUNT // 4, 3)))
def test_members_come_and_go(seed: int, binary: str, tmp_path: Path) -> None:
    played, problems = members.examined(seed, tmp_path, binary, SHORT * 2)
    assert problems == [], played.said


@pytest.mark.live
def test_what_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that holds another tuple than its log says, or a column that does not hold its field."""
    made = ["create", "a", {"format": [{"name": "id", "type": "unsigned"}]}, {"parts": [[1, "unsigned"]]}]
    short_history = History(
        1, 1, 0, False, (Step(0, made), Step(0, ["replace", "a", 3, 1]), Step(0, ["truncate", "b"]))
    )

    def played(*arguments: object) -> Played:
        found = play(*arguments)  # type: ignore[arg-type]
        held = found.truths[0]["a"]
        assert len(held.tuples) == 1
        assert found.answers["truncate", "refused"] == 1
        other = replace(held, tuples=(b"\x91\x09",), fields=(("other", "unsigned"),))
        return replace(found, truths=({"a": other, "gone": Held(tuples=(b"\x91\x01",))},))

    assert examine(short_history, tmp_path / "right").problems == ()
    monkeypatch.setattr(check, "play", played)
    problems = examine(short_history, tmp_path / "wrong", ways=["each"]).problems
    assert "one: a: lacks (9,)" in problems
    assert "each: gone: lacks (1,)" in problems
    assert "one: a: other is 'no column' in the row of (3,)" in problems
    assert any(text.startswith("one: a: has (3") for text in problems)


def test_a_seed_gives_one_history_and_its_text_gives_it_back() -> None:
    one = history(7, sides=2)
    assert one == history(7, sides=2) != history(8, sides=2)
    assert history_from(one.to_json()) == one


def test_merged_histories_are_found_in_the_one_that_they_make() -> None:
    parts = [one for one in (history(seed, 1, SHORT) for seed in range(20)) if not one.is_sync]
    whole = merged(parts)
    own = [(number, act) for number in range(1, whole.count + 1) for act in kept(whole.only(number))]
    assert len(own) == sum(len(kept(one)) for one in parts)
    assert all({number_of(name) for name in names_in(act)} == {number} for number, act in own)
    assert history_from(whole.to_json()) == whole


def kept(one: History) -> list[Act]:
    """Return the steps that name spaces: of the others, a merged history has fewer."""
    return [step.act for step in one.steps if names_in(step.act)]


def test_a_failing_history_is_made_as_small_as_it_can_be() -> None:
    wanted = ["drop_key", "truncate"]
    long = next(one for one in map(history, range(100)) if set(wanted) <= kinds_of(one))
    small = shrink(long, lambda one: set(wanted) <= kinds_of(one))
    assert small.size == len(wanted)
    assert kinds_of(small) == set(wanted)


def kinds_of(one: History) -> set[str]:
    return {act[0] for step in one.steps for act in acts_of(step.act)}
