"""Eight processes, each with a Spark of its own and no lock, announce 50 uuids each at the same time."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from warehouse.delta.read import rows_of
from warehouse.system_tables import cluster
from warehouse.warehouse import Warehouse

PROCESSES, UUIDS = 8, 50
REFUSED = "WarehouseError\n"
"""What each process prints at its end: another allocation was refused."""

ANNOUNCE = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID
from config.deployment import Config
from jobs.runtime.session import spark_session
from schemas.tables import SYSTEM_TABLES
from warehouse.system_tables import cluster
from warehouse.warehouse import Warehouse
from udfs.remap.cluster_replace import IncomingMember

folder, allocation, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
config = Config.model_validate({
    "warehouse": str(folder / "warehouse"), "checkpoint": str(folder / "checkpoint"),
    "sources": [{"name": "none", "path": str(folder)}],
})
spark = spark_session(config, "announce")
warehouse = Warehouse(spark, config.warehouse)
if number < 0:
    warehouse.create(cluster.TABLE, SYSTEM_TABLES[cluster.TABLE])
    sys.exit()
spark.range(1).collect()
print("ready", flush=True)
sys.stdin.readline()
replicaset = str(UUID(int=10_000 + number % 4))
instances = [IncomingMember(str(UUID(int=100 * number + i)), 1 + i % 31, replicaset) for i in range(UUIDS)]
now = datetime.now(UTC)
cluster.record_allocation(warehouse, allocation, now)
cluster.allocate(warehouse, instances, now)
try:
    cluster.record_allocation(warehouse, {"counter": "preserve", "preserve": "counter"}[allocation], now)
except Exception as error:
    print(type(error).__name__, flush=True)
""".replace("UUIDS", str(UUIDS))


def started(folder: Path, allocation: str, number: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        environment.pop(name, None)
    environment["PYSPARK_SUBMIT_ARGS"] = (
        "--master local[1] --driver-memory 700m --conf spark.ui.enabled=false "
        "--conf spark.databricks.delta.snapshotPartitions=1 --conf spark.sql.shuffle.partitions=1 pyspark-shell"
    )
    command = [sys.executable, "-c", ANNOUNCE, str(folder), allocation, str(number)]
    pipe = subprocess.PIPE
    with (folder / f"stderr {number}").open("w") as said:
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=said, text=True)


@pytest.mark.soak
@pytest.mark.parametrize("allocation", ["counter", "preserve"])
def test_each_uuid_gets_one_id_of_its_own(tmp_path: Path, allocation: str) -> None:
    with started(tmp_path, allocation, -1) as first:
        assert first.wait(120) == 0
    with ExitStack() as stack:
        processes = [stack.enter_context(started(tmp_path, allocation, n)) for n in range(PROCESSES)]
        for process in processes:
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    print(f"{allocation}: {PROCESSES} processes, {PROCESSES * UUIDS} uuids: {time.monotonic() - began:.1f} s")
    errors = [
        (tmp_path / f"stderr {n}").read_text()[-1500:] for n in range(PROCESSES) if outputs[n] != REFUSED
    ]
    assert outputs == [REFUSED] * PROCESSES, "\n".join(errors)
    warehouse = Warehouse(None, str(tmp_path / "warehouse"))
    found = rows_of(warehouse.opened(cluster.TABLE), ("global_id", "uuid", "lsn", "replicaset_id"))
    expected = list(range(1, PROCESSES * UUIDS + 2))
    assert sorted(row["global_id"] for row in found) == expected
    assert sorted(row["lsn"] for row in found) == expected
    assert len({row["uuid"] for row in found}) == len(found)
    assert {row["replicaset_id"] for row in found} == set(range(5))
    assert warehouse.property(cluster.TABLE, cluster.ALLOCATION_PROPERTY) == allocation
