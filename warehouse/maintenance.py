"""VACUUM and retention of the warehouse's tables, for the holder of the writer's lock.

VACUUM removes files that no version younger than its retention needs: never those of the newest one.

What an epoch names is read at its versions, so files and log must outlive it. Delta forgets removed files after
`delta.deletedFileRetentionDuration` (7 days by default), and VACUUM then takes what was forgotten by its age alone; log
entries go after `delta.logRetentionDuration` (30 days). So both must be as long as epochs are kept.
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
    """Have Delta keep removed files so many days, and the log as long, but no less than by default.

    Retentions in other units than days and weeks are somebody's own, and stay.

    Returns
    -------
    bool
        Whether the table was changed.

    """
    told = {name: retained(name, warehouse.property(table, name)) for name in DEFAULTS}
    wanted = {FILES: days, LOG: max(days, DEFAULTS[LOG])}
    other = [name for name, kept in told.items() if kept is not None and kept != wanted[name]]
    if not other:
        return False
    values = {name: f"interval {wanted[name]} days" for name in other}
    warehouse.open_tables.set_properties(table, values)
    return True


def retained(name: str, text: str | None) -> float | None:
    """Return how many days a retention is, as its property says; None where that is in other units.

    Parameters
    ----------
    name : str
        The property.
    text : str or None
        Its value, such as `interval 30 days`; None where it is not set.

    """
    if text is None:
        return DEFAULTS[name]
    words = text.lower().removeprefix("interval").split()
    if len(words) == 2 and words[1] in _DAYS and words[0].isdigit():
        return int(words[0]) * _DAYS[words[1]]
    return None


def vacuum(warehouse: Warehouse, table: str, hours: float) -> None:
    """Remove files that no version of the last `hours` needs.

    Delta lists files in as many tasks as Spark's setting says, by default 10,000 a table, however few files there are.
    """
    settings = warehouse.session.conf
    before = settings.get(_LISTING_TASKS) or ""
    if before == _SPARKS_DEFAULT:
        settings.set(_LISTING_TASKS, "32")
    try:
        warehouse.delta(table).vacuum(hours)
    finally:
        settings.set(_LISTING_TASKS, before)
