"""The model of Delta's log and of the lease's object is what delta-rs and a real store with conditional writes do."""

import itertools
import tempfile
from typing import Any

import obstore.store
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from tests.soaked import examples
from tests.warehouse.fencing.model import Commit, ModelLease, ModelPlace, ModelTable, Request, World, done
from warehouse.delta.fence import APP_ID, marked_commit
from warehouse.delta.location import WarehouseLocation
from warehouse.lock.lease_store import ObjectLease

HANDLES = 3
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "refresh", "marked", "unmarked", "restored"]), st.integers(0, HANDLES - 1)
    ),
    max_size=12,
)


class Store:
    """A model store that answers at once."""

    def __init__(self, world: World) -> None:
        self.world = world

    def ask(self, request: Request) -> Any:
        self.world, answer = done(self.world, request)
        return answer


def outcome(table: Any, step: str, number: int) -> tuple[bool, int, int | None]:
    """Do a step with an open table, real or of the model, and return what came of it."""
    done_ = True
    try:
        if step == "refresh":
            table.update_incremental()
        elif step == "restored" and table.version() > 0:
            table.restore(0, commit_properties=marked_commit(number))
        elif step in ("marked", "unmarked"):
            properties = marked_commit(number) if step == "marked" else CommitProperties()
            action = AddAction(f"{number}", 1, {}, 1, True, "{}")
            table.create_write_transaction([action], "append", table.schema(), commit_properties=properties)
    except DeltaError:
        done_ = False
    table.update_incremental()
    return done_, table.version(), table.transaction_version(APP_ID)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(STEPS)
def test_a_model_table_is_a_delta_table(steps: list[tuple[str, int]]) -> None:
    store = Store(World((("t", (Commit(),)),)))
    with tempfile.TemporaryDirectory() as folder:
        DeltaTable.create(f"{folder}/t", pa.schema([("a", pa.int64())]))
        location, model = WarehouseLocation(folder, LocalFileSystem(), folder), ModelPlace(store.ask)
        opened: list[tuple[Any, Any]] = [(location.open("t"), model.open("t")) for _ in range(HANDLES)]
        for number, (step, handle) in enumerate(steps, 1):
            if step == "open":
                opened[handle] = (location.open("t"), model.open("t"))
            real, modelled = opened[handle]
            assert outcome(real, step, number) == outcome(modelled, step, number), (number, step, handle)
        found, modelled = location.open("t"), model.open("t")
        assert isinstance(modelled, ModelTable)
        assert found is not None
        actions = pa.table(found.get_add_actions(flatten=True))
        assert sorted(actions["path"].to_pylist()) == sorted(modelled.rows())


def test_a_model_lease_is_an_object() -> None:
    for texts in itertools.product("abc", repeat=2):
        store = Store(World())
        real = ObjectLease(obstore.store.MemoryStore(), "lease", "memory://")
        model = ModelLease(store.ask)
        for lease in (real, model):
            assert lease.read() is None
            assert lease.replace("none", {"e_tag": "1"} if lease is real else 1) is None
            first = lease.create(texts[0])
            assert first is not None
            assert lease.create("again") is None
            second = lease.replace(texts[1], first)
            assert second is not None
            assert second != first
            assert lease.replace("late", first) is None
            found = lease.read()
            assert found is not None
            assert found.text == texts[1]
            assert lease.replace("third", found.tag) is not None
        assert real.now() > 0
