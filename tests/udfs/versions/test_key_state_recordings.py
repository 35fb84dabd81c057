"""The fold of whole logs of real servers, 2.6.0 and 3.8.0, against the tuples of those servers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from schemas.iproto import SYSTEM_SPACE_ID_MAX, SystemSpace, type_name
from schemas.space import Space, space_of
from tests import truth
from tests.oracle import log, mp
from tests.oracle.fold import FoldedSpace, fold_directory
from tests.oracle.fold import Version as OracleVersion
from tests.oracle.keys import Part, key_of, searched
from tests.truth import Recording
from tests.udfs.versions.folded import fold
from udfs.operations.tuple_format import TupleFormat, format_of
from udfs.operations.update_rules import Rules, rules_of
from udfs.versions.key_state import Fold, RowChange, Version

SPACE_ID, INDEX_BASE, KEY, TUPLE, OPERATIONS = 0x10, 0x15, 0x20, 0x21, 0x28
CASES = [(recording, node) for recording in truth.recordings() for node in recording.nodes]


SYSTEM_KEYS = {SystemSpace.SPACE: 1, SystemSpace.INDEX: 2}
"""How many of the first fields are the key of the spaces that define spaces."""

Key = tuple[object, ...]


@dataclass
class Replay:
    """The definitions of a member's spaces as they change, and the rows of each key."""

    rules: Rules
    formats: list[TupleFormat] = field(default_factory=list)
    defined: dict[int, dict[Key, Fold]] = field(default_factory=lambda: {one: {} for one in SYSTEM_KEYS})
    spaces: dict[int, tuple[Space, int]] = field(default_factory=dict)
    changes: dict[int, dict[Key, list[RowChange]]] = field(default_factory=dict)

    def apply(self, row: log.Row, is_snapshot: bool) -> None:
        """Apply one row: a definition, a truncation, or a change of a key."""
        space_id = row.number(SPACE_ID)
        if space_id in SYSTEM_KEYS:
            self._define(row, space_id)
        elif space_id == SystemSpace.TRUNCATE:
            self.changes.pop(mp.decode(row.body.get(TUPLE) or row.body[KEY])[0], None)
        elif space_id in self.spaces and space_id > SYSTEM_SPACE_ID_MAX:
            space, layout = self.spaces[space_id]
            parts = tuple(Part(one.field, one.type, one.path) for one in space.primary_key)
            body = row.body
            key = searched(body[KEY], parts) if KEY in body else key_of(mp.split_array(body[TUPLE]), parts)
            change = _change(row, layout)
            # Rows of a snapshot have neither an origin nor a usable time.
            change = change._replace(global_id=0, lsn=0, timestamp=None) if is_snapshot else change
            self.changes.setdefault(space_id, {}).setdefault(key, []).append(change)

    def _define(self, row: log.Row, system: int) -> None:
        key = tuple(mp.decode(row.body.get(KEY) or row.body[TUPLE])[: SYSTEM_KEYS[SystemSpace(system)]])
        states = self.defined[system]
        if key not in states:
            states[key] = Fold([TupleFormat(rules=self.rules)])
        states[key].apply(_change(row, 0))
        space_id = key[0]
        assert isinstance(space_id, int)
        space, index = (
            self._definition(SystemSpace.SPACE, space_id),
            self._definition(SystemSpace.INDEX, space_id, 0),
        )
        if space is None or index is None:
            self.spaces.pop(space_id, None)
            self.changes.pop(space_id, None)
        else:
            self.formats.append(format_of(space_of(space, index), self.rules))
            self.spaces[space_id] = space_of(space, index), len(self.formats) - 1

    def _definition(self, system: int, *key: int) -> list[object] | None:
        state = self.defined[system].get(key)
        found = None if state is None else state.version.tuple
        return None if found is None else list(mp.decode(found))


def _change(row: log.Row, layout: int) -> RowChange:
    time = round(row.timestamp * 1_000_000)
    data, operations = row.body.get(TUPLE), row.body.get(OPERATIONS)
    base = row.number(INDEX_BASE) if INDEX_BASE in row.body else None
    return RowChange(type_name(row.type), data, operations, base, row.replica_id, row.lsn, time, layout)


def _rows(recording: Recording, node: str) -> Iterator[tuple[log.Row, bool]]:
    yield from ((row, True) for row in log.read_log(recording.snapshots(node)[0]))
    covered = log.vclock(recording.snapshots(node)[0])
    done = list(log.transactions(row for path in recording.logs(node) for row in log.read_log(path)))
    lost = log.rolled_back(done)
    for position, transaction in enumerate(done):
        rows: Iterable[log.Row] = () if position in lost else transaction.rows
        yield from ((row, False) for row in rows if row.lsn > covered.get(row.replica_id, 0))


def _plain(version: Version | None) -> tuple[object, ...]:
    if version is None:
        return ()
    data, origin, lsn, timestamp, created, _ = version
    return data, origin, lsn, timestamp or 0, 0 if data is None else created or 0


def _under(space: FoldedSpace, key: Key, version: Version | None) -> OracleVersion | None:
    """Return the oracle's version of a key, which is under another key if the primary key was changed."""
    found = space.versions.get(key)
    if found is None and version is not None and version.tuple is not None:
        return space.versions.get(key_of(mp.split_array(version.tuple), space.key))
    return found


def _second(version: OracleVersion | None) -> tuple[object, ...]:
    if version is None:
        return ()
    created = 0 if version.tuple is None else version.created
    return version.tuple, version.replica_id, version.lsn, version.timestamp, created


@pytest.mark.parametrize(
    ("recording", "node"), CASES, ids=[f"{one.directory(node)}"[-14:] for one, node in CASES]
)
def test_the_fold_of_a_log_is_what_its_server_holds(recording: Recording, node: str) -> None:
    replay = Replay(rules_of(log.meta(recording.logs(node)[0])["Version"]))
    for row, is_snapshot in _rows(recording, node):
        replay.apply(row, is_snapshot)
    opinion = fold_directory(recording.directory(node)).by_name()
    compared = operated = 0
    for space_id, (space, _) in replay.spaces.items():
        if space_id <= SYSTEM_SPACE_ID_MAX or space.is_temporary or space.name not in recording.spaces(node):
            continue
        if space.engine == "vinyl" and node == "anon":
            continue  # Its tuples are in `.run` files: it joined when vinyl had dumped them.
        held = []
        for key, changes in replay.changes.get(space_id, {}).items():
            version = fold(None, changes, replay.formats)
            held += [version.tuple] if version is not None and version.tuple is not None else []
            assert _plain(version) == _second(_under(opinion[space.name], key, version))
            operated += sum(change.kind in ("UPDATE", "UPSERT") for change in changes)
        assert sorted(held) == sorted(recording.tuples(node, space.name)), space.name
        compared += len(held)
    assert compared > 100
    assert operated > 100
