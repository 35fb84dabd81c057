"""What counts as a difference: a real server is compared with tables whose rows the test chooses."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgpack
import pyarrow as pa
import pytest

from observe.proof import space_proof
from observe.proof.epoch_tables import EpochTables
from observe.proof.space_proof import ComparedSpace, ProofLimits, ReadRateLimit, SpaceComparison, SpaceProof
from schemas.space import KeyPart, Space
from sources.iproto.address import Address, Peer
from sources.iproto.client import connect
from tests.live.server import Tarantool
from udfs.keys.keys import KeyPlan
from warehouse.delta.location import location_of

pytestmark = pytest.mark.live

SPACE = Space(600, 1, "s", "memtx", primary_key=(KeyPart(0, "unsigned"),))
KEY = msgpack.packb([2])
UUID = "a replicaset"


@dataclass(frozen=True)
class ChosenTables(EpochTables):
    """Tables with the server's tuples, except key 2, for which the test chooses the tuple."""

    answers: Callable[[], str] = field(default=lambda: "old")
    changed: frozenset[bytes] | None = frozenset()

    def versions_of_replicaset(self, replicaset: int, table: str) -> Iterator[tuple[pa.Array, pa.Array]]:  # noqa: ARG002
        rows = [[1, "one"], [2, "old"], [3, "three"]]
        keys = pa.array([msgpack.packb(row[:1]) for row in rows], pa.binary())
        yield keys, pa.array([msgpack.packb(row) for row in rows], pa.binary())

    def tuples_of_keys(self, replicaset: int, table: str, keys: Sequence[bytes]) -> list[bytes | None]:  # noqa: ARG002
        assert list(keys) == [KEY]
        return [msgpack.packb([2, self.answers()])]

    def changed_keys(self, replicaset: int, space_id: int, plan: KeyPlan, after: int) -> set[bytes] | None:  # noqa: ARG002
        return None if self.changed is None else set(self.changed)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_proof, "COMPARISON_PAUSE_SECONDS", 0.01)


def proof_of(
    server: Tarantool,
    answers: Callable[[], str] = lambda: "old",
    changed: frozenset[bytes] | None = frozenset(),
    vclock: Mapping[int, int] | None = None,
) -> SpaceProof:
    server.eval("box.schema.space.create('s', {id = 600}):create_index('pk')")
    server.eval("for id, name in pairs({'one', 'new', 'three'}) do box.space.s:insert{id, name} end")

    async def run() -> SpaceProof:
        connection = await connect(Peer("server", Address(path=server.socket)), 20)
        own = (await connection.request_ballot()).vclock if vclock is None else vclock
        tables = ChosenTables(location_of("nowhere"), 7, {UUID: own}, {}, answers, changed)
        compared = ComparedSpace(SPACE, "s", 1, UUID, "server")
        try:
            return await SpaceComparison(
                compared,
                connection,
                lambda: tables,
                ProofLimits(None, 0.5),
                ReadRateLimit(ProofLimits(), connection),
                with_checksums=False,
            ).compare()
        finally:
            connection.close()

    return asyncio.run(run())


def test_a_key_that_differs_twice_and_is_not_changed_is_a_difference(tarantool: Tarantool) -> None:
    found = proof_of(tarantool)
    assert [str(one) for one in found.differences] == ["key [2]: server [2, 'new'], tables [2, 'old']"]
    assert (found.rows, found.looked_again, found.moving, found.error) == (3, 1, 0, None)


@pytest.mark.parametrize("changed", [frozenset({KEY}), None], ids=["this key", "any key"])
def test_a_key_that_the_log_changes_meanwhile_is_no_difference(
    tarantool: Tarantool, changed: frozenset[bytes] | None
) -> None:
    found = proof_of(tarantool, changed=changed)
    assert (found.differences, found.moving, found.holds) == ((), 1, True)


def test_a_change_of_another_key_hides_nothing(tarantool: Tarantool) -> None:
    assert len(proof_of(tarantool, changed=frozenset({msgpack.packb([3])})).differences) == 1


def test_a_key_that_differs_in_another_way_each_time_is_no_difference(tarantool: Tarantool) -> None:
    numbers = iter(range(100))
    found = proof_of(tarantool, lambda: f"version {next(numbers)}")
    assert (found.differences, found.moving) == ((), 1)


def test_a_key_that_is_equal_at_the_second_comparison_is_no_difference(tarantool: Tarantool) -> None:
    answers = iter(["old", "new"])
    found = proof_of(tarantool, lambda: next(answers))
    assert (found.differences, found.moving, found.looked_again) == ((), 0, 1)


def test_tables_that_do_not_reach_the_vclock_are_reported(tarantool: Tarantool) -> None:
    found = proof_of(tarantool, vclock={})
    assert found.differences == ()
    assert "the tables do not reach the vclock of the server" in str(found.error)


def test_a_server_behind_the_tables_is_reported(tarantool: Tarantool) -> None:
    found = proof_of(tarantool, vclock={1: 1 << 40})
    assert found.differences == ()
    assert "the server does not reach the vclock of the tables" in str(found.error)
