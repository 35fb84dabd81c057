"""The section `instants` of the configuration: at which markers a batch ends in all replicasets at once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from config.values import Interval, Part, mistake

RECOVERY_POINT = "_recovery_point"
"""Tarantool's own marker space, from 3.8 on: its labels are where Tarantool writes them."""


class MarkerRows(Part):
    """A space whose rows mark instants.

    Parameters
    ----------
    space : str
        Its name in every replicaset.
    label : str, int or None
        The field that holds the label, by its name or its number from 1 on. None for `_recovery_point` alone.

    """

    space: str = Field(min_length=1)
    label: str | Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _labelled(self) -> MarkerRows:
        if (self.label is None) != (self.space == RECOVERY_POINT):
            what = "has its labels where Tarantool writes them" if self.label is not None else "needs a label"
            raise mistake(f"{self.space} {what}; allowed: a field's name, or its number from 1 on", "label")
        return self


class Instants(Part):
    """Instants of a sharded cluster: points of one label in the logs of all replicasets.

    Parameters
    ----------
    markers : tuple of MarkerRows
        Whose rows mark them.
    wait : str
        How long a replicaset that has come to a point waits for the others. Then it reads on, with a warning, and the
        point is no instant.

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
