"""Compiles the kernels that batches call, and stores their machine code: `python setup/compile_kernels.py`.

Numba compiles a kernel at its first call and stores the machine code next to the sources (`schemas.compiled`). All
kernels take a minute of one core; without this script, the first batch in a clone takes it, and so does each parallel
process of the tests. This script aggregates the recordings of `conf/demo.yaml` into a temporary folder, without Spark,
which calls the kernels of reading, reducing and writing. Kernels that no batch calls (of relay and daemon) are compiled
at their first call, like all kernels of an installed wheel.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from config.deployment import Config, load  # noqa: E402
from pipeline.batch import BatchWriter  # noqa: E402
from pipeline.commit.batch import BatchName  # noqa: E402
from pipeline.commit.load import load_state  # noqa: E402
from pipeline.source_options import stream_options  # noqa: E402
from sources.xlog.directory.offset import OffsetEntry, to_text  # noqa: E402
from sources.xlog.options import parse_options  # noqa: E402
from sources.xlog.stream.batch import segments_between  # noqa: E402
from sources.xlog.stream.instants import log_stream_of  # noqa: E402
from warehouse.lock.lock import WriterLock  # noqa: E402
from warehouse.system_tables import cluster  # noqa: E402
from warehouse.warehouse import Warehouse  # noqa: E402

BYTES_PER_BATCH = 1 << 20
"""Less than the recordings have, so that later batches change rows of earlier ones."""


def aggregate(config: Config) -> int:
    """Aggregate the sources of a configuration into empty tables in this process; return the number of rows read."""
    warehouse = Warehouse(None, config.warehouse, config.database)
    warehouse.create_system_tables()
    cluster.record_allocation(warehouse, config.cluster.allocation, datetime.now(UTC))
    rows = 0
    with WriterLock(warehouse, "set-up") as lock:
        state = load_state(warehouse)
        log_stream = log_stream_of(parse_options(stream_options(config, state, 1)))
        writer = BatchWriter(warehouse, config, log_stream, lock, state, None)
        number = 0
        offset: Mapping[str, OffsetEntry] = {}
        while (end := log_stream.latest(offset, BYTES_PER_BATCH)) != offset:
            segments = segments_between(log_stream, offset, end)
            rows += writer.process(segments, BatchName("set-up", number, (to_text(offset), to_text(end))))[0]
            offset, number = end, number + 1
    return rows


def main() -> None:
    """Aggregate the recordings into a temporary folder."""
    print("set-up: compiled kernels")
    config = load(ROOT / "conf" / "demo.yaml")
    with tempfile.TemporaryDirectory() as folder:
        paths = {"warehouse": f"{folder}/warehouse", "checkpoint": f"{folder}/checkpoint"}
        aggregate(config.model_copy(update=paths))


if __name__ == "__main__":
    main()
