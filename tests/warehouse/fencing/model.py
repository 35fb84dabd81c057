"""A store in memory that two writers share, as values: Delta's logs and a lease, changed by one request at a time.

What delta-rs and a store with conditional writes do is modelled here and nowhere else; `test_model.py` compares it with
the real ones. The code that is explored is the real one: `OpenTables`, `Fence`, `Lease`, `roll_back`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Self

from deltalake import CommitProperties, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import PostCommitHookProperties
from pyarrow.fs import FileType

from warehouse.delta.commit_actions import USER_METADATA
from warehouse.delta.fence import APP_ID
from warehouse.delta.log_commit import VersionTakenError
from warehouse.delta.table_log import Action, LogState
from warehouse.lock.lease import StoredLease


@dataclass(frozen=True)
class Commit:
    """One version of a table: what it adds to the rows, or which version it restores."""

    added: tuple[str, ...] = ()
    mark: int | None = None
    is_ours: bool = True
    restored: int | None = None


Log = tuple[Commit, ...]


def rows_at(log: Log, version: int) -> tuple[str, ...]:
    rows: tuple[str, ...] = ()
    for commit in log[: version + 1]:
        rows = (*rows, *commit.added) if commit.restored is None else rows_at(log, commit.restored)
    return rows


@dataclass(frozen=True)
class World:
    """What the store holds."""

    logs: tuple[tuple[str, Log], ...] = ()
    lease: tuple[str, int] | None = None

    def log(self, table: str) -> Log:
        """Return the commits of a table; none where it is not there."""
        return dict(self.logs).get(table, ())

    def with_log(self, table: str, log: Log) -> Self:
        return replace(self, logs=tuple(sorted({**dict(self.logs), table: log}.items())))


@dataclass(frozen=True)
class Request:
    """One request of a writer: what it asks, and of what."""

    kind: str
    table: str = ""
    text: str = ""
    tag: int | None = None
    base: int = -1
    commit: Commit = Commit()


FAILED = "failed"


def done(world: World, request: Request) -> tuple[World, Any]:
    """Return the store after a request, and the answer."""
    if request.kind == "open":
        return world, world.log(request.table)
    if request.kind in ("tables", "read"):
        return world, world.lease if request.kind == "read" else tuple(name for name, _ in world.logs)
    if request.kind in ("create", "replace"):
        return _with_lease(world, request)
    log = world.log(request.table)
    if request.kind == "make":
        return (world if log else world.with_log(request.table, (Commit(),))), None
    taken = (
        len(log) - 1 != request.base
        if request.kind == "put"
        else _conflicts(log, request.base, request.commit)
    )
    if taken:
        return world, FAILED
    return world.with_log(request.table, (*log, request.commit)), None


def _with_lease(world: World, request: Request) -> tuple[World, int | None]:
    found = None if world.lease is None else world.lease[1]
    if found != (None if request.kind == "create" else request.tag):
        return world, None
    tag = 1 if found is None else found + 1
    return replace(world, lease=(request.text, tag)), tag


def _conflicts(log: Log, base: int, commit: Commit) -> bool:
    """Whether a commit that was made from a version cannot be made on top of the later ones."""
    return any(
        commit.restored is not None
        or later.restored is not None
        or (commit.mark is not None and later.mark is not None)
        for later in log[base + 1 :]
    )


Ask = Callable[[Request], Any]
"""Makes a request, and returns the answer."""


class ModelTable:
    """An open table, as much of `DeltaTable` as the writer's code uses."""

    def __init__(self, ask: Ask, name: str, log: Log) -> None:
        self._ask, self._name, self.log = ask, name, log

    def version(self) -> int:
        return len(self.log) - 1

    def update_incremental(self) -> None:
        """Open the newest version."""
        self.log = self._ask(Request("open", self._name))

    def transaction_version(self, app: str) -> int | None:
        assert app == APP_ID
        return next((one.mark for one in reversed(self.log) if one.mark is not None), None)

    def history(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest commits, the newest first."""
        found = [_as_history(version, one) for version, one in enumerate(self.log)]
        return found[::-1][:limit]

    def protocol(self) -> SimpleNamespace:
        return SimpleNamespace(writer_features=None, reader_features=None, min_reader_version=1)

    def metadata(self) -> SimpleNamespace:
        return SimpleNamespace(configuration={})

    def schema(self) -> Schema:
        """Return no column: rows are texts."""
        return Schema([])

    def create_write_transaction(
        self,
        actions: Sequence[Any],
        _mode: str,
        _schema: Schema,
        *,
        commit_properties: CommitProperties,
        post_commithook_properties: PostCommitHookProperties | None = None,  # noqa: ARG002
    ) -> None:
        """Commit files; the path of a file is its row."""
        self._commit(Commit(tuple(one.path for one in actions), _mark(commit_properties)))

    def restore(self, version: int, *, commit_properties: CommitProperties) -> None:
        self._commit(Commit((), _mark(commit_properties), restored=version))

    def rows(self) -> tuple[str, ...]:
        return rows_at(self.log, self.version())

    def _commit(self, commit: Commit) -> None:
        answer = self._ask(Request("commit", self._name, base=self.version(), commit=commit))
        if answer == FAILED:
            raise CommitFailedError("Concurrent transaction failed.")


def _mark(properties: CommitProperties) -> int | None:
    transactions = properties.app_transactions or []
    return next((one.version for one in transactions if one.app_id == APP_ID), None)


def _as_history(version: int, commit: Commit) -> dict[str, Any]:
    information: dict[str, Any] = {"version": version, "operation": "WRITE", "userMetadata": USER_METADATA}
    if commit.restored is not None:
        information |= {"operation": "RESTORE", "operationParameters": {"version": commit.restored}}
    return information


class ModelPlace:
    """The location of the tables, as much of `WarehouseLocation` as the writer's code uses."""

    root = "model://warehouse.db"
    is_local = False
    fs = SimpleNamespace(
        get_file_info=lambda paths: [SimpleNamespace(path=one, type=FileType.File) for one in paths]
    )

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._seen: dict[str, Log] = {}

    def open(self, table: str) -> ModelTable | None:
        log = self._seen[table] = self._ask(Request("open", table))
        return ModelTable(self._ask, table, log) if log else None

    def commit(self, table: str, version: int) -> Commit | None:
        """Return a commit, which never changes; None where there is none."""
        if version >= len(self._seen.get(table, ())):
            self._seen[table] = self._ask(Request("open", table))
        log = self._seen[table]
        return log[version] if version < len(log) else None

    def put(self, _location: object, table: str, version: int, actions: Iterable[Action]) -> None:
        """Write the commit of a version if there is none."""
        given = list(actions)
        added = tuple(action["add"]["path"] for action in given if "add" in action)
        mark = next((action["txn"]["version"] for action in given if "txn" in action), None)
        commit = Commit(added, mark)
        for info in (action["commitInfo"] for action in given if "commitInfo" in action):
            if info.get("operation") == "RESTORE":
                commit = Commit((), mark, restored=int(info["operationParameters"]["version"]))
        request = Request("put", table, base=version - 1, commit=commit)
        if self._ask(request) == FAILED:
            raise VersionTakenError("the version is taken", table=table)

    def has_version(self, table: str, version: int) -> bool:  # noqa: ARG002
        """Return True: no commit is lost."""
        return True

    def may_have(self, table: str, version: int) -> bool:
        return len(self._ask(Request("open", table))) > version

    def at(self, *names: str) -> str:
        return "/".join(names)

    def uri(self, table: str) -> str:
        return table

    def tables(self) -> list[str]:
        return list(self._ask(Request("tables")))

    def make(self, table: str) -> None:
        self._ask(Request("make", table))


def read_model_commit(place: ModelPlace, table: str, version: int) -> list[Action] | None:
    """Return the actions of a commit, as `read_commit` does."""
    found = place.commit(table, version)
    if found is None:
        return None
    information = {**_as_history(version, found)}
    return [{"commitInfo": information}, *({"add": {"path": row}} for row in found.added)]


def read_model_log(place: ModelPlace, table: str, version: int) -> LogState:
    """Return what a log says about a version, as `read_log` does."""
    log = tuple(one for n in range(version + 1) if (one := place.commit(table, n)) is not None)
    return LogState(version, adds={row: {"path": row} for row in rows_at(log, version)})


class ModelLease:
    """The lease's object; by the store's clock it is new or old, as the explorer likes."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def now(self) -> float:
        """Return the time by the store's clock."""
        return float(self._ask(Request("now")))

    def read(self) -> StoredLease | None:
        found = self._ask(Request("read"))
        return None if found is None else StoredLease(found[0], found[1], 0.0)

    def create(self, text: str) -> object | None:
        """Write the lease where there is none."""
        tag: object | None = self._ask(Request("create", text=text))
        return tag

    def replace(self, text: str, tag: object) -> object | None:
        """Write the lease over the one with a tag."""
        assert tag is None or isinstance(tag, int)
        found: object | None = self._ask(Request("replace", text=text, tag=tag))
        return found
