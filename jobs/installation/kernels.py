"""Compiles the kernels that batches and daemons call, and stores their machine code (`schemas.kernel_cache`).

Numba compiles a kernel at its first call. All kernels take a minute of one core, which the first batch would take, and
so would each parallel process of the tests. So the recordings of two small replicasets, which are installed with the
package, are aggregated into a temporary folder, without Spark: that calls the kernels of reading, reducing, writing.
"""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numba.core import event
from tqdm import tqdm

from config.deployment import Config
from pipeline.batch import BatchWriter
from pipeline.commit.batch import BatchName
from pipeline.commit.load import load_state
from pipeline.source_options import open_log_stream
from schemas.errors import ConfigurationError
from sources.iproto import row_stream
from sources.relay import row_packets
from sources.subscribe import whitelist
from sources.xlog.directory.offset import OffsetEntry, to_text
from sources.xlog.format.kernels.chain import header_claims_end
from sources.xlog.stream.batch import segments_between
from udfs.buffers import flatten
from udfs.kernels.keyed_hash import hash_seeds
from udfs.kernels.values import OVERREAD_BYTES
from udfs.keys.key_index import WantedKeys, build_index, find_in_index
from udfs.keys.key_order import key_order, ordered_keys
from udfs.operations import quick_updates
from warehouse.lock.lock import WriterLock
from warehouse.system_tables import cluster
from warehouse.warehouse import Warehouse

RECORDINGS = "share/tarantool-aggregator/recordings"
"""Where the recordings are installed, below Python's prefix; in a clone they are among the tests."""

BYTES_PER_BATCH = 1 << 20
"""Less than the recordings have, so that later batches change rows of earlier ones."""


POLICIES = {"spaces": {"accounts": {"sequence": ["updated"]}}}
"""Decides keys of both recordings by a field, as a deployment does."""


def aggregate(config: Config) -> int:
    """Aggregate the sources of a configuration into empty tables in this process; return the number of rows read."""
    warehouse = Warehouse(None, config.warehouse, config.database)
    warehouse.create_system_tables()
    cluster.record_allocation(warehouse, config.cluster.allocation, datetime.now(UTC))
    rows = 0
    with WriterLock(warehouse, "setup") as lock:
        state = load_state(warehouse)
        log_stream = open_log_stream(config, state, at_instants=True)
        writer = BatchWriter(warehouse, config, log_stream, lock, state, None)
        number = 0
        offset: Mapping[str, OffsetEntry] = {}
        while (end := log_stream.latest(offset, BYTES_PER_BATCH)) != offset:
            segments = segments_between(log_stream, offset, end)
            rows += writer.process(segments, BatchName("setup", number, (to_text(offset), to_text(end))))[0]
            offset, number = end, number + 1
    return rows


def recordings() -> Path:
    """Return the folder with the recordings `a1` and `b1`."""
    clone = Path(__file__).resolve().parents[2] / "tests" / "recordings" / "2.6.0"
    user = Path(sysconfig.get_path("data", sysconfig.get_preferred_scheme("user")))
    for folder in (clone, Path(sys.prefix) / RECORDINGS, user / RECORDINGS):
        if (folder / "a1").is_dir():
            return folder
    raise ConfigurationError(
        f"the recordings that compile the kernels are not in {sys.prefix}/{RECORDINGS}",
        advice="install the wheel by pip; without them, the first batch compiles the kernels",
    )


def compile_kernels(*, daemons: bool = True) -> int:
    """Compile the kernels that are not compiled yet, with `daemons` theirs as well; return how many these were."""
    sources = [{"name": name, "path": str(recordings() / name)} for name in ("a1", "b1")]
    with tempfile.TemporaryDirectory() as folder, Counter() as counter:
        paths = {"warehouse": f"{folder}/warehouse", "checkpoint": f"{folder}/checkpoint"}
        aggregate(Config.model_validate({**paths, "sources": sources, "policies": POLICIES}))
        _call_what_the_recordings_do_not()
        if daemons:
            row_stream.compile_kernels()
            row_packets.compile_kernels()
            whitelist.compile_kernels()
    return counter.count


def _call_what_the_recordings_do_not() -> None:
    """Call the kernels of UPDATEs of earlier rows, of key copies, of `prove`, and of a log that is continued."""
    quick_updates.compile_kernels()
    keys, seeds = pa.array([b"\x91\x01"], pa.binary()), hash_seeds()
    find_in_index(build_index(keys, seeds), flatten(keys, OVERREAD_BYTES), WantedKeys.of(keys, seeds))
    ordered_keys(keys, key_order([(False,)]), np.zeros(1, np.int32))
    header_claims_end(np.frombuffer(bytes(32), np.uint8), 0, 32, 32)


class Counter(event.Listener):  # type: ignore[misc]
    """Counts the functions that numba compiles, and shows their number on a terminal."""

    def __init__(self) -> None:
        self.count = 0
        self._bar = tqdm(unit=" functions", desc="kernels", disable=not sys.stderr.isatty(), leave=False)

    def __enter__(self) -> Counter:
        event.register("numba:compile", self)
        return self

    def __exit__(self, *_error: object) -> None:
        event.unregister("numba:compile", self)
        self._bar.close()

    def on_start(self, _event: Any) -> None:
        """Numba has begun to compile a function, which may begin with functions that it calls."""

    def on_end(self, _event: Any) -> None:
        """Count a function that is compiled."""
        self.count += 1
        self._bar.update()
