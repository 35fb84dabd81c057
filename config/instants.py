"""The section `instants` of the configuration: the markers at which a batch ends in all replicasets at once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from config.values import Interval, Part, mistake

RECOVERY_POINT = "_recovery_point"
"""Tarantool's own marker space, since 3.8; the position of its labels is fixed."""


class MarkerRows(Part):
    """A space whose rows mark instants.

    Parameters
    ----------
    space : str
        Name of the space in every replicaset.
    label : str, int or None
        The field with the label, by its name or its 1-based number. None only for `_recovery_point`.

    """

    space: str = Field(min_length=1)
    label: str | Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _labelled(self) -> MarkerRows:
        if (self.label is None) != (self.space == RECOVERY_POINT):
            wanted = "a field's name, or its number from 1 on"
            what = (
                f"needs a label; allowed: {wanted}"
                if self.label is None
                else "has fixed labels; allowed: none"
            )
            raise mistake(f"{self.space} {what}", "label")
        return self


class Instants(Part):
    """Instants of a sharded cluster: points with the same label in the logs of all replicasets.

    Parameters
    ----------
    markers : tuple of MarkerRows
        The spaces whose rows mark instants.
    wait : str
        How long a replicaset at a marked point waits for the others. After that it continues with a warning, and the
        point is not an instant.

    """

    markers: tuple[MarkerRows, ...] = (MarkerRows(space=RECOVERY_POINT),)
    wait: Interval = "10 minutes"

    @model_validator(mode="after")
    def _apart(self) -> Instants:
        if not self.markers:
            raise mistake("names no marker; allowed: a list of one or more", "markers")
        names = [one.space for one in self.markers]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise mistake(f"{name} is named twice", "markers", number, "space")
        return self
