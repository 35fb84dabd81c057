"""The section `metrics` of the configuration: what the stream reports about itself, and where."""

from __future__ import annotations

from typing import Literal

from config.address import Port
from config.values import Interval, Location, Part


class MetricsConfig(Part):
    """What the stream reports about itself.

    Parameters
    ----------
    status : str or None
        Where `/metrics` (Prometheus) and `/status` (JSON) are served.
    log : str or None
        Where a JSON object a line is written: a file that is appended to, or `stderr`.
    stale : str or None
        A source that leads is stale when it has given no row for so long; None: never.

    """

    status: Port | None = None
    log: Literal["stderr"] | Location | None = None
    stale: Interval | None = "10 minutes"
