"""`_cluster` on S3, which knows no locks: a commit of delta-rs is a file that is put where none is, or not at all."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.sources.s3 import Store, installed
from warehouse.delta.location import location_of
from warehouse.delta.read import rows_of
from warehouse.delta.write import schema_of
from warehouse.system_tables import cluster

pytestmark = [pytest.mark.soak, installed]

WAREHOUSE = "s3a://lake/warehouse"
PROCESSES, UUIDS = 3, 4

ANNOUNCE = """
import sys
from datetime import UTC, datetime
from uuid import UUID
from warehouse.system_tables import cluster
from warehouse.warehouse import Warehouse
from udfs.remap.cluster_replace import IncomingMember

number, count = int(sys.argv[2]), int(sys.argv[3])
warehouse = Warehouse(None, sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for i in range(count):
    instances = [IncomingMember(str(UUID(int=100 * number + i + 1)), 1 + i % 31, str(UUID(int=10_000 + number)))]
    cluster.allocate(warehouse, instances, datetime.now(UTC))
"""


def announcing(store: Store, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ANNOUNCE, WAREHOUSE, str(number), str(UUIDS)]
    pipe, variables = subprocess.PIPE, {**os.environ, **store.environment}
    return subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, text=True)


def test_each_uuid_gets_one_id_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(Store(tmp_path))
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        location = location_of(WAREHOUSE)
        DeltaTable.create(location.uri(cluster.TABLE), schema_of(cluster.TABLE))
        processes = [stack.enter_context(announcing(store, number)) for number in range(PROCESSES)]
        for process in processes:
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()  # all begin now
        for process in processes:
            process.wait(120)
        assert [process.returncode for process in processes] == [0] * PROCESSES
        table = location.open(cluster.TABLE)
        assert table is not None
        rows = [row for row in rows_of(table) if row["replicaset_uuid"] != "aggregator"]
        assert len({row["uuid"] for row in rows}) == len(rows) == PROCESSES * UUIDS
        ids = sorted(row["global_id"] for row in rows_of(table))
        assert ids == list(range(1, len(ids) + 1))
        log = "warehouse/aggregator.db/_cluster/_delta_log"
        commits = {f"{log}/{version:020d}.json" for version in range(table.version() + 1)}
        assert commits <= store.written_only_if_new()
