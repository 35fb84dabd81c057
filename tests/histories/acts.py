"""Histories as plain data, and their generator: what several servers shall do, from one seed.

An act is a list that JSON can hold: a kind and its arguments. Which field or value a number in it means is decided by
`acts.lua` when the act is done, by what the space is then, so an act keeps its sense when others are taken away. The
server may refuse any act: it then has no effect. Not here: which acts have been refused (`tests.histories.play`).
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self

NAMES = ("a", "b", "c", "X-y")
"""Names of spaces; one of them is no name of a table."""

PASSING = "tmp"
"""The name that a space has while two names are swapped, or a space is rebuilt."""

KEYS = 9
FIELDS = ("id", "name", "n", "k")
MORE_FIELDS = ("m0", "m1")
NEW_FIELDS = ("v", "w", "x", "y")
OWN_NAME = "+"
"""Instead of a field's new name: one that tells its type."""

KEY_TYPES = ("unsigned", "string", "integer", "number", "scalar", "double", "decimal")
HASHED_TYPES = ("unsigned", "string", "integer", "double")
"""Types of a HASH index's part: decimals are refused there."""
TYPES = (*KEY_TYPES, "any", "boolean", "sized", "uuid", "map", "array")
SIZED = ("decimal32", "decimal64", "decimal128", "decimal256")
"""What `sized` stands for; servers before 3.9 refuse them."""

ROW_KINDS = {"insert": 5, "replace": 8, "update": 6, "upsert": 6, "delete": 5}

RANGES = 0.15
"""How often a range of keys is deleted, a step; servers before 3.9 refuse it."""

Act = list[Any]
"""A kind and its arguments. Those of a group are how it ends, and a list of acts."""

GROUPS = ("transaction", "together")
"""A transaction ends with `commit`, `rollback` or `unconfirmed`. Acts `together` are done in a fiber each."""


def acts_of(act: Act) -> list[Act]:
    """Return the acts of a group, or the act itself."""
    return list(act[2]) if act[0] in GROUPS else [act]


SERVER_KINDS = ("checkpoint", "restart", "kill", "tear", "lose", "read")
"""Kinds of acts that name no space. `tear` leaves a part of a block at the end of the last log, `lose` loses this log:
the server writes another one of the same name.
"""

TWO_NAMES = ("rename", "create_like", "copy")
"""Kinds of acts that name two spaces; all others name one."""


def _count_names(act: Act) -> int:
    return 0 if act[0] in SERVER_KINDS else 2 if act[0] in TWO_NAMES else 1


def names_in(act: Act) -> set[str]:
    """Return the names of spaces in an act, or in those of a group."""
    return {name for one in acts_of(act) for name in one[1 : 1 + _count_names(one)]}


@dataclass(frozen=True)
class Step:
    """What one server does at once: one act, which may be a group."""

    side: int
    act: Act

    @property
    def size(self) -> int:
        return len(acts_of(self.act))


@dataclass(frozen=True)
class History:
    """What servers do, one step after another."""

    seed: int
    """Of the cuts that belong to it."""
    sides: int
    """How many servers it needs."""
    wal_max_size: int
    """After so many bytes a server begins another log; 0: its default."""
    is_sync: bool
    """Whether it has synchronous spaces."""
    steps: tuple[Step, ...]
    count: int = 1
    """How many histories it has been made of, each with spaces of its own (`merged`)."""

    def with_steps(self, steps: Sequence[Step]) -> Self:
        return replace(self, steps=tuple(steps))

    @property
    def size(self) -> int:
        """How many acts it has, those of transactions included."""
        return sum(step.size for step in self.steps)

    @property
    def is_plain(self) -> bool:
        """Whether it creates neither vinyl spaces nor local ones, so that snapshots and spools have all its rows."""
        acts = [act for step in self.steps for act in acts_of(step.act)]
        return not any({"engine", "is_local"} & set(act[2]) for act in acts if act[0] == "create")

    def names(self) -> set[str]:
        return {name for step in self.steps for name in names_in(step.act)}

    def only(self, number: int) -> Self:
        """Return one of the histories that it has been made of, with what is done to the servers themselves."""
        steps = [step for step in self.steps if all(number_of(name) == number for name in names_in(step.act))]
        return self.with_steps(steps)

    def to_json(self) -> str:
        """Return the history as JSON, a line each step."""
        names = ("seed", "sides", "wal_max_size", "is_sync", "count")
        head = json.dumps({name: getattr(self, name) for name in names})
        lines = ",\n ".join(json.dumps([step.side, step.act], ensure_ascii=False) for step in self.steps)
        return f'{head[:-1]}, "steps": [\n {lines}]}}'


def history_from(text: str) -> History:
    data = json.loads(text)
    steps = tuple(Step(side, act) for side, act in data["steps"])
    return History(**{**data, "steps": steps})


def history(seed: int, sides: int = 1, length: int = 30) -> History:
    """Return the history of a seed.

    Args:
        sides: 1, or 2 for servers that are replicasets of their own with spaces of the same names. Nearly always these
            keep to definitions that one table can have; else they are refused, and show little.
        length: About how many steps each server does.
    """
    dice = Random(f"{seed} {sides} {length}")
    shape = _shape(dice) if sides > 1 and dice.random() < 0.9 else None
    is_sync = dice.random() < 0.15
    writers = [_Writer(Random(dice.random()), shape, is_sync) for _ in range(sides)]
    begun = [list(writers[0].begin())] * sides
    for writer in writers:
        writer.used = set(writers[0].used)
    steps = [Step(side, act) for side, acts in enumerate(begun) for act in acts]
    for _ in range(sides * length):
        side = dice.randrange(sides)
        steps += [Step(side, act) for act in writers[side].step()]
    return History(seed, sides, dice.choice([0, 0, 1500]), is_sync, tuple(steps))


def merged(histories: Sequence[History]) -> History:
    """Return a history of several ones, whose steps are mixed and whose spaces have their number in their names.

    Args:
        histories: As many servers each, and with or without synchronous spaces all of them.
    """
    first = histories[0]
    dice = Random(" ".join(str(one.seed) for one in histories))
    rests = {
        number: [
            Step(step.side, _numbered(step.act, number))
            for step in reversed(one.steps)
            if step.act[0] not in SERVER_KINDS or dice.random() * len(histories) < LONE_HISTORIES
        ]
        for number, one in enumerate(histories, start=1)
    }
    steps = []
    while rests:
        (number,) = dice.choices(list(rests), [len(rest) for rest in rests.values()])
        steps.append(rests[number].pop())
        if not rests[number]:
            del rests[number]
    wal_max_size = max(one.wal_max_size for one in histories[:2]) * len(histories)
    return History(first.seed, first.sides, wal_max_size, first.is_sync, tuple(steps), len(histories))


LONE_HISTORIES = 8
"""What is done to servers themselves, where histories are merged, is as often done as in so many."""

NUMBER = re.compile(r"\d*$")
IDS = 10
"""How many ids of spaces each of the histories has that are merged."""


def number_of(name: str) -> int | None:
    """Return the number of the merged history whose space has a name."""
    number = NUMBER.search(name)
    return int(number[0]) if number and number[0] else None


def _numbered(act: Act, number: int) -> Act:
    if act[0] in GROUPS:
        return [*act[:2], [_numbered(one, number) for one in act[2]]]
    end = 1 + _count_names(act)
    renamed = [act[0], *(f"{name}{number}" for name in act[1:end]), *act[end:]]
    if act[0] == "create":
        options = dict(act[2])
        if "id" in options or options.get("by_replace"):
            options["id"] = 3000 + IDS * number + options.get("id", 604 + len(act[1])) - 600
        renamed[2] = options
    return renamed


Fields = list[dict[str, Any]]
Parts = list[list[Any]]


@dataclass(frozen=True)
class _Shape:
    """What the definitions of several replicasets have in common, that one table can hold their rows."""

    parts: Parts
    other_parts: Parts
    """The key that every space begins with, and one that it may get."""
    fields: Fields | None
    """The first fields of every format; None: no space has one."""
    types: dict[str, str]
    """The type of each further field, by its name."""


def _shape(dice: Random) -> _Shape:
    parts, fields = _key(dice, dice.random() < 0.8)
    if fields is None:
        other = parts[::-1] if len(parts) > 1 else [[parts[0][0] % 2 + 1, dice.choice(KEY_TYPES)]]
    else:
        able = [[index, one["type"]] for index, one in enumerate(fields, start=1) if one["type"] in KEY_TYPES]
        other = dice.sample(able, dice.randint(1, min(2, len(able)))) if able else parts[::-1]
    return _Shape(parts, other, fields, {name: _type_of(dice) for name in (*MORE_FIELDS, *NEW_FIELDS)})


def _key(dice: Random, has_format: bool) -> tuple[Parts, Fields | None]:
    """Return parts of a primary key, and the first fields of a format for it."""
    count = dice.choice([1, 1, 1, 2])
    width = dice.randint(count, 4)
    types = [_type_of(dice) for _ in range(width)]
    indices = dice.sample(range(width), count) if dice.random() < 0.3 else list(range(count))
    for index in indices:
        types[index] = dice.choice(KEY_TYPES)
    parts = [[index + 1, types[index]] for index in indices]
    if not has_format:
        return parts, None
    if dice.random() < 0.15:  # a part that is narrower than its field
        types[indices[0]] = {"unsigned": "integer", "integer": "number"}.get(
            types[indices[0]], types[indices[0]]
        )
    names = dice.sample(FIELDS, width)
    return parts, [_field_of(name, kind) for name, kind in zip(names, types, strict=True)]


def _type_of(dice: Random) -> str:
    kind = dice.choice(TYPES)
    return dice.choice(SIZED) if kind == "sized" else kind


def _field_of(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": kind, **({"scale": 2} if kind in SIZED else {})}


class _Writer:
    """Writes the steps of one server; `used` holds the names that are likely in use."""

    def __init__(self, dice: Random, shape: _Shape | None, is_sync: bool) -> None:
        self._dice, self._shape, self._is_sync = dice, shape, is_sync
        # Dice of their own: the other acts of a seed are what they were before there were ranges.
        self._ranges = Random(repr(dice.getstate()[1]))
        self.used: set[str] = set()
        self._kinds: list[tuple[int, Callable[[], list[Act]]]] = [
            (60, self._rows),
            (7, self._create),
            (4, lambda: [["truncate", self._name()]]),
            (4, self._drop),
            (5, self._rename),
            (3, self._swap),
            (4, self._rebuild),
            (9, self._format),
            (4, self._alter_key),
            (3, self._new_key),
            (2, self._index),
            (1, lambda: [["enlarge", self._name(), self._number()]]),
        ]

    def begin(self) -> Iterator[Act]:
        """Yield the first steps: some spaces with rows."""
        for name in self._dice.sample(NAMES, self._dice.randint(1, 3)):
            self.used.add(name)
            yield self._created(name)
            for _ in range(self._dice.randint(0, 3)):
                yield self._row("replace", name)

    def step(self) -> list[Act]:
        steps = self._step()
        if self._ranges.random() < RANGES and self.used:
            act = self._delete_range()
            if steps[0][0] in GROUPS:
                inner = steps[0][2]
                inner.insert(self._ranges.randrange(len(inner) + 1), act)
            else:
                steps.append(act)
        return steps

    def _delete_range(self) -> Act:
        dice = self._ranges
        name, ends = dice.choice(sorted(self.used)), (dice.randrange(KEYS), dice.randrange(KEYS))
        return ["delete_range", name, *ends, dice.randrange(1_000_000)]

    def _step(self) -> list[Act]:
        chance = self._dice.random()
        for limit, kind in (
            *((0.04, "checkpoint"), (0.06, "restart"), (0.07, "kill")),
            *((0.09, "tear"), (0.095, "lose"), (0.13, "read")),
        ):
            if chance < limit:
                return [[kind]]
        if chance < 0.52:
            acts = [act for _ in range(self._dice.randint(1, 5)) for act in self._acts()]
            others = ["rollback", "unconfirmed"] if self._is_sync else ["rollback"]
            ending = self._dice.choice(others) if self._dice.random() < 0.05 * len(others) else "commit"
            return [["transaction", ending, acts]]
        if chance < 0.58:
            return [["together", "", [act for _ in range(self._dice.randint(2, 4)) for act in self._acts()]]]
        return self._acts()

    def _acts(self) -> list[Act]:
        weights = [weight for weight, _ in self._kinds]
        return self._dice.choices(self._kinds, weights)[0][1]()

    def _name(self) -> str:
        """Return a name that is likely in use, or now and then any."""
        if self.used and self._dice.random() < 0.93:
            return self._dice.choice(sorted(self.used))
        return self._dice.choice(NAMES)

    def _number(self) -> int:
        return self._dice.randrange(1_000_000)

    def _row(self, kind: str, name: str) -> Act:
        return [kind, name, self._dice.randrange(KEYS), self._number()]

    def _rows(self) -> list[Act]:
        name, count = self._name(), self._dice.choice([1, 1, 1, 2, 4])
        kinds = self._dice.choices(list(ROW_KINDS), list(ROW_KINDS.values()), k=count)
        return [self._row(kind, name) for kind in kinds]

    def _created(self, name: str) -> Act:
        dice, shape = self._dice, self._shape
        parts, fields = _key(dice, dice.random() < 0.75)
        if shape is not None:
            parts, fields = shape.parts, shape.fields
        options: dict[str, Any] = {}
        if dice.random() < 0.5:
            options["id"] = 600 + dice.randrange(4)
        if dice.random() < 0.12:
            options["engine"] = "vinyl"
        elif dice.random() < 0.04:
            options[dice.choice(["temporary", "is_local"])] = True
        elif self._is_sync and dice.random() < 0.4:
            options["is_sync"] = True
        if fields is not None:
            more = [self._field(f"m{i}") for i in range(dice.choice([0, 0, 1, 2]))]
            options["format"] = [*fields, *more]
        if fields is not None and options.get("engine") == "vinyl" and dice.random() < 0.6:
            options["field_count"] = len(options["format"])
        if dice.random() < 0.15:
            options["by_replace"] = True
        index: dict[str, Any] = {"parts": parts}
        is_hashable = len(parts) == 1 and parts[0][1] in HASHED_TYPES and "engine" not in options
        if is_hashable and dice.random() < 0.1:
            index["type"] = "hash"
        return ["create", name, options, index if dice.random() < 0.95 else None]

    def _field(self, name: str) -> dict[str, Any]:
        nullable = {"is_nullable": True} if self._dice.random() < 0.5 else {}
        return {**_field_of(name, self._type(name)), **nullable}

    def _type(self, name: str) -> str:
        return _type_of(self._dice) if self._shape is None else self._shape.types[name]

    def _create(self) -> list[Act]:
        free = [name for name in NAMES if name not in self.used]
        name = self._dice.choice(free) if free and self._dice.random() < 0.9 else self._dice.choice(NAMES)
        self.used.add(name)
        rows = [self._row("replace", name) for _ in range(self._dice.randint(0, 3))]
        return [self._created(name), *rows]

    def _drop(self) -> list[Act]:
        name = self._name()
        self.used.discard(name)
        if self._dice.random() < 0.5:  # the same name again
            self.used.add(name)
            return [["drop", name], self._created(name), self._row("replace", name)]
        return [["drop", name]]

    def _rename(self) -> list[Act]:
        name, new = self._name(), self._dice.choice(NAMES)
        self.used.discard(name)
        self.used.add(new)
        return [["rename", name, new]]

    def _swap(self) -> list[Act]:
        one, other = self._name(), self._name()
        return [["rename", one, PASSING], ["rename", other, one], ["rename", PASSING, other]]

    def _rebuild(self) -> list[Act]:
        name = self._name()
        made = self._created(PASSING) if self._dice.random() < 0.3 else ["create_like", PASSING, name]
        filled = [["copy", name, PASSING]] if self._dice.random() < 0.8 else []
        filled += [self._row("replace", PASSING) for _ in range(self._dice.randint(0, 2))]
        return [made, *filled, ["drop", name], ["rename", PASSING, name]]

    def _format(self) -> list[Act]:
        dice, name = self._dice, self._name()
        if dice.random() < 0.1:
            return [["formalize", name]]
        changes = {"add": 5, "nullable": 3, "rename": 4, "widen": 5, "cut": 2, "strict": 1, "forget": 1}
        if self._shape is None:
            changes |= {"retype": 2, "exchange": 1}
        change = dice.choices(list(changes), list(changes.values()))[0]
        new = dice.choice(NEW_FIELDS)
        if change == "rename":
            new = dice.choice((*NEW_FIELDS, *FIELDS)) if self._shape is None else OWN_NAME
        return [["format", name, change, self._number(), new, self._type(new) if change == "add" else None]]

    def _alter_key(self) -> list[Act]:
        dice, name, chance = self._dice, self._name(), self._dice.random()
        if chance < 0.2:
            return [["widen_key", name]]
        if chance < 0.25:
            return [["rename_key", name, dice.choice(["pk", "first"])]]
        if self._shape is not None:
            return [["alter_key_to", name, dice.choice([self._shape.parts, self._shape.other_parts])]]
        return [["alter_key", name, self._number()]]

    def _new_key(self) -> list[Act]:
        name = self._name()
        made = ["create_key", name, self._number(), self._shape.parts if self._shape is not None else None]
        if self._dice.random() < 0.15:
            return [made]
        if self._dice.random() < 0.15:
            return [["drop_key", name]]
        return [["drop_key", name], made, self._row("replace", name)]

    def _index(self) -> list[Act]:
        kind = self._dice.choice(["create_secondary", "drop_secondary"])
        return [[kind, self._name(), self._number()]]
