"""Each extension point takes at most one new module and a line in one table: added to a copy of the tree, and used.

CONTRIBUTING.md, "Add", says the same in words.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from tests import house

ROOMS = ("config", "jobs", "observe", "pipeline", "schemas", "sources", "udfs", "warehouse")


@dataclass(frozen=True)
class Extension:
    """A member of an extension point."""

    module: str
    """The path of its module; empty if its line in the table is all."""
    source: str
    """The module's text."""
    table: str
    """The path of the table; empty if there is none."""
    lines: tuple[tuple[str, str], ...]
    """What stands in the table, and what it becomes: its line, and an import where it needs one."""
    program: str
    """Uses the member, and fails if it does not work."""
    names: tuple[str, str, str] = ("", "", "")
    """Where the member has its number: the path of the enum, what stands there, and what it becomes."""


POLICY = Extension(
    "udfs/before_replace/policies/shortest.py",
    '''
    """`shortest`: the version with the fewest bytes wins."""

    import pyarrow.compute as pc

    from udfs.before_replace.policy import PolicyKind


    def rank(versions, options, formats):
        return -pc.binary_length(versions.tuples).to_numpy(zero_copy_only=False)


    POLICY = PolicyKind(label=lambda _: "shortest", rank=rank)
    ''',
    "schemas/policies.py",
    (("    for one in (\n", '    for one in (\n        PolicyEntry("shortest", "shortest"),\n'),),
    """
    import msgpack
    from config.policies import Policies
    from tests.pipeline.resolve.chosen import winner_of
    from udfs.before_replace.policy import Candidate

    def version(replicaset, note, at):
        return Candidate(msgpack.packb([1, 2, 3, note]), 0, replicaset, 1, at)

    versions = [version("a", "brief", 1), version("b", "a long text", 2)]
    shortest = Policies.model_validate({"spaces": {"accounts": {"policy": "shortest"}}}).of("accounts")
    assert winner_of(versions, shortest) is versions[0]
    assert winner_of(versions, Policies().of("accounts")) is versions[1]
    """,
)

OPERATION = Extension(
    "udfs/operations/scalars/product.py",
    '''
    """`*` multiplies."""

    from udfs.operations.arithmetic import AS_INTEGER, Number, ScalarOperation, argument_type_error
    from udfs.operations.scalars.addition import ADDITION


    def multiply(code, field, old, argument, rules):
        if not isinstance(old, Number):
            raise argument_type_error(code, field, "a number")
        return Number(AS_INTEGER, old.value * argument.value)


    PRODUCT = ScalarOperation(3, ADDITION.read, multiply)
    ''',
    "udfs/operations/scalars/__init__.py",
    (
        ("import addition, bits, splice\n", "import addition, bits, product, splice\n"),
        ('    ":": splice.SPLICE,\n', '    ":": splice.SPLICE,\n    "*": product.PRODUCT,\n'),
    ),
    """
    import msgpack
    from udfs.operations.operations import apply_update
    from udfs.operations.tuple_format import TupleFormat

    old = msgpack.packb([1, 6, {"n": [2]}])
    new = apply_update(old, msgpack.packb([["*", 2, 7], ["*", "[3].n[1]", 5]]), 1, TupleFormat({}))
    assert msgpack.unpackb(new) == [1, 42, {"n": [10]}], new
    """,
)

FIELD_TYPE = Extension(
    "",
    "",
    "schemas/field_types.py",
    (
        (
            "    for one in (\n",
            "    for one in (\n"
            '        FieldType("ulid", ColumnStorage.UUID, (ValueClass.UUID,), ("uuid", SCALAR, ANY)),\n',
        ),
    ),
    """
    from uuid import UUID

    import pyarrow as pa
    from msgpack import ExtType, packb
    from schemas.layout import table_layout, union_fields
    from schemas.space import Field, KeyPart, Space
    from udfs.keys.key_patterns import key_pattern
    from udfs.keys.keys import canonical_keys
    from udfs.operations.operations import apply_upsert
    from udfs.operations.tuple_format import format_of
    from udfs.operations.update_rules import rules_of
    from udfs.tuples.tuples import decode_tuples

    def space(kind):
        return Space(512, 1, "s", "vinyl", (Field("link", kind),), (KeyPart(0, kind),))

    one = UUID(int=7)
    good, bad = packb([ExtType(2, one.bytes)]), packb(["text"])
    tuples = pa.array([good, bad])
    right, wrong = decode_tuples(tuples, table_layout([space("ulid")])).to_pylist()
    assert right["link"] == str(one) and wrong["link"] is None, (right, wrong)
    assert union_fields([space("ulid"), space("uuid")]) == (Field("link", "uuid", False),)
    keys = canonical_keys(tuples, [space("ulid")]).to_pylist()
    assert keys[0]["error"] is None and "ulid expected" in keys[1]["error"], keys
    assert one.hex in key_pattern([str(one)], [KeyPart(0, "ulid")])
    value = Space(512, 1, "s", "vinyl", (Field("n", "unsigned"), Field("link", "ulid")), (KeyPart(0, "unsigned"),))
    old, set_text = packb([1, ExtType(2, one.bytes)]), packb([["=", 2, "text"]])
    after = apply_upsert(old, old, set_text, 1, format_of(value, rules_of("3.9.0")))
    assert after == old, "vinyl keeps a tuple whose UPSERT does not fit the format"
    """,
)

CHECK = Extension(
    "observe/validation/waiting.py",
    '''
    """No row waits for longer than a batch."""

    from observe.validation.check import Check


    def waiting_checks(open_table, state, facts):
        import great_expectations.expectations as gxe

        none = gxe.ExpectTableRowCountToEqual(value=0, description="no row waits")
        yield Check("_pending", open_table.readable("_pending"), (none,))
    ''',
    "observe/validation/checks.py",
    (
        (
            "from pipeline.state import State\n",
            "from observe.validation.waiting import waiting_checks\nfrom pipeline.state import State\n",
        ),
        ("    origins_checks,\n)", "    origins_checks,\n    waiting_checks,\n)"),
    ),
    """
    from types import SimpleNamespace
    import pyarrow as pa
    from observe.validation.check import CheckFacts
    from observe.validation.checks import CHECKS
    from observe.validation.validator import Validator
    from pipeline.state import State

    rows = pa.table({"reason": ["space 600 is not known"]})
    tables = SimpleNamespace(readable=lambda table: rows)
    (check,) = CHECKS[-1](tables, State(), CheckFacts((), ()))
    (result,) = Validator().run_check(check)
    assert not result.holds and result.expectation == "no row waits", result
    """,
)

SOURCE = Extension(
    "sources/csv_files.py",
    '''
    """Writes the rows of a CSV file as the log of an instance: any directory of logs is a source."""

    import csv

    import msgpack

    from schemas.iproto import RequestType, SystemSpace
    from sources.xlog.format.encode import encode_row
    from tests.bodies import encode_body
    from sources.xlog.format.meta import Meta
    from sources.xlog.format.writer import XlogWriter


    def write_log(file, directory, uuid):
        columns, *lines = csv.reader(file.open())
        space = [600, 1, file.stem, "memtx", 0, {}, [{"name": one, "type": "string"} for one in columns]]
        index = [600, 0, "i", "tree", {"unique": True}, [{"field": 0, "type": "string"}]]
        tuples = [
            (SystemSpace.CLUSTER, [1, uuid]), (SystemSpace.SPACE, space), (SystemSpace.INDEX, index),
            *((600, line) for line in lines),
        ]
        meta = Meta("XLOG", "0.13", uuid, {}, None, {"Version": "2.11.0"})
        with XlogWriter(directory / f"{0:020d}.xlog", meta) as log:
            for lsn, (space_id, fields) in enumerate(tuples, start=1):
                body = encode_body(space_id=space_id, tuple_=msgpack.packb(fields))
                log.write([encode_row(RequestType.INSERT, body, replica_id=1, lsn=lsn, timestamp=1.7e9)])
    ''',
    "",
    (),
    """
    import msgpack
    import tempfile
    from pathlib import Path
    from sources.csv_files import write_log
    from tests.pipeline.deployment import Deployment

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "towns.csv").write_text("name,country\\nOslo,NO\\nBern,CH\\n")
        (folder / "logs").mkdir()
        write_log(folder / "towns.csv", folder / "logs", "a" * 8 + "-0000-4000-8000-" + "a" * 12)
        uuid = "b" * 8 + "-0000-4000-8000-" + "b" * 12
        deployment = Deployment(folder, {"csv": folder / "logs"}, {"csv": uuid})
        assert deployment.run() == 1
        found = sorted(map(msgpack.unpackb, deployment.tuples("towns")))
        assert found == [["Bern", "CH"], ["Oslo", "NO"]], found
    """,
)

COMMAND = Extension(
    "jobs/commands/hello.py",
    '''
    """The command `aggregator hello`."""

    import click

    from jobs.runtime.command_line import command
    from jobs.runtime.output import say


    @command("hello", "aggregator hello world")
    @click.argument("name")
    def hello(name):
        """Greet somebody."""
        say(f"hello {name}")
    ''',
    "jobs/main.py",
    (('    "Use": (', '    "Use": ("hello", '),),
    """
    from jobs.main import main

    assert main(None, ["hello", "world"]) == 0
    """,
)

METRIC = Extension(
    "",
    "",
    "observe/metrics/stream_metrics.py",
    (
        (
            '        self._open_gaps = gauge("gaps_open", "Missing lsn ranges and divergences")\n',
            '        self._open_gaps = gauge("gaps_open", "Missing lsn ranges and divergences")\n'
            '        self._started = gauge("started_timestamp_seconds", "When the job started")\n',
        ),
    ),
    """
    from observe.metrics.stream_metrics import StreamMetrics

    names = {one.name for one in StreamMetrics(None, None).collect()}
    assert "aggregator_started_timestamp_seconds" in names
    """,
)

TABLE = Extension(
    "",
    "",
    "schemas/tables.py",
    (
        (
            '    "_requests": OwnTable(',
            '    "_notes": OwnTable(_nullable_columns(epoch=_LONG, note=_STRING), "Notes of people.", ("epoch",)),\n'
            '    "_requests": OwnTable(',
        ),
    ),
    """
    import tempfile
    from observe.dbt_sources import tables_at_epoch
    from schemas.tables import SYSTEM_TABLES
    from warehouse.delta.location import location_of
    from warehouse.delta.write import arrow_rows, create

    with tempfile.TemporaryDirectory() as folder:
        location = location_of(folder, "aggregator")
        create(location, "_notes", SYSTEM_TABLES["_notes"])
        (table,) = tables_at_epoch(location, {})
        assert (table.name, table.description) == ("_notes", "Notes of people."), table
        assert arrow_rows("_notes", [{"note": "right"}]).to_pylist() == [{"epoch": None, "note": "right"}]
    """,
)

ROW_TYPE = Extension(
    "",
    "",
    "schemas/row_types.py",
    (
        (
            "        RequestType.DELETE_RANGE: ",
            "        RequestType.STORE: ChangeType(RowAction.PUT),\n"
            "        RequestType.ERASE: ChangeType(RowAction.DELETE, KeyPlace.KEY),\n"
            "        RequestType.DELETE_RANGE: ",
        ),
    ),
    """
    import tempfile
    from pathlib import Path
    import msgpack
    from schemas.iproto import RequestType, SystemSpace
    from sources.xlog.format.encode import encode_row
    from tests.bodies import encode_body
    from sources.xlog.format.meta import Meta
    from sources.xlog.format.writer import XlogWriter
    from tests.pipeline.deployment import Deployment

    uuid = "a" * 8 + "-0000-4000-8000-" + "a" * 12
    space = [600, 1, "notes", "memtx", 0, {}, [{"name": "id", "type": "unsigned"}]]
    index = [600, 0, "i", "tree", {"unique": True}, [{"field": 0, "type": "unsigned"}]]
    rows = [
        (RequestType.INSERT, SystemSpace.CLUSTER, "tuple_", [1, uuid]),
        (RequestType.INSERT, SystemSpace.SPACE, "tuple_", space),
        (RequestType.INSERT, SystemSpace.INDEX, "tuple_", index),
        *((RequestType.STORE, 600, "tuple_", [key, "old"]) for key in (1, 2, 3)),
        (RequestType.STORE, 600, "tuple_", [2, "new"]),
        (RequestType.ERASE, 600, "key", [3]),
    ]
    with tempfile.TemporaryDirectory() as name:
        logs = Path(name) / "logs"
        logs.mkdir()
        meta = Meta("XLOG", "0.13", uuid, {}, None, {"Version": "2.11.0"})
        with XlogWriter(logs / f"{0:020d}.xlog", meta) as log:
            for lsn, (kind, space_id, part, value) in enumerate(rows, start=1):
                body = encode_body(space_id=space_id, **{part: msgpack.packb(value)})
                log.write([encode_row(kind, body, replica_id=1, lsn=lsn, timestamp=1.7e9)])
        deployment = Deployment(Path(name), {"a": logs}, {"a": "b" + uuid[1:]})
        assert deployment.run() == 1
        found = sorted(map(msgpack.unpackb, deployment.tuples("notes")))
        assert found == [[1, "old"], [2, "new"]], found
    """,
    (
        "schemas/iproto.py",
        "    DELETE_RANGE = 18\n",
        "    DELETE_RANGE = 18\n    STORE = 19\n    ERASE = 20\n",
    ),
)

ADDED = {
    "policy": POLICY,
    "operation": OPERATION,
    "field type": FIELD_TYPE,
    "source kind": SOURCE,
    "check": CHECK,
    "command": COMMAND,
    "metric": METRIC,
    "table": TABLE,
    "row type": ROW_TYPE,
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the packages, with their compiled kernels."""
    folder = tmp_path_factory.mktemp("tree")
    for room in ROOMS:
        shutil.copytree(house.ROOT / room, folder / room)
    return folder


def used(tree: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the packages of the tree; `tests` are the repository's."""
    path = os.pathsep.join((str(tree), str(house.ROOT)))
    return subprocess.run(
        [sys.executable, "-c", dedent(program)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize("what", ADDED)
def test_at_most_one_module_and_one_table(what: str, tree: Path) -> None:
    one = ADDED[what]
    before = used(tree, one.program) if what != "check" else None
    assert before is None or before.returncode != 0, "it works without the extension"
    module, table = tree / one.module, tree / one.table
    original = table.read_text() if one.table else ""
    path, old_numbers, new_numbers = one.names
    enum = (tree / path).read_text() if path else ""
    try:
        if one.module:
            assert not module.exists()
            module.write_text(dedent(one.source).lstrip())
        if one.table:
            changed = original
            for old, new in one.lines:
                assert changed.count(old) == 1, f"the table has changed: {old}"
                changed = changed.replace(old, new)
            table.write_text(changed)
        if path:
            assert enum.count(old_numbers) == 1, "the enum has changed"
            (tree / path).write_text(enum.replace(old_numbers, new_numbers))
        done = used(tree, one.program)
        assert done.returncode == 0, done.stderr[-3000:]
    finally:
        if one.module:
            module.unlink()
        if one.table:
            table.write_text(original)
        if path:
            (tree / path).write_text(enum)
