"""The lease on an object store: one holder, by compare-and-set, by the store's time, whatever answers are lost."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from schemas.errors import LockError, UnsupportedError
from tests.sources.s3 import Store, installed
from warehouse.delta.location import location_of
from warehouse.lock.lease import LEASE_SECONDS, TRUSTED_SECONDS, Lease, StoredLease
from warehouse.lock.lease_store import ObjectLease, object_lease
from warehouse.lock.lock import LOCK_NAME, WriterLock

MEMORY = "memory://warehouse.db"


class Clocks:
    """The holder's clock and the store's, which a test sets."""

    def __init__(self) -> None:
        self.holder, self.ahead = 0.0, 0.0


class Late(ObjectLease):
    """A lease on a store whose clock may be ahead, and whose answers are lost on demand."""

    def __init__(self, store: Any, clocks: Clocks) -> None:
        super().__init__(store, LOCK_NAME, MEMORY)
        self._clocks = clocks
        self.lost_answers = 0

    def now(self) -> float:
        return super().now() + self._clocks.ahead

    def create(self, text: str) -> object | None:
        return self._answered(super().create(text))

    def replace(self, text: str, tag: object) -> object | None:
        return self._answered(super().replace(text, tag))

    def _answered(self, tag: object | None) -> object | None:
        if self.lost_answers:
            self.lost_answers -= 1
            raise OSError("connection reset")
        return tag


class Writers:
    def __init__(self) -> None:
        self.memory, self.clocks = MemoryStore(), Clocks()

    def lease(self, purpose: str) -> tuple[Lease, Late]:
        """Return one more writer's lease, and its way to the store."""
        store = Late(self.memory, self.clocks)
        owner = {"purpose": purpose, "pid": 1, "host": "here"}
        return Lease(store, owner, MEMORY, lambda: self.clocks.holder), store


@pytest.fixture
def writers() -> Writers:
    return Writers()


def test_a_second_writer_is_refused_and_learns_who_writes(writers: Writers) -> None:
    (one, _), (other, _) = writers.lease("one"), writers.lease("other")
    one.take()
    with pytest.raises(LockError, match=r"is being written by one \(pid 1 on here\)") as caught:
        other.take()
    assert caught.value.fields["warehouse"] == MEMORY
    one.check()


def test_a_lease_that_was_given_back_is_free_at_once(writers: Writers) -> None:
    (one, _), (other, _) = writers.lease("one"), writers.lease("other")
    one.take()
    one.release()
    other.take()
    one.release()
    assert (one.is_held, other.is_held) == (False, True)
    with pytest.raises(LockError):
        one.check()
    other.check()


def test_a_lease_that_is_not_renewed_ends_by_the_clock_of_the_store(writers: Writers) -> None:
    (one, _), (other, _) = writers.lease("one"), writers.lease("other")
    one.take()
    writers.clocks.holder += LEASE_SECONDS - 1
    writers.clocks.ahead += LEASE_SECONDS - 1
    with pytest.raises(LockError, match="is being written"):
        other.take()
    writers.clocks.ahead += 2
    other.take()
    with pytest.raises(LockError, match="another writer took it over"):
        one.check()
    other.check()


def test_a_stamp_of_the_future_does_not_hold_a_lease_for_ever(writers: Writers) -> None:
    (one, _), (other, _) = writers.lease("one"), writers.lease("other")
    one.take()
    writers.clocks.ahead -= 3600
    other.take()


def test_a_holder_that_slept_asks_before_it_goes_on(writers: Writers) -> None:
    one, store = writers.lease("one")
    one.take()
    before = store.read()
    one.check()
    assert store.read() == before
    held = [one.is_held]
    writers.clocks.holder += TRUSTED_SECONDS
    held.append(one.is_held)
    one.check()
    held.append(one.is_held)
    assert held == [True, False, True]
    assert store.read() != before
    store.lost_answers = 1
    writers.clocks.holder += TRUSTED_SECONDS
    with pytest.raises(LockError, match="cannot be renewed: connection reset"):
        one.check()
    one.check()  # the lease was written, and only the answer was lost


def test_an_error_of_a_renewal_says_nothing_and_takes_nothing(writers: Writers) -> None:
    (one, store), (other, _) = writers.lease("one"), writers.lease("other")
    one.take()
    for _ in range(3):
        store.lost_answers = 1
        with pytest.raises(OSError, match="connection reset"):
            one.renew()
    one.renew()
    with pytest.raises(LockError, match="is being written by one"):
        other.take()


def test_of_two_that_take_an_ended_lease_one_gets_it(writers: Writers) -> None:
    dead, _ = writers.lease("dead")
    dead.take()
    writers.clocks.ahead += LEASE_SECONDS

    class Slow(Late):
        def replace(self, text: str, tag: object) -> object | None:
            other.take()
            return super().replace(text, tag)

    slow = Lease(Slow(writers.memory, writers.clocks), {}, MEMORY, lambda: 0.0)
    other, _ = writers.lease("other")
    with pytest.raises(LockError, match="another process took the writer lock first"):
        slow.take()
    other.check()


class Deaf:
    """Stands for a store that does not know conditions, or one of them: it does as it is asked."""

    def __init__(self, put: Callable[..., Any], *modes: type) -> None:
        self._put, self._modes = put, modes

    def __call__(self, store: Any, name: str, data: bytes, *, mode: Any = "overwrite") -> Any:
        return self._put(store, name, data, mode="overwrite" if isinstance(mode, self._modes) else mode)


@pytest.mark.parametrize(("mode", "named"), [(str, "If-None-Match"), (dict, "If-Match")])
def test_a_store_without_conditions_is_refused_by_name(
    mode: type, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryStore()
    monkeypatch.setattr(obstore, "put", Deaf(obstore.put, mode))
    lease = Lease(ObjectLease(memory, LOCK_NAME, MEMORY), {}, MEMORY)
    with pytest.raises(UnsupportedError, match=rf"does not honour conditional writes \({named}") as caught:
        lease.take()
    assert caught.value.fields["warehouse"] == MEMORY
    assert not obstore.list(memory).collect(), "the trial is removed, and no lease is left"


@pytest.mark.parametrize("root", ["hdfs://name:8020/w.db", "dbfs:/w.db", "oss://bucket/w.db"])
def test_a_store_of_which_no_lease_is_known_is_refused_by_name(root: str) -> None:
    with pytest.raises(UnsupportedError, match=f"there is no writer lock for {root.partition(':')[0]}://"):
        object_lease(root, LOCK_NAME)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with Store(tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store


@pytest.mark.soak
@installed
@pytest.mark.usefixtures("s3")
def test_the_lock_of_a_warehouse_on_s3() -> None:
    location = location_of("s3a://lake/warehouse")
    with WriterLock(location, "the first writer") as lock:
        lock.check()
        with (
            pytest.raises(LockError, match="is being written by the first writer"),
            WriterLock(location, "two"),
        ):
            pytest.fail("two writers")
    with WriterLock(location, "two") as lock:
        lock.check()
    found = object_lease(location.root, LOCK_NAME).read()
    assert isinstance(found, StoredLease)
    assert json.loads(found.text)["free"] is True
