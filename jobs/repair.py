"""Close the gaps in `_gaps`: read the sources with gaps again, then other members, until no gap is open.

Each reading is a backfill by the holder of the writer lock (`pipeline.requests.read_again`), from the settled position
on. A divergence is printed, but cannot be repaired by reading: the operator must choose the correct member
(`aggregator heal`).
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from config.deployment import Config
from jobs.aggregate import check_custom_functions
from jobs.backfill import request_and_wait
from jobs.main import main
from jobs.runtime.output import say
from jobs.runtime.session import log_reading_session
from pipeline.commit.load import load_state
from pipeline.source_options import open_log_stream
from schemas.errors import AggregatorError
from schemas.states import GapKind, RequestKind, RequestState
from sources.xlog.stream.identity import replicaset_uuid_of
from sources.xlog.stream.log_stream import LogStream
from warehouse.copies.primary import require_primary
from warehouse.delta.read import rows_of
from warehouse.system_tables.gaps import TABLE, Gap, open_gaps
from warehouse.system_tables.requests import Request
from warehouse.warehouse import Warehouse

ReadSourceAgain = Callable[[str], str | None]
"""Reads a source again by its name; returns why that failed, or None."""


@dataclass(frozen=True)
class RepairResult:
    """The result of a repair."""

    closed_gaps: tuple[Gap, ...] = ()
    left_gaps: tuple[Gap, ...] = ()
    """Gaps that are closed now, and gaps that are still open."""
    read_sources: tuple[str, ...] = ()


def sources_to_read(gaps: Iterable[Gap], id_by_source: Mapping[str, int | None]) -> Iterator[str]:
    """Yield the sources that may fill the gaps of one replicaset: those with the gaps, then its other members."""
    all_gaps = list(gaps)
    own = dict.fromkeys(gap.source for gap in all_gaps if gap.source in id_by_source)
    ids = {gap.replicaset_id for gap in all_gaps}
    others = (name for name, replicaset in id_by_source.items() if replicaset in ids and name not in own)
    yield from (name for name in own if name is not None)
    yield from others


def repair(
    find_gaps: Callable[[], Sequence[Gap]],
    id_by_source: Mapping[str, int | None],
    read_again: ReadSourceAgain,
) -> RepairResult:
    """Read the sources of replicasets with gaps again, until no gap is open or no source is left."""
    before = left = tuple(find_gaps())
    done: list[str] = []
    for replicaset in dict.fromkeys(gap.replicaset_id for gap in before):
        for name in sources_to_read([gap for gap in before if gap.replicaset_id == replicaset], id_by_source):
            if all(gap.replicaset_id != replicaset for gap in left):
                break
            failed = read_again(name)
            done.append(name)
            say(f"read {name} again" if failed is None else f"{name} could not be read again: {failed}")
            left = tuple(find_gaps())
    keys = {gap.key for gap in left}
    return RepairResult(tuple(gap for gap in before if gap.key not in keys), left, tuple(done))


def replicaset_ids_by_source(log_stream: LogStream, id_by_uuid: Mapping[str, int]) -> dict[str, int | None]:
    """Return source name to replicaset id, from the headers of the source's files; None if it is unknown."""
    found: dict[str, int | None] = {}
    for source in log_stream.options.sources:
        directory = log_stream.directory(source.name)
        try:
            found[source.name] = id_by_uuid.get(replicaset_uuid_of(directory, directory.listing(), None))
        except (AggregatorError, OSError) as error:
            say(f"the replicaset of source {source.name} is unknown: {error}")
            found[source.name] = None
    return found


def repair_warehouse(config: Config) -> int:
    """Close the gaps that can be closed, print the others, and return 1 if a gap is still open, else 0."""
    check_custom_functions(config)
    warehouse = Warehouse(None, config.warehouse, config.database)
    warehouse.require_tables()
    require_primary(warehouse)

    def all_open_gaps() -> tuple[Gap, ...]:
        return open_gaps(rows_of(warehouse.opened(TABLE)))

    def read_again(name: str) -> str | None:
        arguments = {"source": name, "from": None, "to": None}
        session = partial(log_reading_session, config, "repair")
        return _failure_reason(request_and_wait(config, warehouse, RequestKind.BACKFILL, arguments, session))

    for gap in all_open_gaps():
        if gap.kind == GapKind.DIVERGENCE:
            say(f"{gap} (no reading heals it: aggregator heal SOURCE, docs/corrections.md)")
    state = load_state(warehouse)
    id_by_source = replicaset_ids_by_source(
        open_log_stream(config, state), {uuid: one.id for uuid, one in state.replicasets.items()}
    )
    done = repair(
        lambda: [gap for gap in all_open_gaps() if gap.kind == GapKind.MISSING], id_by_source, read_again
    )
    for gap in done.closed_gaps:
        say(f"closed: {gap}")
    for gap in done.left_gaps:
        say(f"still open: {gap}: bring its log back, or name a member that has it under sources")
    say(f"{len(done.closed_gaps)} gaps closed, {len(done.left_gaps)} still open")
    return 1 if done.left_gaps else 0


def _failure_reason(request: Request) -> str | None:
    return None if request.state == RequestState.DONE else request.message


if __name__ == "__main__":
    sys.exit(main("repair"))
