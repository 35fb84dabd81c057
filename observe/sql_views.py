"""Returns SQL statements that register tables by name, and views: who wrote each row, and the tables as of an epoch.

The newest epoch always has views. An epoch is refused if maintenance may have removed some of its files. The module
only reads the warehouse, without Spark. `warehouse.views` creates the statements. `dbt_source` describes the tables for
the tool dbt (`observe.dbt_sources`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from config.deployment import Config
from observe.dbt_sources import source_yaml, tables_at_epoch
from schemas.errors import ConfigurationError
from schemas.names import is_space_table, table_name
from schemas.tables import SYSTEM_TABLES
from warehouse.delta.location import WarehouseLocation, location_of
from warehouse.delta.newest_epoch import EPOCHS, NEVER_ROLLED_BACK, no_batch_error
from warehouse.delta.read import rows_of
from warehouse.system_tables.maintenance import retention_horizon
from warehouse.views import (
    VERSION_AGE_CHECK,
    WHO_WROTE_VIEW,
    epoch_statements,
    table_statements,
    who_wrote_statements,
)


def versions_by_epoch(location: WarehouseLocation) -> dict[int, Mapping[str, int]]:
    """Return each table's Delta version by epoch, 0 before its first; raise WarehouseError without epochs."""
    table = location.open(EPOCHS)
    rows = [] if table is None else rows_of(table, ["epoch", "versions"])
    if not rows:
        raise no_batch_error(location.root)
    first_versions = {
        name: 0 for name in location.tables() if name in SYSTEM_TABLES and name not in NEVER_ROLLED_BACK
    }
    return {
        int(row["epoch"]): {
            **first_versions,
            **{str(name): int(version) for name, version in row["versions"]},
        }
        for row in rows
    }


def epoch_by_instant(location: WarehouseLocation) -> dict[str, int]:
    """Return, by label of an instant of a sharded cluster, its epoch; the newest one if the label is repeated."""
    table = location.open(EPOCHS)
    if table is None or "instant" not in {field.name for field in table.schema().fields}:
        return {}
    rows = sorted(rows_of(table, ["epoch", "instant"]), key=lambda row: int(row["epoch"]))
    return {row["instant"]: int(row["epoch"]) for row in rows if row["instant"] is not None}


def refuse_old_epochs(location: WarehouseLocation, requested_epochs: Collection[int]) -> None:
    """Raise ConfigurationError if maintenance may have removed files of one of the requested epochs."""
    horizon, first = retention_horizon(location)
    old = sorted(epoch for epoch in requested_epochs if epoch < first)
    if old:
        raise ConfigurationError(
            f"epoch {', '.join(map(str, old))} may have lost files: maintenance kept what was the newest at "
            f"{horizon:%Y-%m-%d %H:%M} UTC or later",
            advice=f"ask for epoch {first} or a later one; keep more with --keep-days of `aggregator maintain`",
        )


def view_statements(
    config: Config, extra_epochs: list[int], labels: Sequence[str] = (), words: Collection[str] | None = None
) -> Iterator[str]:
    """Yield the `CREATE VIEW` statements for the tables of a warehouse.

    Args:
        labels: Labels of instants of a sharded cluster; the epochs of these instants get views, too.
        words: The words of a statement in lower case: yield only what it may name; None: all. Spark opens each table
            that it registers, so thousands of tables would take minutes.

    Raises:
        ConfigurationError: There is no such epoch or instant, or it is older than the oldest complete epoch.
    """
    location = location_of(config.warehouse, config.database)
    epochs = versions_by_epoch(location)
    missing = sorted(set(extra_epochs) - set(epochs))
    if missing:
        raise ConfigurationError(
            f"there is no epoch {', '.join(map(str, missing))}; the newest is {max(epochs)}",
            advice="see --epoch",
        )
    instants = epoch_by_instant(location)
    unknown = sorted(set(labels) - set(instants))
    if unknown:
        newest = max(instants, key=instants.__getitem__, default=None)
        raise ConfigurationError(
            f"there is no instant {', '.join(unknown)}; the newest is {newest or 'none'}", advice="see --at"
        )
    refuse_old_epochs(location, [*extra_epochs, *(instants[label] for label in labels)])
    tables = location.tables()
    spaces = [name for name in tables if is_space_table(name) and name in epochs[max(epochs)]]
    names_all_spaces = words is None or WHO_WROTE_VIEW in words
    registered = [
        name
        for name in tables
        if (not is_space_table(name) or name in spaces)
        and (names_all_spaces or words is None or name.lower() in words)
    ]
    yield from table_statements(location.root, config.database, registered)
    yield from who_wrote_statements(config.database, spaces if names_all_spaces else ())
    yield f"SET {VERSION_AGE_CHECK}=false"
    cuts = {f"epoch_{epoch}": epochs[epoch] for epoch in sorted({*extra_epochs, max(epochs)})}
    cuts |= {table_name(f"at_{label}"): epochs[instants[label]] for label in dict.fromkeys(labels)}
    for suffix, versions in cuts.items():
        is_named = words is None or f"{config.database}_{suffix}".lower() in words
        named_versions = {
            name: version
            for name, version in versions.items()
            if is_named and (words is None or name.lower() in words)
        }
        yield from epoch_statements(location.root, config.database, suffix, named_versions)


def dbt_source(config: Config) -> str:
    """Return a dbt source with the tables of the newest epoch, as YAML text."""
    location = location_of(config.warehouse, config.database)
    versions = versions_by_epoch(location)
    newest = max(versions)
    return source_yaml(config.database, newest, tables_at_epoch(location, versions[newest]))
