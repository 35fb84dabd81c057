"""The rows of the system spaces that a new replica needs (the data dictionary), as in a snapshot.

A server that joins creates a few system spaces by itself and learns the others from `_space` and `_index`. These rows
are the minimum with which servers of 2.11 and 3.x start, follow, and offer `box.space`, `box.schema` and users.
They are as a server of version 2.11 writes them, the oldest server that may follow; newer ones read them too.

Source: `box.space._space:pairs()` and `box.space._index:pairs()` on a new server of 2.11 (`src/box/schema_def.h` names
the ids). `pipeline.replication_out.definitions` adds the users' spaces.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from schemas.iproto import SystemSpace

SERVER_VERSION = (2, 11, 1)
"""Version of Tarantool that wrote these rows; a newer server asks for `box.schema.upgrade()` only when it changes the
schema."""

ADMIN, GUEST, PUBLIC, REPLICATION, SUPER = 1, 0, 2, 3, 31
"""Ids of the users and roles that every server has."""

READ, WRITE, EXECUTE, SESSION, USAGE = 1, 2, 4, 8, 16
ALL_PRIVILEGES = 2**32 - 1
"""Privileges, as bits (`src/box/user_def.h`)."""

_SEQUENCE_FORMAT = (
    "id:unsigned owner:unsigned name:string step:integer min:integer max:integer start:integer "
    "cache:integer cycle:boolean"
)
_COLLATION_FORMAT = "id:unsigned name:string owner:unsigned type:string locale:string opts:map"
_SPACE_FORMAT = (
    "id:unsigned owner:unsigned name:string engine:string field_count:unsigned flags:map format:array"
)
_INDEX_FORMAT = "id:unsigned iid:unsigned name:string type:string opts:map parts:array"
_FUNCTION_FORMAT = (
    "id:unsigned owner:unsigned name:string setuid:unsigned language:string body:string routine_type:string "
    "param_list:array returns:string aggregate:string sql_data_access:string is_deterministic:boolean "
    "is_sandboxed:boolean is_null_call:boolean exports:array opts:map comment:string created:string "
    "last_altered:string"
)
_USER_FORMAT = (
    "id:unsigned owner:unsigned name:string type:string auth:map auth_history:array last_modified:unsigned"
)
_PRIVILEGE_FORMAT = "grantor:unsigned grantee:unsigned object_type:string object_id:scalar privilege:unsigned"
_SPACE_SEQUENCE_FORMAT = "id:unsigned sequence_id:unsigned is_generated:boolean field:unsigned path:string"

_SPACES: tuple[tuple[int, str, str, Mapping[str, Any], str], ...] = (
    (
        257,
        "_vinyl_deferred_delete",
        "blackhole",
        {"group_id": 1},
        "space_id:unsigned lsn:unsigned tuple:array",
    ),
    (272, "_schema", "memtx", {}, "key:string value:any?"),
    (276, "_collation", "memtx", {}, _COLLATION_FORMAT),
    (277, "_vcollation", "sysview", {}, _COLLATION_FORMAT),
    (280, "_space", "memtx", {}, _SPACE_FORMAT),
    (281, "_vspace", "sysview", {}, _SPACE_FORMAT),
    (284, "_sequence", "memtx", {}, _SEQUENCE_FORMAT),
    (285, "_sequence_data", "memtx", {}, "id:unsigned value:integer"),
    (286, "_vsequence", "sysview", {}, _SEQUENCE_FORMAT),
    (288, "_index", "memtx", {}, _INDEX_FORMAT),
    (289, "_vindex", "sysview", {}, _INDEX_FORMAT),
    (296, "_func", "memtx", {}, _FUNCTION_FORMAT),
    (297, "_vfunc", "sysview", {}, _FUNCTION_FORMAT),
    (304, "_user", "memtx", {}, _USER_FORMAT),
    (305, "_vuser", "sysview", {}, _USER_FORMAT),
    (312, "_priv", "memtx", {}, _PRIVILEGE_FORMAT),
    (313, "_vpriv", "sysview", {}, _PRIVILEGE_FORMAT),
    (320, "_cluster", "memtx", {}, "id:unsigned uuid:string"),
    (328, "_trigger", "memtx", {}, "name:string space_id:unsigned opts:map"),
    (330, "_truncate", "memtx", {}, "id:unsigned count:unsigned"),
    (340, "_space_sequence", "memtx", {}, _SPACE_SEQUENCE_FORMAT),
    (341, "_vspace_sequence", "sysview", {}, _SPACE_SEQUENCE_FORMAT),
    (
        *(356, "_fk_constraint", "memtx", {}),
        "name:string child_id:unsigned parent_id:unsigned is_deferred:boolean match:string on_delete:string "
        "on_update:string child_cols:array parent_cols:array",
    ),
    (
        *(364, "_ck_constraint", "memtx", {}),
        "space_id:unsigned name:string is_deferred:boolean language:str code:str is_enabled:boolean",
    ),
    (372, "_func_index", "memtx", {}, "space_id:unsigned index_id:unsigned func_id:unsigned"),
    (380, "_session_settings", "service", {"temporary": True}, "name:string value:any"),
)
"""Id, name, engine, options and fields (`name:type`, `?` if nullable) of each system space."""

_INDEX_LINES = """
272 0 primary 0:string
276 0 primary 0:unsigned
276 1 name 1:string
280 0 primary 0:unsigned
280 1 owner* 1:unsigned
280 2 name 2:string
284 0 primary 0:unsigned
284 1 owner* 1:unsigned
284 2 name 2:string
288 0 primary 0:unsigned 1:unsigned
288 2 name 0:unsigned 2:string
296 0 primary 0:unsigned
296 1 owner* 1:unsigned
296 2 name 2:string
304 0 primary 0:unsigned
304 1 owner* 1:unsigned
304 2 name 2:string
312 0 primary 1:unsigned 2:string 3:scalar
312 1 owner* 0:unsigned
312 2 object* 2:string 3:scalar
320 0 primary 0:unsigned
320 1 uuid 1:string
328 0 primary 0:string
328 1 space_id* 1:unsigned
330 0 primary 0:unsigned
340 0 primary 0:unsigned
340 1 sequence* 1:unsigned
356 0 primary 0:string 1:unsigned
356 1 child_id* 1:unsigned
364 0 primary 0:unsigned 1:string
372 0 primary 0:unsigned 1:unsigned
372 1 fid* 2:unsigned
380 0 primary 0:string
"""
"""Of each index: space id, index id, name (`*`: not unique), and the parts as `field:type`."""

_SPACE_BY_VIEW = {277: 276, 281: 280, 286: 284, 289: 288, 297: 296, 305: 304, 313: 312, 341: 340}
"""Views of system spaces (with the rows that the reader may see), which have the same indexes as their spaces."""

COLLATIONS: tuple[tuple[Any, ...], ...] = (
    (0, "none", ADMIN, "BINARY", "", {}),
    (1, "unicode", ADMIN, "ICU", "", {"strength": "tertiary"}),
    (2, "unicode_ci", ADMIN, "ICU", "", {"strength": "primary"}),
    (3, "binary", ADMIN, "BINARY", "", {}),
)

_USERS = (
    (GUEST, "guest", "user"),
    (ADMIN, "admin", "user"),
    (PUBLIC, "public", "role"),
    (REPLICATION, "replication", "role"),
    (SUPER, "super", "role"),
)

_PRIVILEGES = (
    (GUEST, "role", PUBLIC, EXECUTE),
    (GUEST, "universe", 0, SESSION | USAGE),
    (ADMIN, "universe", 0, ALL_PRIVILEGES),
    *((PUBLIC, "space", view, READ) for view in _SPACE_BY_VIEW),
    (PUBLIC, "space", int(SystemSpace.TRUNCATE), WRITE),
    (PUBLIC, "space", 380, READ | WRITE),
    (REPLICATION, "universe", 0, READ),
    (REPLICATION, "space", int(SystemSpace.CLUSTER), WRITE),
    (SUPER, "universe", 0, ALL_PRIVILEGES),
)
"""(grantee, type of the object, its id, privileges as bits)."""


def space_tuples() -> Iterator[list[Any]]:
    """Yield the rows of `_space` of the system spaces."""
    for id_, name, engine, flags, fields in _SPACES:
        yield [id_, ADMIN, name, engine, 0, dict(flags), [_parsed_field(field) for field in fields.split()]]


def index_tuples() -> Iterator[list[Any]]:
    """Yield the rows of `_index` of the system spaces."""
    by_space: dict[int, list[list[Any]]] = {}
    for line in _INDEX_LINES.split("\n"):
        if line:
            space, number, name, *parts = line.split()
            options = {"unique": not name.endswith("*")}
            index = [int(number), name.rstrip("*"), "tree", options, [_parsed_part(part) for part in parts]]
            by_space.setdefault(int(space), []).append(index)
    by_space[int(SystemSpace.SEQUENCE_DATA)] = [[0, "primary", "hash", {"unique": True}, [[0, "unsigned"]]]]
    for id_ in sorted({*by_space, *_SPACE_BY_VIEW}):
        yield from ([id_, *index] for index in by_space[_SPACE_BY_VIEW.get(id_, id_)])


def user_tuple(id_: int, name: str, kind: str, auth: Mapping[str, str] | None = None) -> list[Any]:
    """Return a row of `_user`."""
    return [id_, ADMIN, name, kind, dict(auth or {}), [], 0]


def privilege_tuple(grantee: int, object_type: str, object_id: int, privilege: int) -> list[Any]:
    """Return a row of `_priv`."""
    return [ADMIN, grantee, object_type, object_id, privilege]


def system_rows() -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield (space id, tuple) of a new server's system rows, except `_cluster`, in an order that servers accept."""
    yield SystemSpace.SCHEMA, ["version", *SERVER_VERSION]
    yield from ((SystemSpace.COLLATION, row) for row in COLLATIONS)
    yield from ((SystemSpace.SPACE, row) for row in space_tuples())
    yield from ((SystemSpace.INDEX, row) for row in index_tuples())
    yield from ((SystemSpace.USER, user_tuple(id_, name, kind)) for id_, name, kind in _USERS)
    yield from ((SystemSpace.PRIV, privilege_tuple(*row)) for row in _PRIVILEGES)


def _parsed_field(text: str) -> dict[str, Any]:
    name, _, kind = text.partition(":")
    nullable = {"is_nullable": True} if kind.endswith("?") else {}
    return {"name": name, "type": kind.rstrip("?"), **nullable}


def _parsed_part(text: str) -> list[Any]:
    field, _, kind = text.partition(":")
    return [int(field), kind]
