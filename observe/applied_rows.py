"""Says whether a row that a client wrote is in the tables, and since which epoch: "read your writes"; no Spark.

A client asks with what the server says after a commit: the instance's uuid (`box.info.uuid`) and the row's lsn
(`box.info.lsn`, or `box.info.vclock` of its id). The row is in the tables if the settled lsn of that instance has
reached it, in an epoch that is committed: then the row, and all rows before it, were applied or never will be.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from observe.instance_ids import InstanceIdReader
from schemas.errors import ConfigurationError
from warehouse.delta.location import WarehouseLocation
from warehouse.delta.newest_epoch import EPOCHS

POLL_SECONDS = 0.25
"""Time between two looks at the tables."""

PAGE_SECONDS_MAX = 60.0
"""Longest time that a request to the page `/wait` waits."""


@dataclass(frozen=True)
class AppliedRow:
    """What the tables say about one row of an instance's log."""

    instance: str
    lsn: int
    is_applied: bool
    settled_lsn: int
    """The lsn up to which the instance's rows were applied or never will be; 0 if the tables have none of them."""
    epoch: int | None
    """The first epoch whose tables have the row, as far as `_vclock` still says; None if it is not applied."""


def instance_uuid(reader: InstanceIdReader, global_id: int) -> str:
    """Return the uuid of the instance with a global id; raise ConfigurationError if there is none."""
    uuid = reader.cluster.instance_uuids.get(global_id)
    if uuid is None:
        raise ConfigurationError(
            f"no instance has the global id {global_id}", advice="see `aggregator cluster show`"
        )
    return uuid


def applied_row(location: WarehouseLocation, instance: str, lsn: int) -> AppliedRow:
    """Return whether the row `lsn` of an instance is in the tables of the newest epoch.

    An instance that has had several replica ids is asked about with the one that it got last.
    """
    return _row_in(InstanceIdReader(location), instance, lsn)


def _row_in(reader: InstanceIdReader, instance: str, lsn: int) -> AppliedRow:
    waiting = AppliedRow(instance, lsn, is_applied=False, settled_lsn=0, epoch=None)
    global_id = reader.cluster.global_ids.get(instance)
    entries = [
        entry
        for rows in reader.applier_maps.values()
        for entry in rows
        if entry.global_id == global_id and entry.source is None
    ]
    if global_id is None or not entries:
        return waiting
    current = max(entries, key=lambda entry: (not entry.expelled, entry.epoch, entry.since_lsn))
    key = (current.replicaset_id, current.local_id)
    reached = [
        (one.epoch, one.lsn)
        for one in reader.all_vclock_components
        if (one.replicaset_id, one.local_id) == key
    ]
    settled = max((settled_lsn for _, settled_lsn in reached), default=0)
    epochs = [epoch for epoch, settled_lsn in reached if settled_lsn >= lsn]
    return AppliedRow(instance, lsn, bool(epochs), settled, min(epochs, default=None))


@dataclass
class AppliedRows:
    """The newest epoch of a warehouse: all questions about its rows share one look at the tables."""

    location: WarehouseLocation
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _epochs: tuple[str, int] | None = None
    """The id and the version of the table `_epochs` that `_reader` has read."""
    _looked_at: float = 0.0
    _reader: InstanceIdReader | None = None

    def wait(
        self, instance: str, lsn: int, timeout_seconds: float, sleep: Callable[[float], None] = time.sleep
    ) -> AppliedRow:
        """Wait until a row is in the tables, or the time is over; return what the tables say then.

        The tables are read again only after a new epoch. An instance that they do not know yet is waited for as well.
        """
        deadline, seen = time.monotonic() + timeout_seconds, None
        row = AppliedRow(instance, lsn, is_applied=False, settled_lsn=0, epoch=None)
        while True:
            reader = self._newest()
            if reader is not None and reader is not seen:
                with self._lock:
                    seen, row = reader, _row_in(reader, instance, lsn)
            left = deadline - time.monotonic()
            if row.is_applied or left <= 0:
                return row
            sleep(min(POLL_SECONDS, left))

    def page(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Return the page `/wait?instance=UUID&lsn=N&timeout=SECONDS`; ValueError: the client's mistake."""
        try:
            instance, lsn = str(UUID(parameters["instance"])), int(parameters["lsn"])
            timeout = min(float(parameters.get("timeout", 0)), PAGE_SECONDS_MAX)
        except (KeyError, ValueError) as error:
            raise ValueError("wanted: /wait?instance=UUID&lsn=N&timeout=SECONDS") from error
        return asdict(self.wait(instance, lsn, timeout))

    def _newest(self) -> InstanceIdReader | None:
        """Return the reader of the newest epoch, the same until there is a newer one; None if there is none."""
        with self._lock:
            if not self._is_newest():
                epochs = self.location.open(EPOCHS)
                key = None if epochs is None else (str(epochs.metadata().id), epochs.version())
                if key != self._epochs:
                    self._epochs, self._reader = key, None if key is None else InstanceIdReader(self.location)
                self._looked_at = time.monotonic()
            return self._reader

    def _is_newest(self) -> bool:
        """Return whether the last look is not old, and there is no later version since."""
        if self._epochs is None:
            return False
        is_recent = time.monotonic() - self._looked_at < POLL_SECONDS
        return is_recent and not self.location.may_have(EPOCHS, self._epochs[1] + 1)
