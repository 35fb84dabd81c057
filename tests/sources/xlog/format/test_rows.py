"""Filled buffers as Arrow: nulls, flags, names of types, constant columns, the corrupt row."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import XlogChecksumError
from schemas.iproto import RequestType
from schemas.xrow import XROW_ARROW
from sources.xlog.format.block import encode_block
from sources.xlog.format.encode import encode_row
from sources.xlog.format.rows import (
    XROW_PERMISSIVE,
    FileColumns,
    batch_of,
    corrupt_batch,
    new_columns,
    type_column,
)
from tests.sources.xlog import samples


def test_no_rows_are_an_empty_batch() -> None:
    batch = batch_of(new_columns(4, 16), 0, FileColumns("f", "u"))
    batch.validate(full=True)
    assert (batch.num_rows, batch.schema) == (0, XROW_ARROW)


def test_memory_is_shared_not_copied() -> None:
    columns = new_columns(4, 16)
    columns.row_bits[:2] = 1 << 3
    columns.int64s[:, :2] = 5
    columns.int32s[:, :2] = 6
    columns.binary_ends[:, :3] = 0
    batch = batch_of(columns, 2, FileColumns("f", "u"))
    columns.int64s[1, 1] = 99
    assert batch["lsn"].to_pylist() == [5, 99]
    assert batch["replica_id"].to_pylist() == [None, None]


@given(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 127), max_size=50))
def test_types_have_names(codes: list[int]) -> None:
    known = {kind.value: kind.name for kind in RequestType}
    found = type_column(np.array(codes, np.int32))
    assert found.type == pa.string()
    assert found.to_pylist() == [known.get(code, f"TYPE_{code}") for code in codes]


@pytest.mark.parametrize("absent", ["type", "replica_id", "lsn", "timestamp"])
def test_a_value_that_some_rows_lack_is_null_in_those(absent: str, tmp_path: object) -> None:
    key = {"type": 0, "replica_id": 2, "lsn": 3, "timestamp": 4}[absent]
    full = {0: b"\x0c", 2: b"\x01", 3: b"\x07", 4: b"\xcb\x41\xda\xc0\x53\x24\x40\x36\x24"}
    without = {k: v for k, v in full.items() if k != key}
    rows = [
        b"%c" % (0x80 | len(row)) + b"".join(b"%c" % k + v for k, v in row.items())
        for row in (full, without) * 5
    ]
    path = samples.put(tmp_path, samples.log(*map(encode_block, rows)))  # type: ignore[arg-type]
    found = samples.table(path)
    columns = {absent, "tsn"} if absent == "lsn" else {absent}
    for name in ("type", "replica_id", "lsn", "tsn", "timestamp"):
        nulls = [value is None for value in found[name].to_pylist()]
        assert nulls == ([False, True] * 5 if name in columns else [False] * 10), name


def test_the_file_without_an_instance_has_nulls(tmp_path: object) -> None:
    data = b"XLOG\n0.13\nVClock: {}\n\n" + encode_block(encode_row(RequestType.NOP, timestamp=1.0))
    path = samples.put(tmp_path, data)  # type: ignore[arg-type]
    assert samples.table(path)["instance_uuid"].to_pylist() == [None]


def test_what_cannot_be_read_is_a_row_of_its_own() -> None:
    error = XlogChecksumError("wrong", file="f.xlog", offset=42)
    row = corrupt_batch(error, "f.xlog")
    row.validate(full=True)
    assert row.schema == XROW_PERMISSIVE
    values = {name: value for name, value in row.to_pylist()[0].items() if value is not None}
    assert values == {"file": "f.xlog", "position": 42, "_corrupt_record": "wrong (file f.xlog, offset 42)"}
