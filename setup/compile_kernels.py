"""Compiles the kernels once: `python setup/compile_kernels.py`.

Numba compiles a kernel at its first call and keeps the machine code beside the sources (`schemas.compiled`). All of
them take a minute of one core, which a clone would otherwise spend on its first batch, and each parallel process of
its tests again. This aggregates the recordings of `conf/demo.yaml` into a temporary folder, without
Spark: that calls the kernels of reading, reducing and writing. Kernels that no batch calls (the relay's, the
daemon's) are compiled at their first call, as all are in an installed wheel.
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
from sources.xlog.directory.offset import Entry, to_text  # noqa: E402
from sources.xlog.options import parse_options  # noqa: E402
from sources.xlog.stream.batch import segments_between  # noqa: E402
from sources.xlog.stream.instants import follower_of  # noqa: E402
from warehouse import cluster  # noqa: E402
from warehouse.lock import WriterLock  # noqa: E402
from warehouse.warehouse import Warehouse  # noqa: E402

BYTES_PER_BATCH = 1 << 20
"""Less than the recordings have, so that later batches meet rows of earlier ones."""


def aggregate(config: Config) -> int:
    """Aggregate the sources of a configuration into empty tables, in this process; return how many rows it read."""
    warehouse = Warehouse(None, config.warehouse, config.database)
    warehouse.create_system_tables()
    cluster.record_allocation(warehouse, config.cluster.allocation, datetime.now(UTC))
    rows = 0
    with WriterLock(warehouse, "set-up") as lock:
        state = load_state(warehouse)
        follower = follower_of(parse_options(stream_options(config, state, 1)))
        writer = BatchWriter(warehouse, config, follower, lock, state, None)
        number = 0
        offset: Mapping[str, Entry] = {}
        while (end := follower.latest(offset, BYTES_PER_BATCH)) != offset:
            segments = segments_between(follower, offset, end)
            rows += writer.process(segments, BatchName("set-up", number, (to_text(offset), to_text(end))))[0]
            offset, number = end, number + 1
    return rows


def main() -> None:
    """Aggregate each group of recordings."""
    print("set-up: compiled kernels")
    config = load(ROOT / "conf" / "demo.yaml")
    with tempfile.TemporaryDirectory() as folder:
        here = {"warehouse": f"{folder}/warehouse", "checkpoint": f"{folder}/checkpoint"}
        aggregate(config.model_copy(update=here))


if __name__ == "__main__":
    main()
