"""Plays a history on real servers, and asks them at the end what they hold.

What is left: each server's directory, with all logs from its first one on, what each space of the replicaset holds,
and what was done, in Lua. A server that dies of an act itself is started again and continues.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from tests.histories.acts import GROUPS, Act, History, Step, acts_of
from tests.live.client import Connection, TarantoolError
from tests.live.server import Tarantool
from tests.oracle import log

LUA = "histories = require('acts')"
PROMOTE = " if box.ctl.promote then box.ctl.promote() end"
"""Without it newer servers write no synchronous rows."""

SIDES = ("a", "b")
MEMORY = 64 << 20
PATIENCE = 15.0
"""Seconds after which a server that does not answer counts as dead: 2.6.0 hangs in some changes of vinyl spaces."""


LSN_KEY = 3
UNNAMED = 2**64 - 1
"""The lsn in a ROLLBACK that names no transaction: -1."""


class UnplayableError(Exception):
    """A server that contradicts its own files: it does not start from them, or its log lacks what it rolled back."""


@dataclass(frozen=True)
class Held:
    """What a server holds of a space."""

    parts: tuple[tuple[int, str], ...] = ()
    """Field (from 1) and type of each part of the primary key; empty without one."""
    tuples: tuple[bytes, ...] = ()
    """Exact MessagePack, sorted."""
    fields: tuple[tuple[str, str], ...] = ()
    """Name and type of each field of the format."""


Truth = Mapping[str, Held]
"""By name of space: all that belong to the replicaset, neither temporary nor local."""


@dataclass
class Played:
    history: History
    folders: dict[str, Path]
    """Name of the side (`a`, `b`) to its server's directory."""
    truths: tuple[Truth, ...] = ()
    """By side."""
    said: list[str] = field(default_factory=list)
    """What was done, in Lua."""
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kind of act and `done` or `refused` to how often."""
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kind of act and why it was refused to how often."""
    has_checkpoint: bool = False
    has_lost: bool = False
    """Whether a server lost rows that may have been read."""


def uuid_of(side: int, kind: int) -> str:
    """Return the uuid of a side's replicaset (kind 10) or instance (11), the same in every run."""
    return str(UUID(int=kind << 124 | 4 << 76 | 8 << 60 | side + 1))


def play(
    history: History,
    folder: Path,
    binary: str | None = None,
    reading: Callable[[Mapping[str, Path]], None] | None = None,
) -> Played:
    """Play a history.

    Args:
        folder: Gets a directory each server.
        binary: The server's program; by default that on PATH.
        reading: Called with the directories where the history says `read`, while the servers run.

    Raises:
        UnplayableError
    """
    folders = {SIDES[side]: folder / SIDES[side] for side in range(history.sides)}
    played = Played(history, folders)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(_server(history, folders, side, binary)) for side in range(history.sides)
        ]
        for step in history.steps:
            if step.act[0] == "read":
                if reading is not None:
                    reading(folders)
            else:
                _do(played, servers[step.side], step)
        played.truths = tuple(_truth(server) for server in servers)
        for number, server in enumerate(servers):
            # A log without its EOF marker ends a history, too.
            if (history.seed + number) % 2:
                server.kill()
    if history.is_sync and any(_has_unnamed_rollback(one) for one in folders.values()):
        raise UnplayableError("it rolled back a transaction that its log does not name")
    return played


def _has_unnamed_rollback(folder: Path) -> bool:
    """Return whether a server rolled back a transaction for whose lsn it wrote -1.

    Tarantool 2.6.0 does so with one that is written while the last one in the limbo is being confirmed. From its log
    the server itself would do that transaction again.
    """
    rows = (row for path in folder.glob("*.xlog") for row in log.read_log(path))
    return any(row.type == log.ROLLBACK and row.number(LSN_KEY) == UNNAMED for row in rows)


def _server(history: History, folders: Mapping[str, Path], side: int, binary: str | None) -> Tarantool:
    cfg: dict[str, Any] = {
        "replicaset_uuid": uuid_of(side, 10),
        "instance_uuid": uuid_of(side, 11),
        "checkpoint_interval": 0,
        "checkpoint_count": 1000,
        "memtx_memory": MEMORY,
        "vinyl_memory": MEMORY,
    }
    if history.wal_max_size:
        cfg["wal_max_size"] = history.wal_max_size
    here = Path(__file__).parent
    lua = LUA + (PROMOTE if history.is_sync else "")
    return Tarantool(folders[SIDES[side]], cfg=cfg, lua=lua, lua_path=here, binary=binary)


def _do(played: Played, server: Tarantool, step: Step) -> None:
    kind, side = step.act[0], SIDES[step.side]
    # 2.6 does not start from a snapshot with synchronous spaces, and from its log it does the rows of transactions
    # that it had rolled back.
    can_start = not played.history.is_sync or _eval(server, "return box.ctl.promote ~= nil")
    pid = server.pid
    if kind in ("restart", "kill", "tear", "lose"):
        # A vinyl space's files may be of rows that are lost.
        logs = sorted(server.directory.glob("*.xlog"))
        if not can_start or not logs or (kind == "lose" and not played.history.is_plain):
            played.answers[kind, "refused"] += 1
            return
        if kind in ("tear", "lose"):
            server.kill()
            if kind == "lose":
                logs[-1].unlink()
                played.has_lost = True
            else:
                _tear(logs[-1], Random(len(played.said)))
                server.configure(force_recovery=True)
        _restart(server, is_clean=kind == "restart")
        played.said.append(f"{side}: -- {kind}")
        played.answers[kind, "done"] += 1
    elif kind == "checkpoint":
        _count(played, step.act, _checkpoint(server))
        played.has_checkpoint = True
        played.said.append(f"{side}: box.snapshot()")
    else:
        acts = acts_of(step.act)
        answers, said = _ask(server, step.act)
        for act, answer in zip(acts, answers, strict=True):
            _count(played, act, answer)
        if kind in GROUPS:
            played.answers[f"{kind} {step.act[1]}", "done" if "done" in answers else "refused"] += 1
        played.said += [f"{side}: {line}" for line in said]
    if server.pid != pid and not can_start:
        raise UnplayableError("it died, and came back with what it had rolled back")


def _tear(path: Path, dice: Random) -> None:
    """Add to a log what a crash may leave of a block: a part of it, or zeros.

    Not to one without rows: its server goes on behind the torn part of the same file, where the job stops by name.
    """
    content = path.read_bytes()
    block = content.rfind(log.ROW_MAGIC)
    torn = content[block:-1] if dice.random() < 0.5 else bytes(5000)
    if block < 0:
        return
    with path.open("ab") as file:
        file.write(torn[: dice.randint(1, len(torn))])


def _count(played: Played, act: Act, answer: str) -> None:
    kind = f"format {act[2]}" if act[0] == "format" else act[0]
    if answer == "done":
        played.answers[kind, "done"] += 1
    else:
        played.answers[kind, "refused"] += 1
        played.reasons[kind, answer] += 1


def _ask(server: Tarantool, act: Act) -> tuple[list[str], list[str]]:
    """Let a server do an act, and return what became of each act in it and what was done."""
    count = len(acts_of(act))
    try:
        if act[0] in GROUPS:
            answers, said = _eval(server, f"return histories.{act[0]}(...)", act[1], act[2])
        else:
            answers, said = _eval(server, "return histories.play(...)", act)
    except (ConnectionError, TimeoutError):
        _restart(server, is_clean=False)
        return ["the server died of it"] * count, [f"-- the server died of {act}"]
    return list(answers), [
        line.encode(errors="surrogateescape").decode(errors="backslashreplace") for line in said
    ]


def _eval(server: Tarantool, expression: str, *arguments: Any) -> Any:
    with Connection(server.socket, PATIENCE) as connection:
        return connection.eval(expression, *arguments)


def _checkpoint(server: Tarantool) -> str:
    try:
        _eval(server, "box.snapshot()")
    except TarantoolError as error:
        return str(error)
    except (ConnectionError, TimeoutError):
        _restart(server, is_clean=False)
        return "the server died of it"
    return "done"


def _restart(server: Tarantool, *, is_clean: bool) -> None:
    if is_clean:
        server.stop()
    else:
        server.kill()
    try:
        server.start()
    except RuntimeError as error:
        raise UnplayableError(str(error)) from error


def _truth(server: Tarantool) -> Truth:
    found = {}
    try:
        (spaces,) = _eval(server, "return {histories.truth()}")
    except TarantoolError as error:
        # 2.6.0: an UPSERT of vinyl whose result has no such field makes each SELECT of the space fail.
        raise UnplayableError(str(error)) from error
    for name, parts, tuples, fields in spaces:
        exact = tuple(sorted(bytes.fromhex(one) for one in tuples))
        found[name] = Held(tuple(map(tuple, parts)), exact, tuple(map(tuple, fields)))
    return found
