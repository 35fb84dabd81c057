"""Describes each column of the aggregator's tables in a sentence, for catalogs, dbt and lineage.

`schemas.tables` has the columns, and the sentences of the tables. `observe.dbt_sources` describes the columns of a
space's own fields.
"""

from collections.abc import Mapping

from schemas.iproto import SystemSpace
from schemas.tables import OWN_TABLES

TABLES: Mapping[str, str] = {
    **{name: one.description for name, one in OWN_TABLES.items()},
    "_validations": "The result of each expectation of each validation.",
    "_rid": "Which generation of the data this warehouse holds, and whether it may be written.",
}
"""Tables of every warehouse."""

SYSTEM_SPACES: Mapping[SystemSpace, str] = {
    SystemSpace.SCHEMA: "have the replicaset's uuid, before a stream begins; the version of the schema says when "
    "a newer server writes a log",
    SystemSpace.COLLATION: "nothing; an index with a collation is refused by name",
    SystemSpace.SPACE: "define, change and drop spaces: `_schema`, and the tables",
    SystemSpace.INDEX: "the primary one is the key of the table, dropping it empties the replicaset's versions; "
    "others do nothing",
    SystemSpace.FUNC: "nothing; no code of a source is run",
    SystemSpace.USER: "nothing; the tuple has the hash of a password, so keep `_changelog` as you keep the logs",
    SystemSpace.CLUSTER: "feed the maps of ids; a NOP in `_changelog`, beside the aggregator's own row",
    SystemSpace.TRUNCATE: "remove the replicaset's versions; in a snapshot nothing, since there it is no event",
    SystemSpace.RECOVERY_POINT: "nothing to a table; a point with a label may end a batch (`instants`)",
}
"""What rows of system spaces do; rows of those that are not named do nothing."""

COLUMNS: Mapping[str, str] = {
    "arguments": "Arguments of the request, as JSON.",
    "asked_at": "When the request was made.",
    "batch_id": "Spark's number of the micro-batch.",
    "body": "The whole body of the row in MessagePack, if it has more than key, tuple and operations.",
    "bucket_id": "Number of the bucket of vshard.",
    "changed": "Which of the two versions was new: winner, loser or both.",
    "changed_at": "When the state of the request changed.",
    "cleaned_at": "When maintenance removed the rows.",
    "committed_at": "When the batch was committed.",
    "created": "Time of the insertion of the key; null if the row is from a snapshot.",
    "decided_at": "When the decision was made.",
    "doubled_with": "The other replicasets in which the bucket is active; null if it is in no other.",
    "earlier": "The vclock of the rows before the row's file, from its header, as JSON.",
    "end_offset": "Offset of the stream after the batch, as JSON.",
    "engine": "Engine of the space, such as memtx.",
    "epoch": "Number of the batch that wrote the row.",
    "event": "What changed the RID.",
    "error": "Why the expectation could not be evaluated.",
    "examples": "Examples of unexpected rows, as a JSON list.",
    "expectation": "What was expected.",
    "expelled": "Whether a replicaset that did not name the instance first has removed it.",
    "executor": "driver, driver_alone (which also read the logs) or tasks processed the batch; null: not a batch.",
    "expelled_at": "When the instance was removed from its replicaset.",
    "file": "Name of the log file.",
    "first_lsn": "First lsn of the range.",
    "first_seen": "When the instance was registered here.",
    "followed": "Of a refused space: the definition of the rows that it has in its table, as JSON.",
    "format": "Format of the space, as JSON.",
    "found_at": "When the range was found.",
    "global_id": "Global id of the instance.",
    "group_id": "Group of the row: 1 is a local space.",
    "hash": "Hash of the row's body.",
    "holds": "Whether the expectation holds.",
    "index_base": "Number of the first field in operations.",
    "index_tuples": "Rows of _index, by index id.",
    "instance_uuid": "Instance whose log file the row was read from.",
    "instant": "Label of the cluster-wide instant that the tables are at; null for other epochs.",
    "is_commit": "Whether the row ends its transaction.",
    "key": "Primary key: as MessagePack in rows of a log, else in canonical form.",
    "keys": "The primary keys that the space has had since it was created, as JSON.",
    "kind": "Kind of the row.",
    "last_lsn": "Last lsn of the range.",
    "layout": "Number of the space's definition within the batch.",
    "local_id": "Replica id of the instance in its own replicaset.",
    "loser_global_id": "Global id of the instance that wrote the losing version.",
    "loser_lsn": "Lsn of the losing version.",
    "loser_replicaset_id": "Replicaset of the losing version.",
    "loser_timestamp": "Time of the losing version.",
    "loser_tuple": "Tuple of the losing version in MessagePack; null for a deletion.",
    "lsn": "Number that the instance gave to its change.",
    "message": "The result of the request.",
    "misfits": "Columns that cannot hold their values; null if the whole row was set aside.",
    "moved": "received or collected, if vshard's rebalancer made the row.",
    "name": "Name of the space.",
    "next": "Head of the generation that begins with the next epoch.",
    "number": "Number of the change of the RID.",
    "note": "A remark on the decision, such as time unknown.",
    "operations": "Operations of an UPDATE or UPSERT in MessagePack.",
    "peer": "The other side: the replicaset of a bucket that is moved, or the other copy of the warehouse.",
    "policy": "Policy that decided.",
    "position": "Byte offset of the row's block in its file.",
    "primary_key": "Parts of the primary key, as JSON.",
    "query_id": "Spark's id of the streaming query.",
    "reason": "Why the row waits or was set aside.",
    "replica_id": "Replica id in the log.",
    "replicaset_id": "The aggregator's number of the replicaset; 0 is the aggregator itself.",
    "replicaset_uuid": "Uuid of the replicaset.",
    "request": "Id of the request.",
    "rid": "The RID as text.",
    "row": "Index of the row in its block.",
    "rows": "Number of rows.",
    "run": "Id of the validation.",
    "segment": "Number of the part of the log within the batch.",
    "settings": "The configuration's spaces, policies, masks, types and sources, as JSON; null in old rows.",
    "sequence": "What decided, such as updated, timestamp or max(balance).",
    "server_version": "Version of the server whose log the row was read from.",
    "since": "When the replicaset got the bucket.",
    "since_lsn": "First lsn to which the row applies.",
    "since_replica_id": "Replica id of that lsn.",
    "source": "Name of the source, or of the file that has the expectation.",
    "space": "Table of the space.",
    "space_id": "Id of the space in its replicaset.",
    "space_tuple": "The row of _space.",
    "start_offset": "Offset of the stream before the batch, as JSON.",
    "state": "State of the row.",
    "status": "State of the bucket; null if the replicaset no longer has it.",
    "table": "Name of the table.",
    "table_name": "Table that the space goes to; null if it has none.",
    "timestamp": "Time of the row in the log, in UTC.",
    "tsn": "Lsn of the first row of the transaction.",
    "tuple": "Tuple in MessagePack.",
    "type": "Type of the row, such as INSERT.",
    "unexpected": "Number of rows for which the expectation does not hold.",
    "uuid": "Uuid of the instance.",
    "validated_at": "When the validation ran.",
    "vclock": "Settled lsns by replicaset uuid and replica id, as JSON.",
    "versions": "Version of each table after the batch.",
    "wait_ack": "Whether the transaction waits for an acknowledgement.",
    "wait_sync": "Whether the transaction waits for an earlier synchronous one.",
    "winner_global_id": "Global id of the instance that wrote the winning version.",
    "winner_lsn": "Lsn of the winning version.",
    "winner_replicaset_id": "Replicaset of the winning version; negative if a policy made the tuple.",
    "winner_timestamp": "Time of the winning version.",
    "winner_tuple": "Tuple of the winning version in MessagePack; null for a deletion.",
    "writer": "Number of the writer.",
    "writers": "Replicasets that wrote each table, as JSON.",
}
"""Columns of the tables of every warehouse, by name; a name means the same in all tables."""

VERSION_COLUMNS: Mapping[str, str] = {
    "_key": "Canonical primary key: equal bytes for keys that Tarantool's index treats as equal.",
    "_tuple": "The exact tuple in MessagePack.",
    "_global_id": "Global id of the instance that wrote the winning version; null if it is from a snapshot.",
    "_replicaset_id": "Replicaset of the winning version; negative if a policy made the tuple.",
    "_lsn": "Lsn of the winning version.",
    "_timestamp": "Time of the winning version, in UTC; null if it is from a snapshot.",
    "_created": "Time of the insertion of the key; null if it is from a snapshot.",
    "_extra": "Fields past the format, by their number.",
    "_inexact": "Columns that hold only the nearest value of their types.",
    "_misfits": "Columns that are NULL because they cannot hold their values.",
}
"""Columns that every space's table has in addition to its fields."""

UNIQUE: Mapping[str, tuple[str, ...]] = {name: one.unique for name, one in OWN_TABLES.items() if one.unique}
"""Columns with a different value in each row of their table."""
