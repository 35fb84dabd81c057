"""Wait until a row that a client wrote is in the tables.

Reads the tables only, without Spark; `observe.applied_rows` compares.
"""

from dataclasses import asdict

from config.deployment import Config
from jobs.runtime.output import say, say_json
from observe.applied_rows import AppliedRows, instance_uuid
from observe.instance_ids import instance_id_reader
from warehouse.delta.location import location_of


def wait(config: Config, instance: str | int, lsn: int, timeout: float, *, as_json: bool = False) -> int:
    """Print whether a row is in the tables, and since which epoch; return 1 if it is not when the time is over."""
    uuid = instance_uuid(instance_id_reader(config), instance) if isinstance(instance, int) else instance
    row = AppliedRows(location_of(config.warehouse, config.database)).wait(uuid, lsn, timeout)
    if as_json:
        say_json(asdict(row))
    elif row.is_applied:
        say(f"lsn {lsn} of {uuid} is in the tables since epoch {row.epoch}")
    else:
        say(f"lsn {lsn} of {uuid} is not in the tables: they have its rows up to lsn {row.settled_lsn}")
    return 0 if row.is_applied else 1
