"""The section `standby` of the configuration: copies of the warehouse that the job keeps connected."""

from __future__ import annotations

from pydantic import model_validator

from config.values import Interval, Location, Part, mistake


class Standby(Part):
    """Copies that get each epoch before the next one is committed (docs/rid.md).

    Parameters
    ----------
    peers : tuple of str
        Warehouses, each like the key `warehouse`. The folder must exist; the first copy may find it empty.
    retry : str
        How long a lost peer is left alone before it is tried again.

    """

    peers: tuple[Location, ...] = ()
    retry: Interval = "1 minute"

    @model_validator(mode="after")
    def _check_distinct(self) -> Standby:
        for number, peer in enumerate(self.peers):
            if peer in self.peers[:number]:
                raise mistake(f"{peer!r} is named twice", "peers", number)
        return self
