"""Read your writes under load: is `aggregator wait` ever true too early, and how late is it?

    python -m benchmarks.waiting [--tokens N] [--clients C] [--trigger SECONDS]

Clients insert rows into a server, and wait for each of them by the instance and the lsn that the server returned. Each
answer is compared with the table at the version of the epoch that the answer names, which must have the row. It is late
by the time since the commit of that epoch, or since the question if that came later.
"""

import argparse
import itertools
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.fresh import epochs
from observe.applied_rows import AppliedRow, AppliedRows
from tests.live import Tarantool
from tests.live.commands import Command
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.read import rows_of

CREATE = """
box.schema.space.create('orders', {format = {{'id', 'unsigned'}}}):create_index('pk')
return box.info.uuid
"""
INSERT = "local id = ... box.space.orders:insert{id} return box.info.lsn"
CONFIG = """
warehouse: {folder}/warehouse
checkpoint: {folder}/checkpoint
start: logs
trigger: {trigger} seconds
sources: [{{name: a, path: {folder}/a}}]
"""
ROWS_AT_ONCE = 20
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Token:
    """A row that a client wrote, and the answer to its question."""

    key: int
    lsn: int
    answer: AppliedRow
    asked_at: float
    answered_at: float


def main() -> None:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--trigger", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = measure(folder, options.tokens, options.clients, options.trigger)
        report(folder, tokens, options.trigger)


def measure(folder: Path, count: int, clients: int, trigger: int) -> list[Token]:
    """Let clients write rows and wait for them while the job runs; return the answers."""
    config, location = folder / "config.yaml", location_of(str(folder / "warehouse"))
    config.write_text(CONFIG.format(folder=folder, trigger=trigger))
    rows, found = AppliedRows(location), list[Token]()
    with Tarantool(folder / "a", cfg={"checkpoint_interval": 0}) as server:
        uuid, keys = server.eval(CREATE), itertools.count(1)
        server.eval(INSERT, 0)
        with Command("aggregate", config, folder / "job.log"):
            while not epochs(folder):
                time.sleep(0.2)
            print("the job runs", flush=True)

            def client() -> None:
                with server.connect() as connection:
                    while len(found) < count:
                        own = [(key := next(keys), connection.eval(INSERT, key)) for _ in range(ROWS_AT_ONCE)]
                        for key, lsn in own:
                            asked_at = time.time()
                            answer = rows.wait(uuid, lsn, TIMEOUT_SECONDS)
                            found.append(Token(key, lsn, answer, asked_at, time.time()))

            threads = [threading.Thread(target=client) for _ in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    return found


def keys_by_epoch(location: WarehouseLocation, versions: Mapping[int, int]) -> dict[int, set[int]]:
    """Return the keys in the table of each epoch."""
    found = {}
    for epoch, version in versions.items():
        opened = location.open("orders", version)
        found[epoch] = set() if opened is None else {int(row["id"]) for row in rows_of(opened, ["id"])}
    return found


def report(folder: Path, tokens: list[Token], trigger: int) -> None:
    """Print how many answers were wrong, and how late they were."""
    location = location_of(str(folder / "warehouse"))
    table = location.open("_epochs")
    if table is None:
        raise RuntimeError("there are no epochs")
    rows = rows_of(table, ["epoch", "versions", "committed_at"])
    versions = {row["epoch"]: dict(row["versions"]).get("orders") for row in rows}
    committed = {row["epoch"]: row["committed_at"].timestamp() for row in rows}
    keys = keys_by_epoch(location, {one: v for one, v in versions.items() if v is not None})
    unanswered = [one for one in tokens if not one.answer.is_applied]
    early = [
        one
        for one in tokens
        if one.answer.epoch is not None
        and (one.key not in keys[one.answer.epoch] or one.answered_at < committed[one.answer.epoch])
    ]
    later = [
        one
        for one in tokens
        if one.answer.epoch is not None and one.key in keys.get(one.answer.epoch - 1, ())
    ]
    late = np.array(
        [
            one.answered_at - max(one.asked_at, committed[one.answer.epoch])
            for one in tokens
            if one.answer.epoch is not None
        ]
    )
    print(
        f"{len(tokens):,} tokens in {len({one.answer.epoch for one in tokens})} epochs, trigger {trigger} s: "
        f"{len(early)} true too early, {len(later)} named a later epoch, {len(unanswered)} without an answer"
    )
    print(
        f"late: median {np.median(late):.2f} s, "
        f"99 % {np.percentile(late, 99):.2f} s, longest {late.max():.2f} s"
    )


if __name__ == "__main__":
    main()
