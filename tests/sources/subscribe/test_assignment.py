"""Assignment of replica ids to peers: examples, and properties for any peers and ids."""

from hypothesis import given
from hypothesis import strategies as st

from sources.iproto.messages import Ballot
from sources.subscribe.assignment import (
    assign_ids,
    choose_leader,
    is_rewound,
    peer_fitness,
    start_vclock,
)
from sources.subscribe.options import OrphanPolicy

A, B, C = "a", "b", "c"
OWNERS = {1: A, 2: B, 3: C}


def ids(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


def test_each_connected_peer_feeds_its_own_instance() -> None:
    assert assign_ids([C, A, B], OWNERS) == {A: ids(1), B: ids(2), C: ids(3)}


def test_orphans_go_to_the_last_peer_by_id() -> None:
    assert assign_ids([B, A], OWNERS | {7: "gone", 9: ""}) == {A: ids(1), B: ids(2, 3, 7, 9)}


def test_orphans_are_assigned_in_turn() -> None:
    owners = OWNERS | {7: "d", 8: "e", 9: "f", 10: "g"}
    given_ = assign_ids([A, B, C], owners, orphans=OrphanPolicy.ROUND_ROBIN)
    assert given_ == {A: ids(1, 7, 10), B: ids(2, 8), C: ids(3, 9)}


def test_only_the_ids_of_a_disconnected_peer_move() -> None:
    before = assign_ids([A, B, C], OWNERS)
    assert assign_ids([A, C], OWNERS, before) == {A: ids(1), C: ids(2, 3)}


def test_a_reconnected_peer_gets_its_own_id_back() -> None:
    stolen = {A: ids(1), C: ids(2, 3)}
    assert assign_ids([A, B, C], OWNERS, stolen) == {A: ids(1), B: ids(2), C: ids(3)}


def test_an_orphan_stays_with_its_peer_when_another_connects() -> None:
    before = {A: ids(1, 9)}
    assert assign_ids([A, B], {1: A, 2: B, 9: "x"}, before)[A] == ids(1, 9)


def test_a_new_instance_is_an_orphan_until_it_is_a_peer() -> None:
    before = assign_ids([A, B], {1: A, 2: B})
    assert assign_ids([A, B], OWNERS, before) == {A: ids(1), B: ids(2, 3)}


def test_a_peer_that_cannot_feed_an_id_does_not_get_it() -> None:
    feedable = {A: ids(1, 2, 3), B: ids(3), C: ids(1, 3)}
    assert assign_ids([A, B, C], OWNERS, feedable_by_peer=feedable) == {A: ids(1, 2), C: ids(3)}
    assert assign_ids([A, B], {5: "x"}, feedable_by_peer={A: ids(), B: ids()}) == {}


peers = st.lists(st.sampled_from("abcdefgh"), unique=True)
owners = st.dictionaries(st.integers(1, 31), st.sampled_from("abcdefghxyz"), max_size=12).map(
    lambda found: {
        i: f"{uuid}" if list(found.values()).count(uuid) == 1 else f"{uuid}{i}" for i, uuid in found.items()
    }
)


@given(peers, owners, peers, st.sampled_from(list(OrphanPolicy)))
def test_each_id_is_assigned_once_and_as_few_as_possible_move(
    connected: list[str], owned: dict[int, str], before_: list[str], orphans: OrphanPolicy
) -> None:
    before = assign_ids(before_, owned, orphans=orphans)
    after = assign_ids(connected, owned, before, orphans)
    fed = [i for given_ in after.values() for i in given_]
    assert sorted(fed) == (sorted(owned) if connected else [])
    held = {i: peer for peer, given_ in before.items() for i in given_}
    for peer, given_ in after.items():
        for i in given_:
            if owned[i] in connected:
                assert peer == owned[i]
            elif held.get(i) in connected:
                assert peer == held[i]
    assert assign_ids(connected, owned, after, orphans) == after
    assert assign_ids(connected[::-1], owned, after, orphans) == after


def ballot(vclock: dict[int, int], gc: dict[int, int] | None = None) -> Ballot:
    return Ballot(vclock, gc or {}, is_loading=False)


def test_the_leader_stays_while_it_can_feed_all_ids() -> None:
    ballots = {A: ballot({1: 5}), B: ballot({1: 9})}
    feedable = {A: ids(1), B: ids(1)}
    assert choose_leader([A, B], ids(1), A, ballots, feedable) == {A: ids(1)}
    assert choose_leader([A, B], ids(1), None, ballots, feedable) == {B: ids(1)}
    assert choose_leader([A, B], ids(1), A, ballots, {A: ids(), B: ids(1)}) == {B: ids(1)}
    assert choose_leader([A, B], ids(1), A, ballots, {A: ids(), B: ids()}) == {}


def test_a_start_is_compared_with_both_vclocks_of_the_ballot() -> None:
    """The condition is gc <= start <= current; a server does not report a start that is higher than its vclock."""
    fit = peer_fitness(ballot({1: 10, 2: 10, 3: 10}, {1: 5, 2: 6}), {1: 5, 2: 5, 3: 11}, [1, 2, 3, 4])
    assert (fit.feedable_ids, fit.lost_log_starts, fit.last_lsns_behind) == (ids(1, 4), {2: 6}, {3: 10})


def test_the_start_has_the_peers_own_lsns_for_other_ids() -> None:
    answer = ballot({1: 10, 2: 20, 3: 30})
    assert start_vclock(answer, {1: 4, 2: 25, 5: 1}, ids(1, 5)) == {1: 4, 2: 25, 3: 30, 5: 1}
    assert start_vclock(answer, {1: 4}, None) == {1: 4}
    assert start_vclock(answer, {}, ids(1)) == {2: 20, 3: 30}


def test_an_instance_is_rewound_only_if_no_peer_has_its_rows() -> None:
    had = {A: {1: 10}, B: {1: 10}}
    assert is_rewound(A, 1, {A: ballot({1: 9}), B: ballot({1: 8})}, had)
    assert not is_rewound(A, 1, {A: ballot({1: 9}), B: ballot({1: 10})}, had)
    assert not is_rewound(A, 1, {B: ballot({1: 8})}, had), "its instance is away: the rows may come back"
    assert not is_rewound(A, 1, {A: ballot({1: 9})}, {A: {1: 9}}), (
        "a ballot that is older than what came since"
    )
