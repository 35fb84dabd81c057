"""Parts of `_pending` whose rows are in one file or in several."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.changelog.segment_plan import PENDING_ARROW
from pipeline.pending.parts import PENDING, PendingOrigin, PendingParts
from pipeline.plan.rows.summary import in_segment, summarize_rows
from pipeline.write.system_rows import append_table
from tests.pipeline.logs import A1, batch, put, synchronous_row, txn
from warehouse.warehouse import Warehouse

ROWS = batch(*(txn(1, put(), synchronous_row(put(513)), put(514)) for _ in range(6)), txn(2, put(), lsn=9))


def stored(
    rows: pa.RecordBatch, replicaset_id: int = 1, number: int = 7, reason: str = "lsn 1..2"
) -> pa.Table:
    values = {
        **{"replicaset_id": replicaset_id, "segment": number, "source": "a1", "file": "5.xlog"},
        **{"instance_uuid": A1, "reason": reason, "server_version": "2.11.0", "earlier": '{"1": 5}'},
    }
    columns = [
        pa.repeat(pa.scalar(values[field.name], field.type), rows.num_rows)
        if field.name in values
        else rows.column(field.name)
        for field in PENDING_ARROW
    ]
    return pa.Table.from_arrays(columns, schema=PENDING_ARROW)


@pytest.mark.parametrize("spaces", [frozenset[int](), frozenset({512})], ids=["plain", "synchronous space"])
@pytest.mark.parametrize(
    "files",
    [[range(19)], [range(4), range(4, 19)], [range(9, 19), range(9)], [range(0, 19, 2), range(1, 19, 2)]],
    ids=["one file", "cut in a transaction", "the later rows first", "in turns"],
)
def test_a_part_is_the_same_in_any_files(tmp_path: Path, files: list[range], spaces: frozenset[int]) -> None:
    warehouse = Warehouse(None, str(tmp_path))
    warehouse.create_system_tables()
    tables = warehouse.open_tables
    parts = PendingParts(tables)
    for rows in files:
        append_table(tables, PENDING, stored(ROWS.take(pa.array(rows))))
        parts.of_replicasets([1])
    append_table(tables, PENDING, stored(ROWS, replicaset_id=2))
    append_table(tables, PENDING, stored(ROWS, number=8))
    part = parts.of_replicasets([1])[0]
    assert (part.number, part.origin, part.vclock_before) == (7, PendingOrigin("a1", "5.xlog", A1), {1: 5})
    assert part.lsn_ranges == ((1, 1, 18), (2, 9, 9))
    assert (part.first, part.last) == ((100, 0), (400, 0))
    assert parts.rows(part).column("lsn").to_pylist() == ROWS.column("lsn").to_pylist()
    assert in_segment(parts.summary(part, spaces, frozenset()), 3) == in_segment(
        summarize_rows(ROWS, 3, spaces), 3
    )
