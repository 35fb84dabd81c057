"""The section `lineage` of the configuration: the receiver of OpenLineage events of the stream's batches."""

from __future__ import annotations

from pydantic import model_validator

from config.values import Label, Location, Part, Url, mistake


class LineageConfig(Part):
    """OpenLineage events of each batch: START, then COMPLETE or FAIL.

    Parameters
    ----------
    namespace, job : str
        Namespace and name of the job in the events.
    file : str or None
        A file to append one event per line.
    url : str or None
        A service that accepts events, such as Marquez. Exactly one of `file` and `url` is given.
    key_env : str or None
        The environment variable with the key of that service.

    """

    namespace: Label = "tarantool"
    job: Label = "aggregate"
    file: Location | None = None
    url: Url | None = None
    key_env: Label | None = None

    @model_validator(mode="after")
    def _one_place(self) -> LineageConfig:
        if (self.file is None) == (self.url is None):
            raise mistake("names no receiver, or two; allowed: one of file, url")
        if self.key_env is not None and self.url is None:
            raise mistake("is the key of a service, but there is no url", "key_env")
        return self
