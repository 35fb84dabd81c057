"""The section `retention` of the configuration: how long the aggregator's own tables keep old rows.

By default nothing is removed. Rows that could still be needed are kept longer; which ones, is in
`pipeline.retention`. `jobs/maintain.py` removes the others (docs/operation.md).
"""

from __future__ import annotations

from pydantic import Field, model_validator

from config.values import Days, Part, Uuid, mistake

WITHIN_EPOCHS = ("tombstones", "changelog", "conflicts")
"""Keys whose ages are counted by the times of epochs, so that these must be known as long."""


class Retention(Part):
    """How long the aggregator's own tables keep what is over; null keeps it for ever.

    Parameters
    ----------
    tombstones : int or None
        Days after which a deleted key leaves `_versions`, counted in the time of the slowest replicaset's log.
    changelog : int or None
        Days after which rows leave `_changelog`, counted from the batch that read them.
    conflicts : int or None
        Days after which decisions leave `_conflicts`.
    epochs : int or None
        Days after which an epoch leaves `_epochs`; no shorter than the others.
    pending : int
        Days after which maintenance names rows that wait in `_pending`. They stay until what they wait for comes.
    batches : int
        So many batches are kept in the stream's checkpoint; Spark removes older ones itself.
    retired : tuple of str
        Uuids of replicasets whose logs have ended: no tombstone waits for them any more.

    """

    tombstones: Days | None = None
    changelog: Days | None = None
    conflicts: Days | None = None
    epochs: Days | None = None
    pending: Days = 30
    batches: int = Field(default=100, ge=2)
    retired: tuple[Uuid, ...] = ()

    @property
    def asks_sources(self) -> bool:
        """Whether what goes depends on what the sources can still bring."""
        return self.tombstones is not None or self.changelog is not None

    @model_validator(mode="after")
    def _ordered(self) -> Retention:
        for name in WITHIN_EPOCHS:
            days = getattr(self, name)
            if self.epochs is not None and days is not None and days > self.epochs:
                raise mistake(f"{self.epochs} days are less than {name}: {days} days", "epochs")
        return self
