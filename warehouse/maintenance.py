"""VACUUM of the warehouse's tables, and Delta's retention properties; for the holder of the writer lock.

VACUUM removes files that no version within the retention needs, and never those of the newest version.

An epoch is read at the table versions that it names, so their files and log entries must exist as long as the epoch is
kept. Delta forgets removed files after `delta.deletedFileRetentionDuration` (7 days by default), and VACUUM removes a
forgotten file by its age alone; log entries are removed after `delta.logRetentionDuration` (30 days). So both durations
must be at least as long as epochs are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from warehouse.warehouse import Warehouse

FILES, LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
DEFAULTS: Mapping[str, int] = {FILES: 7, LOG: 30}
"""Delta's own retentions, in days."""

_DAYS = {"day": 1.0, "days": 1.0, "week": 7.0, "weeks": 7.0}

_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_SPARKS_DEFAULT = "10000"


def keep(warehouse: Warehouse, table: str, days: int) -> bool:
    """Have Delta keep a table's removed files for a number of days, and its log as long, but at least 30 days.

    Retentions in other units than days and weeks were set by somebody else, and stay.

    Returns
    -------
    bool
        Whether the table was changed.

    """
    current = {name: retention_days(name, warehouse.property(table, name)) for name in DEFAULTS}
    wanted = {FILES: days, LOG: max(days, DEFAULTS[LOG])}
    changed = [name for name, kept in current.items() if kept is not None and kept != wanted[name]]
    if not changed:
        return False
    values = {name: f"interval {wanted[name]} days" for name in changed}
    warehouse.open_tables.set_properties(table, values)
    return True


def retention_days(name: str, text: str | None) -> float | None:
    """Return the days of a retention property; None if it is in other units than days and weeks.

    Parameters
    ----------
    name : str
        The property.
    text : str or None
        Its value, such as `interval 30 days`; None if it is not set.

    """
    if text is None:
        return DEFAULTS[name]
    words = text.lower().removeprefix("interval").split()
    if len(words) == 2 and words[1] in _DAYS and words[0].isdigit():
        return int(words[0]) * _DAYS[words[1]]
    return None


def vacuum(warehouse: Warehouse, table: str, hours: float) -> None:
    """Remove files that no version of the last `hours` needs.

    Delta lists a table's files in as many tasks as a setting of Spark says. Its default of 10,000 is lowered here.
    """
    settings = warehouse.session.conf
    before = settings.get(_LISTING_TASKS) or ""
    if before == _SPARKS_DEFAULT:
        settings.set(_LISTING_TASKS, "32")
    try:
        warehouse.delta(table).vacuum(hours)
    finally:
        settings.set(_LISTING_TASKS, before)
