"""Checks whether a stream's checkpoint belongs to the tables: no row that it counts as read may be missing in them.

A checkpoint names the query (`metadata`), and each batch of the query that had rows is in `_epochs`. So three mistakes
show at a start: a checkpoint of another warehouse, or of a lost one (`_epochs` has no batch of its query);
a warehouse of yesterday with the checkpoint of today (its last batches are in no epoch); and the reverse (`_epochs` has
later batches). Batches without rows are in no epoch either, so in the first two cases the log before the checkpoint's
position is looked at: is there a row that the tables have not? Writes nothing.
"""

from pipeline.checkpoint import CheckpointBatches, checkpoint_batches
from pipeline.state import State
from schemas.errors import AggregatorError, OffsetError
from sources.xlog.directory.offset import Offset, OffsetEntry, from_text
from sources.xlog.format.selection import Selection
from sources.xlog.format.vclock import is_at_most, without_local
from sources.xlog.reader import reader
from sources.xlog.stream.log_stream import LogStream
from warehouse.system_tables import epochs
from warehouse.warehouse import Warehouse

ADVICE = (
    "move the folder of the checkpoint away: the stream continues after the rows that are in the tables, and applies "
    "no row twice"
)
LOCAL_GROUP = 1


def require_fitting_checkpoint(
    warehouse: Warehouse, checkpoint: str, log_stream: LogStream, state: State
) -> None:
    """Check that a checkpoint belongs to the tables; without a checkpoint nothing is wrong.

    Raises:
        OffsetError: The checkpoint is of another warehouse, or of another time.
    """
    found = checkpoint_batches(checkpoint)
    if found is None or not found.committed:
        return
    known = epochs.end_offsets(warehouse, found.query_id)
    last = max(found.committed)
    if known and max(known) > last + 1:
        raise OffsetError(
            f"the checkpoint is older than the tables: it ends with batch {last}, and they have batch {max(known)} "
            "of its query",
            path=checkpoint,
            advice=ADVICE,
        )
    if known and max(known) >= last:
        return
    text = found.offset_of(last)
    missing = None if text is None else _missing_rows(log_stream, state, from_text(text))
    if missing is not None:
        raise OffsetError(f"{_mistake(found, state, bool(known))}: {missing}", path=checkpoint, advice=ADVICE)


def _mistake(found: CheckpointBatches, state: State, is_known: bool) -> str:
    if is_known:
        return f"the tables are older than the checkpoint, which ends with batch {max(found.committed)}"
    if state.epoch < 0:
        return "the tables are empty, and the checkpoint is not: it is of another warehouse, or the tables are lost"
    return "the checkpoint is of another warehouse: no epoch has a batch of its query"


def _missing_rows(log_stream: LogStream, state: State, offset: Offset) -> str | None:
    for uuid, entry in offset.items():
        try:
            lsn = _missing_lsn(log_stream, state, uuid, entry)
        except (AggregatorError, OSError):  # its source is gone or cannot be read: the stream says so
            continue
        if lsn is not None:
            return f"it has read {entry.file} of {entry.leader} to {entry.position}, and the tables lack lsn {lsn}"
    return None


def _missing_lsn(log_stream: LogStream, state: State, uuid: str, entry: OffsetEntry) -> int | None:
    source = next((one for one in log_stream.options.sources if one.name == entry.leader), None)
    if (
        source is not None and source.origin_uuids
    ):  # rows of others are left out, so the tables need not have them
        return None
    known = state.replicasets.get(uuid)
    ids = {} if known is None else known.id_translations.get(entry.leader, {})
    read = {} if known is None else {own: known.read.get(ids.get(own, own), 0) for own in {*known.read, *ids}}
    if entry.is_snapshot:
        return 0 if known is None and entry.position else None
    if not is_at_most(without_local(entry.vclock), read):
        return min(lsn for own, lsn in entry.vclock.items() if lsn > read.get(own, 0))
    if not entry.position:
        return None
    wanted = Selection(from_vclock=without_local(read))
    for batch in reader.read_rows(
        *log_stream.directory(entry.leader).locate(entry.file), 0, entry.position, wanted
    ):
        rows = zip(
            *(batch.column(name).to_pylist() for name in ("replica_id", "group_id", "lsn")), strict=True
        )
        for replica_id, group_id, lsn in rows:
            if replica_id and group_id != LOCAL_GROUP and lsn > read.get(replica_id, 0):
                return int(lsn)
    return None
