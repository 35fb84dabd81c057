"""Aggregates the logs of a played history, cut into batches in various ways, and says what is not as it has to be.

Of one replicaset the tables must hold what its server holds; of two, each row must be one of the two servers' own.
Whatever the cuts, and however rows are deleted (`VECTORS`), every row and what is known of it must be
the same. Not here: what it must be (`known`).
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from pipeline.batch import MakeDistributed
from schemas.names import table_name
from schemas.states import refusal_reason, refused_state
from tests.histories.acts import History
from tests.histories.collected import CollectedDirectory
from tests.histories.hole import HoledSpool
from tests.histories.known import unlike_the_logs, unlike_the_tuples
from tests.histories.play import Held, Played, play
from tests.oracle import mp
from tests.oracle.keys import Part, key_of
from tests.pipeline.deployment import Deployment, contents

Row = dict[str, Any]
Tables = dict[str, dict[bytes, Row]]
"""Name of a space to the rows of its table."""

CUTS = ("random", "each", "along")
"""Ways to cut, beside one batch for all: at random, after each transaction, and while the servers still write."""

LACKS = ("snapshot", "hole", "collected")
"""Ways in which tables do not come from all logs: from a snapshot, over a hole, and where logs have been collected."""

VECTORS: Mapping[str, Mapping[str, Any]] = {
    "one": {"deletion_vectors": "never"},
    "random": {"deletion_vectors": "always"},
    "each": {"deletion_vectors": "auto", "deletion_vectors_above": 1},
    "snapshot": {"deletion_vectors": "always"},
}
"""How rows are deleted in each of these ways; the tables must be the same."""

SMALL, LARGE = (1, 200, 500, 1000, 2500), (500, 4000, 20000)
"""Bytes of log that a batch reads where the log is cut at random; large ones where each batch takes its time."""

UNREAD = "its rows from before the snapshot"
"""What the reason begins with, for which a vinyl space is refused that is followed from a snapshot."""

DISAGREEMENTS = ("the primary key is not the same", "the field ")
"""What the reasons begin with, for which a table of replicasets is refused that contradict each other."""


@dataclass(frozen=True)
class Outcome:
    played: Played
    problems: tuple[str, ...]
    """Empty where all is as it has to be."""
    is_refused: bool = False
    """Whether two replicasets have contradicted each other: the rows of these tables were not looked at."""


def examine(
    history: History,
    folder: Path,
    binary: str | None = None,
    ways: Iterable[str] = (*CUTS, *LACKS),
    distributed: MakeDistributed | None = None,
) -> Outcome:
    """Play a history and check its tables.

    Args:
        folder: An empty one.
        binary: The server's program.
        ways: Of `CUTS` and `LACKS`, where the history lets them be; one batch for all is done always.
        distributed: Makes the distributed executor of a batch; it must write the same tables as the local one.

    Raises:
        UnplayableError
    """
    asked = set(ways)
    names = [name for name in CUTS if name in asked]
    problems: list[str] = []
    along: list[Deployment] = []

    def reading(folders: Mapping[str, Path]) -> None:
        if not along:
            along.append(_deployment(folder / "along", folders))
        # The setting changes between batches.
        along[0].settings |= Random(along[0].batches).choice(list(VECTORS.values()))
        problems.extend(_caught("along", along[0].run))

    played = play(history, folder / "servers", binary, reading if "along" in names else None)
    if not along:
        names = [name for name in names if name != "along"]
    budgets: dict[str, int | list[int]] = {"each": 1, "random": _budgets(history, SMALL)}
    done: dict[str, Deployment] = {}
    for name in ("one", *names, *(["snapshot"] if played.has_checkpoint and "snapshot" in asked else [])):
        start = "snapshot" if name == "snapshot" else "logs"
        deployment = (
            along[0]
            if name == "along"
            else _deployment(folder / name, played.folders, start=start, **VECTORS[name])
        )
        raised = _caught(name, partial(deployment.run, budgets.get(name)))
        problems += raised
        if not raised:
            done[name] = deployment
    if "hole" in asked and history.sides == 1 and HoledSpool.can_be_made(played.folders["a"]):
        problems += _with_a_hole(history, folder / "hole", played)
    if "collected" in asked and history.sides == 1 and CollectedDirectory.can_be_made(played.folders["a"]):
        problems += _with_collected_logs(history, folder / "collected", played)
    if distributed is not None:
        problems += _unlike_the_local(history, folder / "distributed", played, distributed)
    left_out = _disagreeing(done.values()) if history.sides > 1 else frozenset()
    problems += _compared(done, played, left_out)
    return Outcome(played, tuple(problems), is_refused=bool(left_out))


def _disagreeing(done: Iterable[Deployment]) -> frozenset[str]:
    """Return all names of spaces that two replicasets have ever defined in ways that contradict each other.

    Which of them is read first decides which one is refused, so their rows are not the same in all deployments;
    and the rows of a space that leaves its table for one that is refused stay where they are.
    """
    found: set[str] = set()
    for one in done:
        rows = one.rows("_schema", ["replicaset_id", "space_id", "name", "table_name", "state"])
        wrong = tuple(refused_state(reason) for reason in DISAGREEMENTS)
        spaces = {(row["replicaset_id"], row["space_id"]) for row in rows if row["state"].startswith(wrong)}
        own = [row for row in rows if (row["replicaset_id"], row["space_id"]) in spaces]
        found |= {row[column] for row in own for column in ("name", "table_name") if row[column]}
    return frozenset(found)


def _compared(done: Mapping[str, Deployment], played: Played, left_out: frozenset[str]) -> list[str]:
    """Return what is wrong with the tables of deployments, by the name of each, but for some spaces."""
    problems = []
    names = [name for name in names_of(played) if name not in left_out]
    first: Tables | None = None
    for name, deployment in done.items():
        try:
            found = _problems(deployment, played, names, (UNREAD,) if name == "snapshot" else ())
            if name != "snapshot":
                tables = {one: deployment.table(one) for one in names}
                found += _known(deployment, played, names) if first is None else []
                first = tables if first is None else first
                found += [f"other than in one batch: {text}" for text in differences(first, tables)]
        except Exception:  # a table has a key twice, or a log that no fold understands
            found = [f"cannot be compared\n{traceback.format_exc()}"]
        if name == "along" and played.has_lost and _names_divergence(deployment):
            found = []  # the tables have what was read first, until they are healed
        problems += [f"{name}: {text}" for text in found]
    return problems


def _names_divergence(deployment: Deployment) -> bool:
    return any(row["kind"] == "divergence" for row in deployment.rows("_gaps", ["kind"]))


def _known(deployment: Deployment, played: Played, names: Iterable[str]) -> list[str]:
    applied = set(names) - set(refused(deployment))
    found = unlike_the_logs(deployment, played.folders.values(), sorted(applied))
    if len(played.truths) == 1:
        found += unlike_the_tuples(deployment, played.truths[0])
    return found


def _deployment(folder: Path, folders: Mapping[str, Path], **settings: Any) -> Deployment:
    folder.mkdir(parents=True)
    return Deployment(folder, folders, **settings)


def _with_a_hole(history: History, folder: Path, played: Played) -> list[str]:
    """Return what is wrong with the tables of a spool that lacks a part of the log."""
    spool = HoledSpool(folder / "spool", played.folders["a"], Random(history.seed))
    deployment = _deployment(folder, {"a": spool.folder}, start="snapshot")
    for write in (spool.write_first, spool.write_rest):
        write()
        raised = _caught("hole", partial(deployment.run, _budgets(history, SMALL)))
        if raised:
            return raised
    return [
        f"hole: {text}"
        for text in _problems(deployment, played, names_of(played), tables=("_pending", "_quarantine"))
    ]


def _with_collected_logs(history: History, folder: Path, played: Played) -> list[str]:
    """Return what is wrong with the tables of a directory that continues, or begins, with a later snapshot."""
    found = []
    directory = CollectedDirectory(folder / "server", played.folders["a"], Random(history.seed))
    continued = _deployment(folder / "continued", {"a": directory.folder})
    begun = _deployment(folder / "begun", {"a": directory.folder}, start="snapshot")
    for write, deployments in (
        (directory.write_first, {"continued": continued}),
        (directory.write_rest, {"continued": continued, "begun": begun}),
    ):
        write()
        for name, one in deployments.items():
            raised = _caught(f"collected, {name}", partial(one.run, _budgets(history, SMALL)))
            if raised:
                return raised
    for name, one in (("continued", continued), ("begun", begun)):
        wrong = _problems(one, played, names_of(played), (UNREAD,), tables=("_pending", "_quarantine"))
        found += [f"collected, {name}: {text}" for text in wrong]
    return found


def _unlike_the_local(
    history: History, folder: Path, played: Played, distributed: MakeDistributed
) -> list[str]:
    """Return where the distributed executor writes other tables than the local one, on the same cuts."""
    found = []
    for name, make in (("local", None), ("distributed", distributed)):
        deployment = _deployment(folder / name, played.folders, distributed=make, **VECTORS["random"])
        raised = _caught(name, partial(deployment.run, _budgets(history, LARGE)))
        if raised:
            return raised
        found.append(contents(deployment))
    local, other = found
    return [
        f"distributed: {table} has {_shown_beyond(other, local, table)}, "
        f"the local one {_shown_beyond(local, other, table)}"
        for table in sorted(local.keys() | other.keys())
        if local.get(table) != other.get(table)
    ]


def _shown_beyond(
    one: Mapping[str, Counter[str]], other: Mapping[str, Counter[str]], table: str
) -> list[str]:
    return list((one.get(table, Counter()) - other.get(table, Counter())).elements())[:3]


def _budgets(history: History, sizes: Sequence[int]) -> list[int]:
    dice = Random(history.seed)
    return [dice.choice(sizes) * (history.count + 1) // 2 for _ in range(1000)]


def _caught(name: str, run: Callable[[], object]) -> list[str]:
    try:
        run()
    except Exception:  # whatever the engine raises is a finding
        return [f"{name}: raised\n{traceback.format_exc()}"]
    return []


def names_of(played: Played) -> list[str]:
    """Return the names that spaces may have had."""
    return sorted({*played.history.names(), *(name for truth in played.truths for name in truth)})


def differences(one: Tables, other: Tables) -> list[str]:
    """Return in words what differs between two deployments' tables."""
    found = []
    for name in one:
        for key in sorted(one[name].keys() | other[name].keys()):
            before, after = one[name].get(key), other[name].get(key)
            if before is None or after is None:
                found.append(f"{name}: {_shown(before)} became {_shown(after)}")
            elif before != after:
                changed = {k: (before[k], after[k]) for k in before if before[k] != after.get(k)}
                found.append(f"{name}: {_shown(before)}: {changed}")
    return found


def _shown(row: Row | None) -> str:
    return "no row" if row is None else f"{mp.decode(row['_tuple'])} (lsn {row['_lsn']})"


def _problems(
    deployment: Deployment,
    played: Played,
    names: Iterable[str],
    excused: tuple[str, ...] = (),
    tables: Sequence[str] = ("_gaps", "_pending", "_quarantine"),
) -> list[str]:
    """Return what is wrong with a deployment's tables by themselves.

    Args:
        names: Of the spaces to look at.
        excused: What the reasons of refused spaces begin with that may be refused.
        tables: System tables that must be empty; `_quarantine` may name rows that are in their tables.
    """
    wanted, reasons = list(names), refused(deployment)
    found = [
        f"{name}: refused: {why}"
        for name, why in reasons.items()
        if not why.startswith((*excused, *(DISAGREEMENTS if len(played.truths) > 1 else ())))
    ]
    left_out = {table_name(name) for name in names_of(played)} - {table_name(name) for name in wanted}
    for table in tables:
        rows = [row for row in deployment.rows(table) if row.get("space") not in left_out]
        if table == "_quarantine":
            rows = [row for row in rows if not row["misfits"]]  # the others are in their tables
        found += [f"{table} has {row}" for row in rows[:3]]
    for name in wanted:
        if name in reasons:
            continue
        held = [truth.get(name, Held()) for truth in played.truths]
        tuples = [row["_tuple"] for row in deployment.table(name).values()]
        wrong = _other_than(held[0], tuples) if len(held) == 1 else _of_neither(held, tuples)
        found += [f"{name}: {text}" for text in wrong]
    return found


def refused(deployment: Deployment) -> dict[str, str]:
    """Return by name, of the space and of its table, why spaces are refused now."""
    newest: dict[Any, Row] = {}
    rows = deployment.rows("_schema", ["epoch", "replicaset_id", "space_id", "name", "table_name", "state"])
    for row in sorted(rows, key=lambda row: int(row["epoch"])):
        newest[row["replicaset_id"], row["space_id"]] = row
    found: dict[str, str] = {}
    for row in newest.values():
        if (reason := refusal_reason(row["state"])) is not None:
            found |= {row["name"]: reason, row["table_name"] or row["name"]: reason}
    return found


def _other_than(held: Held, table: list[bytes]) -> list[str]:
    lacking = [tuple_ for tuple_ in held.tuples if tuple_ not in set(table)]
    extra = [tuple_ for tuple_ in table if tuple_ not in set(held.tuples)]
    found = [f"lacks {mp.decode(one)}" for one in lacking] + [f"has {mp.decode(one)}" for one in extra]
    if not found and len(table) != len(held.tuples):
        found.append(f"has {len(table)} rows for {len(held.tuples)}")
    return found


def _of_neither(held: list[Held], table: list[bytes]) -> list[str]:
    """Compare a table with what two servers hold: who alone has a key has it there, too; else it is one of both."""
    keys = {one.parts for one in held if one.parts}
    if len({tuple(number for number, _ in parts) for parts in keys}) > 1:
        return []  # their rows do not meet
    parts = _parts(keys)
    own = [{key_of(mp.split_array(one), parts): one for one in side.tuples} for side in held]
    rows = {key_of(mp.split_array(one), parts): one for one in table}
    found = []
    for key in sorted({*own[0], *own[1], *rows}, key=repr):
        allowed = [side[key] for side in own if key in side]
        if rows.get(key) not in allowed and (allowed or key in rows):
            row = None if key not in rows else mp.decode(rows[key])
            found.append(f"has {row} where the servers have {[mp.decode(one) for one in allowed]}")
    return found


def _parts(keys: set[tuple[tuple[int, str], ...]]) -> tuple[Part, ...]:
    """Return one key in which the tuples of all of some keys compare."""
    wide = [part for parts in sorted(keys) for part in parts]
    numbers = list(dict.fromkeys(number for number, _ in wide))
    types = {number: {kind for other, kind in wide if other == number} for number in numbers}
    return tuple(Part(n - 1, types[n].pop() if len(types[n]) == 1 else "scalar", "") for n in numbers)
