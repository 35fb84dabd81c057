"""Real Tarantools, each by the rules of its version: hand-written cases, generated ones, and their logs.

2.6.0 itself crashes on some requests: an UPSERT that skips an operation with a path (gh-5135), an operation
inside a field that another one of the request has set (gh-8216). Those never reach a log; they are counted,
not compared.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

from schemas.errors import TupleError
from schemas.iproto import RequestType, type_name
from schemas.space import Field
from tests.live.server import find_servers
from tests.oracle import log, mp
from tests.soaked import examples
from tests.udfs.answers import TYPES, Answered, ask
from tests.udfs.cases import CASES, FIELDS, PRIMARY_KEY, Case, double, pack
from tests.udfs.generated import Generated, requests, steady, sums
from tests.udfs.operations.test_operations import SPACE as SPACE_OF
from tests.udfs.operations.test_operations_answers import TUPLE_FOUND, UNSUPPORTED, made, said
from tests.udfs.oracle import SPACE, TUPLE, UPDATE, UPSERT, Answer, Oracle, make_space
from tests.udfs.versions.folded import fold
from udfs.operations.tuple_format import TupleFormat, format_of
from udfs.operations.update_rules import rules_of
from udfs.versions.key_state import RowChange

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not find_servers(), reason="no tarantool on PATH: apt-get install tarantool"),
]

OLD = rules_of("2.6.0")
"""The rules of the server whose answers stand in the cases."""

TOO_LARGE = {110, 233}
"""`ER_MEMTX_MAX_TUPLE_SIZE` and what 3.x says of a result with too many fields: such a request is in no log."""

GAP_TOO_LARGE = 2
"""`ER_MEMORY_ISSUE`, as ours says of an operation behind a gap that no tuple can have."""

THOROUGH = settings(steady, max_examples=int(os.environ.get("OPERATIONS_EXAMPLES", examples(200))))


@pytest.fixture(scope="module", params=find_servers(), ids=lambda path: Path(path).name)
def oracle(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Oracle]:
    lua = make_space(FIELDS, list(TYPES.values()))
    with Oracle(tmp_path_factory.mktemp("oracle"), lua, request.param) as server:
        yield server


@pytest.fixture(scope="module")
def fmt(oracle: Oracle) -> TupleFormat:
    """Return the format of the server's space, with the rules of its version."""
    return format_of(SPACE_OF, rules_of(oracle.server.eval("return box.info.version")))


def expected(kind: int, key: int, case: Generated, fmt: TupleFormat) -> Answer:
    """Return our own result."""
    return made(Answered(kind, key, case, 0), fmt)


@pytest.mark.parametrize("kind", [UPDATE, UPSERT], ids=["UPDATE", "UPSERT"])
def test_the_server_agrees_on_the_hand_written_cases(oracle: Oracle, fmt: TupleFormat, kind: int) -> None:
    wrong = []
    for case in CASES:
        asked = _generated(case)
        if (
            kind == UPSERT
            and expected(UPDATE, 1, asked, fmt) != expected(UPSERT, 1, asked, fmt)
            and _has_path(asked)
        ):
            continue
        key, answer = oracle.ask(kind, asked.fields, asked.count, asked.operations, asked.index_base)
        if (PRIMARY_KEY if answer == TUPLE_FOUND else answer) != expected(kind, key, asked, fmt):
            wrong.append((case.name, answer, expected(kind, key, asked, fmt)))
        if fmt.rules == OLD and kind == UPDATE and isinstance(case.result, int) and answer != case.result:
            wrong.append((case.name, answer, case.result))
    assert wrong == []


def _generated(case: Case) -> Generated:
    fields = b"".join(map(pack, case.old))
    return Generated(fields, len(case.old), pack(case.operations), case.index_base)


def _has_path(case: Generated) -> bool:
    return any(
        isinstance(op, list) and len(op) > 1 and isinstance(op[1], str) for op in mp.decode(case.operations)
    )


@THOROUGH
@given(case=requests())
def test_the_server_agrees_on_generated_updates(oracle: Oracle, fmt: TupleFormat, case: Generated) -> None:
    _compare(oracle, fmt, UPDATE, case)


@THOROUGH
@given(case=requests(least=2, most=5))
def test_the_server_agrees_on_several_operations(oracle: Oracle, fmt: TupleFormat, case: Generated) -> None:
    _compare(oracle, fmt, UPDATE, case)


@THOROUGH
@given(case=requests())
def test_the_server_agrees_on_generated_upserts(oracle: Oracle, fmt: TupleFormat, case: Generated) -> None:
    _compare(oracle, fmt, UPSERT, case)


@THOROUGH
@given(case=sums())
def test_the_server_agrees_on_upserts_of_several_sums(
    oracle: Oracle, fmt: TupleFormat, case: Generated
) -> None:
    _compare(oracle, fmt, UPSERT, case)


def _compare(oracle: Oracle, fmt: TupleFormat, kind: int, case: Generated) -> None:
    one = ask(oracle, kind, case)
    assert oracle.crashes < 200
    assume(one is not None)
    if one is None or one.answer in TOO_LARGE:
        return
    ours = made(one, fmt)
    # The server builds a tuple with a huge gap at the end, and so finds another wrong operation first.
    if ours != GAP_TOO_LARGE or not isinstance(one.answer, int):
        assert ours in (said(one), UNSUPPORTED)


def test_the_log_implies_what_the_server_holds(oracle: Oracle, fmt: TupleFormat) -> None:
    held = {int(mp.decode(raw)[0]): raw for raw in oracle.held()}
    oracle.server.stop()
    rows: dict[int, list[RowChange]] = {}
    for path in sorted(Path(oracle.server.directory).glob("*.xlog")):
        for row in log.read_log(path):
            if row.number(0x10) == SPACE:
                change, key = _change(row)
                rows.setdefault(key, []).append(change)
    oracle.server.start()
    unknown = 0
    for key, changes in rows.items():
        try:
            version = fold(None, changes, [fmt])
        except TupleError as error:
            if "code" in error.fields:
                raise
            unknown += 1
            continue
        assert version is not None
        assert version.tuple == held[key]
    assert len(rows) > 200
    assert unknown < len(rows) / 50


def _change(row: log.Row) -> tuple[RowChange, int]:
    body = row.body
    key = mp.decode(body[0x20])[0] if 0x20 in body else mp.decode(body[TUPLE])[0]
    change = RowChange(
        type_name(row.type), body.get(TUPLE), body.get(0x28), row.number(0x15), row.replica_id, row.lsn, None
    )
    return change, int(key)


def test_operations_on_missing_tuples_are_in_the_log(oracle: Oracle, fmt: TupleFormat) -> None:
    oracle.server.eval(
        """local s = box.space.cases
        s:update(900001, {{'=', 2, 1}}) s:delete(900002)
        s:upsert({900003, 1}, {{'+', 2, 1}}) s:upsert({900003, 1}, {{'=', 1, 5}}) s:upsert({900003, 1}, {})"""
    )
    newest = max(Path(oracle.server.directory).glob("*.xlog"))
    tail = [row for row in log.read_log(newest) if row.number(0x10) == SPACE][-5:]
    kinds = [RequestType.UPDATE, RequestType.DELETE, *[RequestType.UPSERT] * 3]
    assert [row.type for row in tail] == kinds
    version = fold(None, [_change(row)[0] for row in tail[2:]], [fmt])
    assert version is not None
    assert version.tuple == pack([900003, 1])
    assert version.lsn == tail[4].lsn
    assert [fold(None, [_change(row)[0]], [fmt]) for row in tail[:2]] == [None, None]


def test_vinyl_keeps_an_upsert_that_does_not_fit_and_skips_one_that_changes_the_key(
    oracle: Oracle, fmt: TupleFormat
) -> None:
    held = oracle.server.eval(
        """local s = box.schema.space.create('v', {id = 600, engine = 'vinyl', format = {
            {'id', 'unsigned'}, {'n', 'unsigned', is_nullable = true}}})
        s:create_index('pk')
        s:replace{1, 5} s:upsert({1}, {{'-', 2, 9}}) s:upsert({1}, {{'+', 1, 1}}) s:upsert({1}, {{'=', 3, 'x'}})
        s:upsert({1}, {{'+', 3, 1}, {'+', 2, 1}})
        local tuple = require('msgpack').encode(s:get(1)):hex()
        s:drop()
        return tuple"""
    )
    newest = max(Path(oracle.server.directory).glob("*.xlog"))
    rows = [row for row in log.read_log(newest) if row.number(0x10) == 600]
    assert {row.number(0x15, -1) for row in rows[1:]} == {-1}
    fields = (Field("id", "unsigned"), Field("n", "unsigned", is_nullable=True))
    formats = [format_of(replace(SPACE_OF, engine="vinyl", fields=fields), fmt.rules)]
    changes = [_change(row)[0] for row in rows]
    if fmt.rules.checks_upserts:
        assert held == pack([1, 6, "x"]).hex()
        version = fold(None, changes, formats)
        assert version is not None
        assert version.tuple == pack([1, 6, "x"])
        return
    version = fold(None, changes, formats)
    assert version is not None
    assert version.tuple is not None
    assert version.tuple.hex() == held == pack([1, -3, "x"]).hex()
    assert version.lsn == rows[-1].lsn


def test_the_server_uses_the_type_of_the_next_element(oracle: Oracle, fmt: TupleFormat) -> None:
    held = oracle.server.eval(
        """local s = box.schema.space.create('q', {id = 601, format = {{'id', 'unsigned'}, {'m', 'array'}}})
        s:create_index('pk')
        s:create_index('d', {unique = false, parts = {{field = 2, type = 'double', path = '[2]'}}})
        s:replace{1, {1.5, 1.5}} s:update(1, {{'+', 'm[1]', 1}})
        local tuples = {require('msgpack').encode(s:get(1)):hex(), pcall(s.update, s, 1, {{'+', 'm[2]', 1}})}
        s:drop()
        return tuples[1], tuples[2]"""
    )
    assert held == [pack([1, [double(2.5), 1.5]]).hex(), fmt.rules.double_accepts_integers]


@pytest.mark.parametrize("engine", ["memtx", "vinyl"])
def test_an_update_of_a_missing_key_is_in_the_log(oracle: Oracle, engine: str) -> None:
    """So an UPDATE of a key that a table lacks is no proof that the table has lost a row."""
    oracle.server.eval(
        """local s = box.schema.space.create('m', {id = 602, engine = ...})
        s:create_index('pk')
        s:update(1, {{'=', 2, 5}}) s:delete(2)
        s:drop()""",
        engine,
    )
    newest = max(Path(oracle.server.directory).glob("*.xlog"))
    kinds = [row.type for row in log.read_log(newest) if row.number(0x10) == 602]
    assert kinds[-2:] == [log.UPDATE, log.DELETE]
