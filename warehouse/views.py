"""SQL statements that create views: the instance that wrote each row, and the tables as of one epoch.

The module only returns text, without Spark; `spark-sql -f`, beeline or a session runs it. The views are in databases of
their own, since every name without a leading `_` may be a space's: `<database>_views`, and `<database>_epoch_<n>` or
`<database>_at_<label>` for each epoch. Not here: which tables and epochs exist (`warehouse.delta.newest_epoch`).
"""

from collections.abc import Iterator, Mapping, Sequence

WHO_WROTE_VIEW = "who_wrote"

VERSION_AGE_CHECK = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
"""The setting of Spark by which Delta refuses to read versions beyond an age. It must be false in a session that reads
views of epochs: an epoch may name an old version of a seldom written table, whose files maintenance keeps."""


def quoted(name: str) -> str:
    """Return a name as a quoted identifier of Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a text as a literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def table_statements(root: str, database: str, tables: Sequence[str]) -> Iterator[str]:
    """Yield the statements that register tables in a catalog, if they are not registered yet."""
    yield f"CREATE DATABASE IF NOT EXISTS {quoted(database)} LOCATION {literal(root)}"
    for table in tables:
        name = f"{quoted(database)}.{quoted(table)}"
        yield f"CREATE TABLE IF NOT EXISTS {name} USING DELTA LOCATION {literal(f'{root}/{table}')}"


def who_wrote_statements(database: str, spaces: Sequence[str]) -> Iterator[str]:
    """Yield the statements of a view that names the instance and the replicaset from which each table's row comes.

    The view's columns: `space` (the table), `key`, `origin` (instance uuid, null if a snapshot does not name it),
    `replicaset` (the replicaset's last leader, which is the source that is read), `replicaset_uuid`, `replicaset_id`,
    `global_id`, `lsn`, `timestamp`, `created` (the table's `_created`). For a row that a policy made from several
    versions (its table has a negative replicaset id), all columns describe the instance that wrote last.
    """
    views = quoted(f"{database}_views")
    yield f"CREATE DATABASE IF NOT EXISTS {views}"
    if not spaces:
        return
    columns = "_key, _global_id, abs(_replicaset_id) AS _replicaset_id, _lsn, _timestamp, _created"
    rows = "\n  UNION ALL ".join(
        f"SELECT {literal(space)} AS space, {columns} FROM {quoted(database)}.{quoted(space)}"
        for space in spaces
    )
    own = quoted(database)
    yield (
        f"CREATE OR REPLACE VIEW {views}.{WHO_WROTE_VIEW} AS\n"
        f"WITH held AS (\n  {rows}\n), replicasets AS (\n"
        f"  SELECT replicaset_id, max(replicaset_uuid) AS uuid FROM {own}._cluster GROUP BY replicaset_id\n"
        "), leaders AS (\n"
        "  SELECT uuid, max_by(entry.leader, epoch) AS leader FROM (\n"
        "    SELECT epoch, explode(from_json(get_json_object(end_offset, '$.replicasets'),\n"
        "                                    'map<string, struct<leader: string>>')) AS (uuid, entry)\n"
        f"    FROM {own}._epochs WHERE end_offset IS NOT NULL\n"
        "  ) GROUP BY uuid\n"
        ")\n"
        "SELECT h.space, h._key AS key, c.uuid AS origin, l.leader AS replicaset,\n"
        "       r.uuid AS replicaset_uuid, h._replicaset_id AS replicaset_id, h._global_id AS global_id,\n"
        "       h._lsn AS lsn, h._timestamp AS timestamp, h._created AS created\n"
        f"FROM held h LEFT JOIN {own}._cluster c ON c.global_id = h._global_id\n"
        "LEFT JOIN replicasets r ON r.replicaset_id = h._replicaset_id LEFT JOIN leaders l ON l.uuid = r.uuid"
    )


def epoch_statements(root: str, database: str, suffix: str, versions: Mapping[str, int]) -> Iterator[str]:
    """Yield the statements of a database of views, `<database>_<suffix>`: one view per table of an epoch.

    Spark takes only literals as versions, so each table needs a view.
    """
    views = quoted(f"{database}_{suffix}")
    yield f"CREATE DATABASE IF NOT EXISTS {views}"
    for table, version in sorted(versions.items()):
        path = quoted(f"{root}/{table}")
        yield f"CREATE OR REPLACE VIEW {views}.{quoted(table)} AS SELECT * FROM delta.{path} VERSION AS OF {version}"
