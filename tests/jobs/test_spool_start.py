"""Where a spool begins: cases that need no tables, and errors that must not lead to a snapshot."""

from pathlib import Path

import pytest

from config.subscribe import Subscribe
from jobs.subscribe import is_empty_spool, spool_starts
from schemas.errors import WarehouseError
from sources.spool.spool import Spool


def section(folder: Path, warehouse: bool = True) -> Subscribe:
    replicasets = [{"name": "a", "spool": str(folder / "spool"), "peers": ["unix/:/x"]}]
    warehouses = {"warehouse": str(folder / "warehouse")} if warehouse else {}
    return Subscribe.model_validate({"replicasets": replicasets, **warehouses})


@pytest.mark.parametrize("warehouse", [True, False])
def test_without_tables_it_begins_with_a_snapshot(tmp_path: Path, warehouse: bool) -> None:
    assert spool_starts(section(tmp_path, warehouse)) == [None]


def test_tables_that_cannot_be_read_are_no_reason_for_a_snapshot(tmp_path: Path) -> None:
    log = tmp_path / "warehouse" / "aggregator.db" / "_epochs" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("damaged")
    with pytest.raises(WarehouseError):
        spool_starts(section(tmp_path))


def test_a_spool_with_a_file_is_not_empty(tmp_path: Path) -> None:
    assert is_empty_spool(tmp_path / "missing")
    with Spool(tmp_path) as spool:
        spool.instance_uuid = "aaaaaaaa-0000-4000-8000-000000000001"
        assert is_empty_spool(tmp_path)
        spool.begin_at({1: 1})
        spool._open_log(spool.versions)
    assert not is_empty_spool(tmp_path)
