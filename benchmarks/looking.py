"""Time until commands that a person waits for print a line: `aggregator --help`, `cat` and `who`.

    python -m benchmarks.looking [--gib 1] [--rows 10000000] [--runs 3]

`cat` reads a log of uncompressed blocks of 128 KiB. `who` looks for one key in a `_changelog` of 100 files; half of
their rows belong to the space: INSERTs, REPLACEs, UPDATEs and DELETEs of five million keys.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from schemas.iproto import RequestType
from sources.xlog.format.block import encode_block
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import Meta, format_meta
from tests.bodies import encode_body
from tests.pipeline.deployment import Deployment
from tests.truth import own

FILES = 100
KEYS = 5_000_000
ROOT = Path(__file__).resolve().parent.parent


def write_log(file: Path, size: int) -> None:
    """Write a log of about `size` bytes, by repeating one block."""
    rows = b"".join(
        encode_row(
            RequestType.REPLACE,
            encode_body(space_id=512, tuple_=msgpack.packb([lsn, "name", 1.5])),
            lsn=lsn,
            replica_id=1,
            timestamp=1.7e9,
        )
        for lsn in range(1, 3000)
    )
    block = encode_block(rows, compress=False)
    with file.open("wb") as stream:
        stream.write(format_meta(Meta("XLOG", "0.13", "aaaaaaaa-0000-4000-8000-0000000000a1", {})))
        for _ in range(size // len(block) + 1):
            stream.write(block)


def binary_array(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> pa.Array:
    """Return an Arrow binary array with each row of a matrix of bytes as one value."""
    count, width = rows.shape
    offsets = np.arange(0, width * (count + 1), width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())]
    )


def changelog_rows(number: int, count: int, schema: pa.Schema, space: str, space_id: int) -> pa.Table:
    """Return the rows of the file with this number in `_changelog`; half of them belong to the space."""
    random = np.random.default_rng(number)
    ids = random.integers(0, KEYS, count).astype(">u4").view(np.uint8).reshape(count, 4)
    tuples = np.zeros((count, 32), np.uint8)
    tuples[:, 0], tuples[:, 1], tuples[:, 2:6] = 0x93, 0xCE, ids
    tuples[:, 6], tuples[:, 7:23] = 0xB0, random.integers(97, 122, (count, 16))
    tuples[:, 23], tuples[:, 24:32] = 0xCB, random.integers(0, 255, (count, 8))
    keys = np.zeros((count, 6), np.uint8)
    keys[:, 0], keys[:, 1], keys[:, 2:6] = 0x91, 0xCE, ids
    kind, none = random.integers(0, 4, count), pa.nulls(count, pa.binary())
    by_key, in_space = pa.array(kind >= 2), pa.array(random.random(count) < 0.5)
    operations = pa.array([msgpack.packb([["=", 2, "new"]])]).take(pa.array(np.zeros(count, np.int32)))
    lsns = pa.array(np.arange(number * count, (number + 1) * count) + 10_000)
    values = {
        **{"epoch": 1000 + number, "replicaset_id": 1, "source": "a1", "segment": 0, "global_id": 2},
        **{"state": "committed", "layout": 0, "file": "0.xlog", "row": 0, "type": None, "replica_id": 1},
        **{"instance_uuid": "a" * 36, "index_base": 1, "server_version": "2.6.0"},
        "space": pc.if_else(in_space, space, "another"),
        "space_id": pc.if_else(in_space, space_id, 99_999),
        "type": pa.array(["INSERT", "REPLACE", "UPDATE", "DELETE"]).take(pa.array(kind)),
        "key": pc.if_else(by_key, binary_array(keys), none),
        "tuple": pc.if_else(by_key, none, binary_array(tuples)),
        "operations": pc.if_else(pa.array(kind == 2), operations, none),
        **{"lsn": lsns, "tsn": lsns, "position": pa.array(np.arange(count) * 10)},
        "hash": pa.array(random.integers(-(2**62), 2**62, count)),
        "timestamp": pa.array(np.arange(count) + 1_700_000_000_000_000 + number * count),
    }
    columns = []
    for field in schema:
        value = values.get(field.name)
        array = value if isinstance(value, pa.Array | pa.ChunkedArray) else pa.repeat(pa.scalar(value), count)
        columns.append(array.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def make_large_changelog(folder: Path, rows: int) -> Path:
    """Aggregate the recorded logs, append `rows` rows to `_changelog`, and return the configuration's file."""
    deployment = Deployment(folder, {name: own().directory(name) for name in ("a1", "b1")})
    deployment.run()
    config = deployment.config()
    root = Path(config.warehouse) / f"{config.database}.db"
    schema = pa.schema(DeltaTable(str(root / "_changelog")).to_pyarrow_dataset().schema)
    space_id = next(row["space_id"] for row in deployment.rows("_schema") if row["name"] == "accounts")
    for number in range(FILES):
        added = changelog_rows(number, rows // FILES, schema, "accounts", space_id)
        write_deltalake(str(root / "_changelog"), added, mode="append")
    epochs = DeltaTable(str(root / "_epochs")).to_pyarrow_table()
    last = epochs.sort_by("epoch").slice(epochs.num_rows - 1).to_pylist()[0]
    versions = {**dict(last["versions"]), "_changelog": DeltaTable(str(root / "_changelog")).version()}
    last = {**last, "epoch": last["epoch"] + 1, "versions": list(versions.items())}
    write_deltalake(str(root / "_epochs"), pa.Table.from_pylist([last], schema=epochs.schema), mode="append")
    file = folder / "config.yaml"
    file.write_text(config.model_dump_json(), encoding="utf-8")
    return file


def seconds_to_first_line(words: Sequence[str]) -> tuple[float, float]:
    """Return the seconds until a command has printed its first line, and those of processor time."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "aggregator", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"{' '.join(words)} has printed nothing")
        seconds = time.monotonic() - began
        process.kill()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Make the log and the changelog, and print the times of the three commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the log")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the changelog")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "00000000000000000000.xlog"
        write_log(log, int(options.gib * 2**30))
        config = make_large_changelog(Path(folder) / "who", options.rows)
        key = json.dumps(4_000_000)
        for name, words in {
            "aggregator --help": ["--help"],
            f"first row of cat, {options.gib} GiB": ["cat", str(log)],
            f"who, {options.rows} rows": ["who", "accounts", key, "--config", str(config), "--json"],
        }.items():
            wall, used = min(seconds_to_first_line(words) for _ in range(options.runs))
            print(
                f"{name}: {wall:.2f} s, {used:.2f} s of processor time (best of {options.runs})", flush=True
            )


if __name__ == "__main__":
    main()
