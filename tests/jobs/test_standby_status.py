"""What `aggregator status` says of standby copies, and what a configuration may name as one."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from config.deployment import Config, load
from observe.problems import standby_problems
from observe.standbys import StandbyOverview, standbys_overview
from schemas.errors import ConfigurationError
from tests.warehouse.copies.standby import Pair
from warehouse.copies import switch


def config_of(pair: Pair) -> Config:
    file = pair.a.folder.parent.parent / "config.yaml"
    file.write_text(
        "warehouse: a\ncheckpoint: cp\nsources: [{name: a1, path: logs}]\nstandby: {peers: [b]}\n"
    )
    return load(file)


def as_copied(pair: Pair) -> None:
    """Leave the copy as it is."""


def one_behind(pair: Pair) -> None:
    pair.batch_a("later")


def two_behind(pair: Pair) -> None:
    pair.batch_a("later")
    pair.batch_a("and later")


def removed(pair: Pair) -> None:
    shutil.rmtree(pair.b.folder)


def promoted(pair: Pair) -> None:
    switch.promote(pair.b.location)


def newer(pair: Pair) -> None:
    switch.promote(pair.b.location)
    pair.b.resume()
    pair.batch_b("of b")


def split(pair: Pair) -> None:
    newer(pair)
    pair.batch_a("of a")


def in_a_copy(pair: Pair) -> None:
    pair.batch_a("later")
    pair.start()


@pytest.mark.parametrize(
    ("what", "is_up_to_date", "state"),
    [
        (as_copied, True, "has all epochs"),
        (one_behind, True, "1 epochs behind"),
        (two_behind, False, "2 epochs behind"),
        (removed, False, "is empty"),
        (promoted, False, "is a primary, too"),
        (newer, False, "is newer"),
        (split, False, "split brain"),
        (in_a_copy, False, "a copy into it has not ended, at epoch 2"),
    ],
)
def test_what_status_says_of_a_peer(
    tmp_path: Path, what: Callable[[Pair], None], is_up_to_date: bool, state: str
) -> None:
    pair = Pair(tmp_path)
    pair.sync()
    what(pair)
    root = pair.b.location.root
    assert standbys_overview(config_of(pair)) == (StandbyOverview(root, is_up_to_date, state),)
    problems = [
        (one.condition, one.subject, one.text) for one in standby_problems(standbys_overview(config_of(pair)))
    ]
    assert problems == ([] if is_up_to_date else [("peer_lost", f"standby {root}", state)])


@pytest.mark.parametrize(
    ("standbys", "reason"), [("[b, b]", "named twice"), ("[a]", "is the warehouse itself")]
)
def test_a_standby_is_another_location_and_named_once(tmp_path: Path, standbys: str, reason: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        f"warehouse: a\ncheckpoint: cp\nsources: [{{name: a1, path: logs}}]\nstandby: {{peers: {standbys}}}\n"
    )
    with pytest.raises(ConfigurationError, match=reason) as caught:
        load(file)
    assert str(caught.value.fields["path"]).startswith("standby.peers")


def test_without_peers_status_says_nothing(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    config = config_of(pair)
    alone = config.model_copy(update={"standby": type(config.standby)()})
    assert standbys_overview(alone) == ()
