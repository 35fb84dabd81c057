"""The SQL queries of the report page over the tables of one epoch.

`{changelog}` stands for the table `_changelog` at the epoch's version. Each result is small even for large tables: it
is grouped, or limited to `LIMIT` rows with the total number in the column `whole`. `observe.report.facts` runs the
queries.
"""

from __future__ import annotations

from schemas.states import GapState, RowState

LIMIT = 200
"""Maximum rows of a table on the page, which also shows the total number."""

EXAMPLES = 2
"""Maximum number of shown conflicts per space and pair of replicasets."""

INSTANCES = """
WITH moved AS (
  SELECT replicaset_id, local_id, max_by(lsn, epoch) AS lsn FROM {vclock} WHERE local_id > 0 GROUP BY ALL
)
SELECT c.replicaset_id, c.replicaset_uuid, c.local_id, c.global_id, c.uuid, c.first_seen, c.expelled_at, m.lsn
FROM {cluster} c LEFT JOIN moved m ON m.replicaset_id = c.replicaset_id AND m.local_id = c.local_id
ORDER BY c.replicaset_id, c.local_id, c.global_id"""

APPLIER_MAP = """
SELECT DISTINCT replicaset_id, source, local_id, global_id, since_lsn FROM {applier_map}
ORDER BY replicaset_id, source, local_id, since_lsn"""

# Replicaset 0 is the aggregator itself, which has no source.
SOURCES = f"""
SELECT source, replicaset_id, count(*) AS rows, count_if(state = '{RowState.ROLLED_BACK}') AS rolled_back,
       min(timestamp) FILTER (WHERE file LIKE '%.xlog') AS oldest,
       max(timestamp) FILTER (WHERE file LIKE '%.xlog') AS newest
FROM {{changelog}} WHERE replicaset_id > 0 GROUP BY source, replicaset_id ORDER BY replicaset_id, source"""

ROWS_OVER_TIME = """
SELECT source, timestamp_millis(unix_millis(timestamp) DIV {bucket} * {bucket}) AS at, count(*) AS rows
FROM {changelog} WHERE replicaset_id > 0 AND file LIKE '%.xlog' AND timestamp IS NOT NULL
GROUP BY ALL ORDER BY ALL"""
"""`{bucket}` is the duration of a point in milliseconds. Rows of snapshots have no time."""

LAG_OVER_TIME = """
WITH held AS (
  SELECT epoch, source, max(timestamp) AS newest FROM {changelog}
  WHERE replicaset_id > 0 AND file LIKE '%.xlog' GROUP BY ALL
)
SELECT h.source, timestamp_millis(unix_millis(e.committed_at) DIV {bucket} * {bucket}) AS at,
       max(timestampdiff(MILLISECOND, h.newest, e.committed_at)) / 1000 AS lag
FROM held h JOIN {epochs} e ON e.epoch = h.epoch GROUP BY ALL ORDER BY ALL"""
"""The lag of a batch is the age of a source's newest row when the batch was committed."""

EPOCHS = """
SELECT count(*) AS epochs, min(committed_at) AS first, max(committed_at) AS last, sum(rows) AS rows FROM {epochs}"""

CONFLICTS = """
SELECT space, kind, policy, sequence, winner_replicaset_id AS winner, loser_replicaset_id AS loser,
       count(*) AS conflicts, count(*) OVER () AS whole,
       min(coalesce(winner_timestamp, loser_timestamp, decided_at)) AS first,
       max(coalesce(winner_timestamp, loser_timestamp, decided_at)) AS last
FROM {conflicts} GROUP BY ALL ORDER BY conflicts DESC, space, winner, loser LIMIT """ + str(LIMIT)

CONFLICTS_OVER_TIME = """
SELECT space, timestamp_millis(unix_millis(coalesce(winner_timestamp, loser_timestamp, decided_at)) DIV {bucket}
       * {bucket}) AS at, count(*) AS conflicts
FROM {conflicts} GROUP BY ALL ORDER BY ALL"""

CONFLICT_EXAMPLES = f"""
SELECT space, winner_replicaset_id AS winner, loser_replicaset_id AS loser, key, policy, sequence, note,
       winner_tuple, winner_timestamp, winner_lsn, loser_tuple, loser_timestamp, loser_lsn
FROM (SELECT *, row_number() OVER (PARTITION BY space, winner_replicaset_id, loser_replicaset_id
                                   ORDER BY epoch DESC, key, loser_lsn) AS place FROM {{conflicts}})
WHERE place <= {EXAMPLES} ORDER BY space, winner, loser, place LIMIT {LIMIT}"""

GAPS = f"""
SELECT replicaset_id, source, local_id, first_lsn, last_lsn, kind, min(found_at) AS found_at,
       max_by(state, epoch) AS state, max_by(file, epoch) AS file, count(*) OVER () AS whole
FROM {{gaps}} GROUP BY replicaset_id, source, local_id, first_lsn, last_lsn, kind
ORDER BY state = '{GapState.OPEN}' DESC, found_at DESC, replicaset_id, local_id, first_lsn LIMIT {LIMIT}"""

QUARANTINE = f"""
SELECT replicaset_id, space, left(reason, 400) AS reason, count(*) AS rows, min(epoch) AS first_epoch,
       max(epoch) AS last_epoch, max_by(lsn, epoch) AS lsn, max_by(file, epoch) AS file, count(*) OVER () AS whole
FROM {{quarantine}} GROUP BY replicaset_id, space, left(reason, 400)
ORDER BY rows DESC, replicaset_id, space, reason LIMIT {LIMIT}"""

PENDING = f"""
SELECT replicaset_id, source, reason, count(*) AS rows, min(timestamp) AS oldest, count(*) OVER () AS whole
FROM {{pending}} GROUP BY replicaset_id, source, reason
ORDER BY rows DESC, replicaset_id, source, reason LIMIT {LIMIT}"""

SPACES = """
WITH versions AS (
  SELECT *, row_number() OVER (PARTITION BY replicaset_id, space_id ORDER BY epoch DESC) = 1 AS newest FROM {schema}
)
SELECT name, table_name, engine, format, primary_key, state, min(epoch) AS since_epoch,
       sort_array(collect_set(replicaset_id)) AS replicasets,
       sort_array(collect_set(CASE WHEN newest THEN replicaset_id END)) AS now
FROM versions GROUP BY name, table_name, engine, format, primary_key, state
ORDER BY name, since_epoch, table_name, state LIMIT 2000"""

REQUESTS = """
SELECT kind, arguments, max_by(state, changed_at) AS state, min(asked_at) AS asked_at,
       max_by(message, changed_at) AS message
FROM {requests} GROUP BY request, kind, arguments ORDER BY asked_at DESC LIMIT 20"""

VALIDATIONS = """
WITH results AS (
  SELECT *, row_number() OVER (PARTITION BY table, expectation ORDER BY validated_at DESC) = 1 AS newest
  FROM {validations}
)
SELECT validated_at, table, expectation, holds, rows, unexpected, examples, error
FROM results WHERE newest ORDER BY holds, validated_at DESC, table, expectation LIMIT 2000"""
