"""The section `metrics` of the configuration: where the stream's metrics are served and written."""

from __future__ import annotations

from typing import Literal

from config.address import Port
from config.values import Interval, Location, Part


class MetricsConfig(Part):
    """Where the stream's metrics are served and written.

    Parameters
    ----------
    status : str or None
        Address on which `/metrics` (Prometheus) and `/status` (JSON) are served.
    log : str or None
        A file, or `stderr`, to which JSON objects are appended, one per line.
    stale : str or None
        A leading source without a row for this long is stale; None: never.

    """

    status: Port | None = None
    log: Literal["stderr"] | Location | None = None
    stale: Interval | None = "10 minutes"
