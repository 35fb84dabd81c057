"""The section `retention` of the configuration: how long the aggregator's own tables keep old rows.

By default nothing is removed. `jobs/maintain.py` removes old rows, except those that could still be needed
(`pipeline.retention`, docs/corrections.md).
"""

from __future__ import annotations

from pydantic import Field, model_validator

from config.values import ConfigSection, Days, Uuid, mistake

LIMITED_BY_EPOCHS = ("tombstones", "changelog", "conflicts")
"""Keys that must not have more days than `epochs`, since the ages of rows are computed from the times of epochs."""


class Retention(ConfigSection):
    """How long the aggregator's own tables keep old rows; null keeps them for ever."""

    tombstones: Days | None = None
    """Days after which a deleted key is removed from `_versions`. They are counted from the deletion to the time up to
    which the log of the slowest replicaset was read."""
    changelog: Days | None = None
    """Days from the batch that read a row until it is removed from `_changelog`."""
    conflicts: Days | None = None
    """Days after which decisions are removed from `_conflicts`."""
    epochs: Days | None = None
    """Days after which an epoch is removed from `_epochs`; at least as many as for the three tables above."""
    pending: Days = 30
    """Days after which maintenance reports rows that wait in `_pending`. They stay until they can be applied."""
    batches: int = Field(default=100, ge=2)
    """Number of batches that the stream's checkpoint keeps; Spark itself removes older ones."""
    retired: tuple[Uuid, ...] = ()
    """Uuids of replicasets that were shut down and have no sources any more. Maintenance does not wait for rows of them
    before it removes tombstones."""

    @property
    def depends_on_sources(self) -> bool:
        """Whether it depends on the rows that the sources may still send, which old rows can be removed."""
        return self.tombstones is not None or self.changelog is not None

    @model_validator(mode="after")
    def _check_ages(self) -> Retention:
        for name in LIMITED_BY_EPOCHS:
            days = getattr(self, name)
            if self.epochs is not None and days is not None and days > self.epochs:
                raise mistake(f"{self.epochs} days are fewer than {name}: {days} days", "epochs")
        return self
