"""Interprets what vshard writes to a storage's log: the space `_bucket`, and which spaces are sharded.

Sources: `vshard/storage/schema.lua` (`schema_init_0_1_15_0`, `find_sharded_spaces`) and `vshard/storage/init.lua`
(`bucket_send_xc`, `bucket_recv_xc`, `gc_bucket_in_space_xc`, `gc_bucket_process_sent_one_batch_xc`, `bucket_pin`):

- `_bucket` has the format {id unsigned, status string, destination string}. Its primary key is `id`.
- A move from A to B writes on A: REPLACE {id, sending, B}, later REPLACE {id, sent, B}; on B: INSERT {id, receiving,
  A}, then INSERTs of the tuples, then REPLACE {id, active}. Before vshard 0.1.24 B is active before A is sent; since
  then A is sent first, when B has received all tuples, and B becomes active afterwards.
- The garbage collector of A writes UPDATE status = garbage, DELETEs of the tuples, and DELETE {id} of `_bucket`. In
  older versions it leaves the state at `sent` while it deletes the tuples.
- Clients write to a bucket only while it is `active` or `pinned`. Newer versions have the state `readonly` too, in
  which a bucket still has its tuples, and a fourth field `opts`, a map with the bucket's generation.
- A space is sharded if it has an index `bucket_id` (the default of vshard's `shard_index`) whose first part is a
  number.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from schemas.errors import TupleError
from schemas.space import Space
from schemas.system_tuples import field_at, fields_of, integer_of, text_of

BUCKET_SPACE = "_bucket"
SHARD_INDEX = "bucket_id"
BUCKET_FIELDS = ("id", "status", "destination")

ACTIVE, PINNED, READONLY, SENDING, SENT, RECEIVING, GARBAGE = (
    *("active", "pinned", "readonly", "sending", "sent", "receiving", "garbage"),
)
WRITABLE_STATES = frozenset({ACTIVE, PINNED})
"""States in which clients write to a bucket."""

COLLECTED_STATES = frozenset({SENT, GARBAGE})
"""States in which only the garbage collector deletes tuples of a bucket."""

_NUMBER_TYPES = frozenset({"unsigned", "uint", "num", "integer", "int", "number"})


def is_bucket_space(space: Space) -> bool:
    """Whether a space is vshard's `_bucket`, by its name and the names of its fields."""
    return space.name == BUCKET_SPACE and tuple(one.name for one in space.fields[:3]) == BUCKET_FIELDS


class BucketRow(NamedTuple):
    """A row of `_bucket`; `peer` is the uuid of the replicaset to or from which the bucket moves."""

    id: int
    status: str
    peer: str | None


def bucket_row(fields: Sequence[Any]) -> BucketRow:
    """Return a row of `_bucket` from its fields; raise TupleError if vshard does not write such a row."""
    number = integer_of(field_at(fields, 0, "the bucket's id"), "the bucket's id")
    status = text_of(field_at(fields, 1, "the bucket's state"), "the bucket's state")
    peer = fields[2] if len(fields) > 2 else None
    return BucketRow(number, status, peer if isinstance(peer, str) else None)


def shard_field(indexes: Iterable[bytes]) -> int | None:
    """Return the 0-based field with the bucket id, from a space's rows of `_index`; None if it is not sharded."""
    for index in indexes:
        try:
            fields = fields_of(index, "a row of _index")
            if field_at(fields, 2, "the name") != SHARD_INDEX:
                continue
            part = field_at(field_at(fields, 5, "the parts"), 0, "the first part")
            field, kind = (part.get("field"), part.get("type")) if isinstance(part, dict) else part[:2]
            if isinstance(field, int) and str(kind).lower() in _NUMBER_TYPES:
                return field
        except (TupleError, TypeError, ValueError, AttributeError):
            continue
    return None
