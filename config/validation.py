"""The section `validation` of the configuration: the user's expectations, and the output."""

from __future__ import annotations

from datetime import timedelta

from config.subscribe import seconds
from config.values import Interval, Location, Part


class Validation(Part):
    """How the tables are validated.

    Parameters
    ----------
    expectations : str or None
        The folder with the user's suites; None: `expectations` next to the YAML file, if it exists.
    docs : str or None
        The local folder for Data Docs; None: none are written.
    ahead : str or None
        How far a server's clock may be ahead of the validating machine's; None: times are not checked.

    """

    expectations: Location | None = None
    docs: Location | None = None
    ahead: Interval | None = "1 hour"

    def tolerance(self) -> timedelta | None:
        """Return `ahead` as a timedelta."""
        return None if self.ahead is None else timedelta(seconds=seconds(self.ahead))
