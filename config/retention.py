"""The section `retention` of the configuration: how long the aggregator's own tables keep old rows.

By default nothing is removed. `jobs/maintain.py` removes old rows, except those that could still be needed
(`pipeline.retention`, docs/operation.md).
"""

from __future__ import annotations

from pydantic import Field, model_validator

from config.values import Days, Part, Uuid, mistake

LIMITED_BY_EPOCHS = ("tombstones", "changelog", "conflicts")
"""Keys that must not be longer than `epochs`, since the ages of their rows are measured by the times of epochs."""


class Retention(Part):
    """How long the aggregator's own tables keep old rows; null keeps them for ever.

    Parameters
    ----------
    tombstones : int or None
        Days after which a deleted key is removed from `_versions`. They are counted from the deletion to the time up to
        which the log of the slowest replicaset was read.
    changelog : int or None
        Days from the batch that read a row until it is removed from `_changelog`.
    conflicts : int or None
        Days after which decisions are removed from `_conflicts`.
    epochs : int or None
        Days after which an epoch is removed from `_epochs`; not fewer than the others.
    pending : int
        Days after which maintenance reports rows that wait in `_pending`. They stay until they can be applied.
    batches : int
        Number of batches that the stream's checkpoint keeps; Spark itself removes older ones.
    retired : tuple of str
        Uuids of replicasets whose logs have ended: the removal of tombstones does not wait for rows of them.

    """

    tombstones: Days | None = None
    changelog: Days | None = None
    conflicts: Days | None = None
    epochs: Days | None = None
    pending: Days = 30
    batches: int = Field(default=100, ge=2)
    retired: tuple[Uuid, ...] = ()

    @property
    def depends_on_sources(self) -> bool:
        """Whether the rows to remove depend on the rows that the sources may still send."""
        return self.tombstones is not None or self.changelog is not None

    @model_validator(mode="after")
    def _check_ages(self) -> Retention:
        for name in LIMITED_BY_EPOCHS:
            days = getattr(self, name)
            if self.epochs is not None and days is not None and days > self.epochs:
                raise mistake(f"{self.epochs} days are fewer than {name}: {days} days", "epochs")
        return self
