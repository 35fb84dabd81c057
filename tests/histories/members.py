"""Random histories of a replicaset's members: fail-over, joins, expulsions, ids that are given to others.

    python -m tests.histories.members --seeds 0:100 [--server PATH]

One member at a time may write, and hands over only to one that has all its rows: what the last one holds at the end is
the truth. The directories of all members that ever were are sources, of expelled ones until an operator takes them out.
The tables must hold the truth for every cut of the log, and `_cluster` each instance that was ever registered, once.
"""

import argparse
import os
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import UUID

from tests.live.client import TarantoolError
from tests.live.replicaset import await_true
from tests.live.server import Tarantool, find_servers
from tests.pipeline.deployment import Deployment

REPLICASET = str(UUID(int=0xA << 124 | 4 << 76 | 8 << 60 | 7))
SPACES = ("s", "t")
KEYS = 12
WEIGHTS = {
    "write": 10,
    "redefine": 1,
    "switch": 4,
    "join": 3,
    "expel": 2,
    "replace_uuid": 1,
    "restart": 2,
    "kill": 2,
    "checkpoint": 2,
    "read": 5,
    "take_out": 1,
}
MOST = 3
"""Members at once."""

BUDGETS = (1, 300, 1000, 4000)
"""Bytes of log that a batch reads."""

CREATE = """
local name = ...
local space = box.schema.space.create(name, {format = {{'id', 'unsigned'}, {'by', 'string'}, {'n', 'integer'}}})
space:create_index('p')
"""
WRITE = """
local acts = ...
for _, act in ipairs(acts) do
    local kind, name, key, by, n = unpack(act)
    local space = box.space[name]
    if kind == 'delete' then space:delete(key)
    elseif kind == 'update' then space:update(key, {{'=', 2, by}, {'+', 3, n}})
    elseif kind == 'upsert' then space:upsert({key, by, n}, {{'+', 3, n}, {'=', 2, by}})
    else space:replace({key, by, n}) end
end
"""


class Read(Protocol):
    """Aggregates some of what there is, or all."""

    def __call__(self, *, to_the_end: bool = False) -> None: ...


@dataclass
class Members:
    """The members of one replicaset, real servers, that a seed's dice move."""

    folder: Path
    """Gets a directory each instance."""
    dice: Random
    binary: str | None = None
    """The servers' program."""
    sources: dict[str, Path] = field(default_factory=dict)
    live: dict[str, Tarantool] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    registered: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    leader: str = ""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._sockets = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="members-")))
        self._count = 0
        self._start({})
        self.leader = next(iter(self.live))
        for name in SPACES:
            self._leader.eval(CREATE, name)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for server in self.live.values():
            server.kill()
        self._stack.close()

    @property
    def _leader(self) -> Tarantool:
        return self.live[self.leader]

    def step(self, read: Read) -> None:
        """Do one act; `read` aggregates what there is."""
        kind = self.dice.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        if kind == "read":
            read()
            return
        if kind == "take_out":
            read(to_the_end=True)
        detail = getattr(self, f"_{kind}")()
        if detail is not None:
            self.done[kind] += 1
            self.said.append(f"{kind} {detail}")

    def end(self) -> dict[str, list[bytes]]:
        """Let all members get the leader's rows, and return what it holds."""
        self._settle()
        held = {}
        for name in SPACES:
            text = "local found = {} for _, tuple in box.space[...]:pairs() do "
            text += "found[#found + 1] = (require('msgpack').encode(tuple):gsub('.', function(c) "
            text += "return string.format('%02x', c:byte()) end)) end return {found}"
            held[name] = sorted(bytes.fromhex(one) for one in self._leader.eval(text, name)[0])
        return held

    def age(self) -> None:
        """Let logs of live members be written as long after the others as a stream waits before it leaves a leader."""
        for name in self.live:
            for path in self.sources[name].glob("*.xlog"):
                written = path.stat().st_mtime
                os.utime(path, (written, written + 3600))

    def uuid(self, number: int) -> str:
        return str(UUID(int=0xB << 124 | 4 << 76 | 8 << 60 | number))

    def _cfg(self, name: str, masters: Mapping[str, Tarantool]) -> dict[str, Any]:
        return {
            "instance_uuid": self.uuid(int(name[1:])),
            "replicaset_uuid": REPLICASET,
            "replication": [f"unix/:{one.socket}" for one in masters.values()],
            "replication_connect_quorum": len(masters),
            "replication_timeout": 0.2,
            "checkpoint_interval": 0,
            "checkpoint_count": 1000,
            "wal_max_size": 4000,
        }

    def _start(self, masters: Mapping[str, Tarantool]) -> str:
        self._count += 1
        name = f"m{self._count}"
        server = Tarantool(
            self.folder / name,
            cfg=self._cfg(name, masters),
            socket=str(self._sockets / name),
            binary=self.binary,
        )
        server.start()
        self.live[name], self.sources[name] = server, server.directory
        self.ids[name] = int(server.eval("return box.info.id"))
        self.registered.add(self.uuid(self._count))
        return name

    def _connect(self) -> None:
        """Let each member follow all others; the leader alone writes."""
        for name, server in self.live.items():
            others = [f"unix/:{one.socket}" for other, one in self.live.items() if other != name]
            cfg = {"replication": others, "replication_connect_quorum": 0, "read_only": name != self.leader}
            server.eval("box.cfg(...)", cfg)

    def _vclock(self, name: str) -> dict[int, int]:
        found = self.live[name].eval("return box.info.vclock")
        vclock = dict(enumerate(found, 1)) if isinstance(found, list) else dict(found)
        return {id_: lsn for id_, lsn in vclock.items() if id_ and lsn}

    def _settle(self) -> None:
        for name in self.live:
            await_true(lambda name=name: self._vclock(name) == self._vclock(self.leader))  # type: ignore[misc]

    def _write(self) -> str:
        kinds, acts = ("replace", "replace", "update", "upsert", "delete"), []
        for _ in range(self.dice.randint(1, 12)):
            kind, space = self.dice.choice(kinds), self.dice.choice(SPACES)
            acts.append([kind, space, self.dice.randrange(KEYS), self.leader, self.dice.randrange(100)])
        in_one = self.dice.random() < 0.4
        self._leader.eval(f"box.begin() {WRITE} box.commit()" if in_one else WRITE, acts)
        return f"{len(acts)} rows by {self.leader}"

    def _redefine(self) -> str:
        name = self.dice.choice(SPACES)
        self._leader.eval("box.space[...]:drop()", name)
        self._leader.eval(CREATE, name)
        return name

    def _switch(self) -> str | None:
        others = [name for name in self.live if name != self.leader]
        if not others:
            return None
        self._leader.eval("box.cfg{read_only = true}")
        self._settle()
        self.leader = self.dice.choice(others)
        self._connect()
        return self.leader

    def _join(self) -> str | None:
        if len(self.live) >= MOST:
            return None
        name = self._start({self.leader: self._leader})
        self._connect()
        return f"{name} with id {self.ids[name]}"

    def _expel(self) -> str | None:
        others = [name for name in self.live if name != self.leader]
        if not others:
            return None
        name = self.dice.choice(others)
        # An operator waits for its rows before an expulsion.
        self._settle()
        self.live.pop(name).stop()
        self._connect()
        self._leader.eval("box.space._cluster:delete(...)", self.ids[name])
        return name

    def _replace_uuid(self) -> str | None:
        """Give the id of a member that is stopped for good to a new one, in place."""
        others = [name for name in self.live if name != self.leader]
        if not others:
            return None
        name = self.dice.choice(others)
        self._settle()
        new = self.uuid(self._count + 1)
        self.live.pop(name).stop()
        self._connect()
        try:
            self._leader.eval("box.space._cluster:replace({...})", self.ids[name], new)
        except TarantoolError:  # newer servers refuse it: then it is an expulsion
            self._leader.eval("box.space._cluster:delete(...)", self.ids[name])
            return f"refused, {name} is expelled"
        self.registered.add(new)
        replaced = self._start({self.leader: self._leader})
        self._connect()
        return f"{name} by {replaced}, id {self.ids[replaced]}"

    def _restart(self) -> str:
        return self._again(is_clean=True)

    def _kill(self) -> str:
        return self._again(is_clean=False)

    def _again(self, *, is_clean: bool) -> str:
        name = self.dice.choice([*self.live])
        server = self.live[name]
        if is_clean:
            server.stop()
        else:
            server.kill()
        server.start()
        self._connect()
        return name

    def _checkpoint(self) -> str:
        name = self.dice.choice([*self.live])
        self.live[name].eval("box.snapshot()")
        return name

    def _take_out(self) -> str | None:
        gone = [name for name in self.sources if name not in self.live]
        if not gone:
            return None
        name = self.dice.choice(gone)
        del self.sources[name]
        return name


def examined(seed: int, folder: Path, binary: str | None, steps: int = 25) -> tuple[Members, list[str]]:
    """Play the history of a seed, and return it with what is wrong with the tables.

    Args:
        folder: An empty one.
        binary: The servers' program.
    """
    along = Deployment(folder / "along", {})
    (folder / "along").mkdir(parents=True)
    with Members(folder / "servers", Random(seed), binary) as members:

        def read(*, to_the_end: bool = False) -> None:
            along.sources = dict(members.sources)
            batches = members.dice.randint(1, 6)
            budgets = [members.dice.choice(BUDGETS) for _ in range(batches)]
            along.run(budgets, None if to_the_end else batches)
            members.said.append("read")

        read()
        for _ in range(steps):
            members.step(read)
        truth = members.end()
        members.age()
        alive = {name: members.sources[name] for name in members.live}
        problems = _compared("along", along, members, truth, members.sources)
        for name, budget in (("one", None), ("random", [Random(seed).choice(BUDGETS) for _ in range(1000)])):
            (folder / name).mkdir()
            problems += _compared(name, Deployment(folder / name, {}), members, truth, alive, budget)
    return members, problems


def _compared(
    name: str,
    deployment: Deployment,
    members: Members,
    truth: Mapping[str, list[bytes]],
    sources: Mapping[str, Path],
    budget: list[int] | None = None,
) -> list[str]:
    """Aggregate the rest, and return what is not as it has to be."""
    deployment.sources = dict(sources)
    try:
        deployment.run(budget)
    except Exception:  # whatever the engine raises is a finding
        return [f"{name}: raised\n{traceback.format_exc()}"]
    found = []
    for space, tuples in truth.items():
        own = sorted(deployment.tuples(space))
        if own != tuples:
            lacking, extra = set(tuples) - set(own), set(own) - set(tuples)
            found.append(f"{name}: {space}: lacks {sorted(lacking)[:3]}, has {sorted(extra)[:3]}")
    for table in ("_pending", "_quarantine", "_gaps"):
        found += [f"{name}: {table} has {row}" for row in deployment.rows(table)[:2]]
    ids = Counter(row["uuid"] for row in deployment.rows("_cluster") if row["replicaset_id"])
    numbers = [row["global_id"] for row in deployment.rows("_cluster") if row["global_id"] is not None]
    if len(set(numbers)) != len(numbers):
        found.append(f"{name}: a global id stands twice in `_cluster`: {sorted(numbers)}")
    last: dict[tuple[int, int], int] = {}
    for row in deployment.rows("_changelog", ["file", "global_id", "replica_id", "lsn"]):
        if row["replica_id"] and row["file"].endswith(".xlog"):
            key = row["global_id"], row["replica_id"]
            last[key] = max(last.get(key, 0), row["lsn"])
    vclock = {}
    for row in sorted(deployment.rows("_vclock"), key=lambda row: int(row["epoch"])):
        vclock[row["global_id"], row["local_id"]] = row["lsn"]
    found += [
        f"{name}: `_vclock` lacks {lsn} of {key}" for key, lsn in last.items() if vclock.get(key, 0) < lsn
    ]
    # Who has followed from the beginning knows all instances, others those of the oldest snapshot, and later ones.
    known = members.registered if name == "along" else {members.uuid(int(one[1:])) for one in members.live}
    missing = known - set(ids)
    found += [f"{name}: `_cluster` lacks {one}" for one in sorted(missing)]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the histories of some seeds, and say which ones give other tables."""
    parser = argparse.ArgumentParser(
        prog="tests.histories.members", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seeds", default="0:100", help="FIRST:LAST, the last one not included")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument(
        "--server", action="append", help="path of a tarantool; by default those of TARANTOOL"
    )
    options = parser.parse_args(arguments)
    first, last = map(int, options.seeds.split(":"))
    failing: list[int] = []
    for binary in options.server or find_servers():
        done: Counter[str] = Counter()
        began = time.monotonic()
        for seed in range(first, last):
            folder = Path(tempfile.mkdtemp(prefix="members-"))
            try:
                members, problems = examined(seed, folder, binary, options.steps)
            finally:
                shutil.rmtree(folder)
            done += members.done
            if problems:
                failing.append(seed)
                print("\n".join([f"seed {seed}:", *problems, "which did:", *members.said]), flush=True)
        took = time.monotonic() - began
        print(f"{binary}: {last - first} done in {took:.0f} s, failing: {failing}; {dict(done)}", flush=True)
    return int(bool(failing))


if __name__ == "__main__":
    raise SystemExit(main())
