"""Converts Tarantool's names of spaces and fields to names of tables and columns, by one reversible escape.

Spark's catalog accepts ASCII letters, digits and `_` in a table's name, Delta rejects spaces and some signs in a
column's, both look names up case-insensitively, and names with a leading underscore are reserved for the aggregator.
In Tarantool any printable name is legal, and `SQLT` is not `sqlt`. So:

- A name of `a-z`, `0-9`, `_` that begins with a letter does not change: nearly every name.
- Any other becomes `<readable>__<edits>`. `<readable>` has capitals in lower case and `_` in place of each character
  that is not allowed. `<edits>` describes the original, from left to right:

  ========================  ===============================================================
  `u<position>`             the letter at this position (from 0, in characters) is a capital
  `u<position>_<count>`     this many letters from there are capitals
  `x<position>_<hex>`       the characters from there on have these UTF-8 bytes; `<readable>` has `_` for each
  `d` (the first edit)      the leading `_` was added, because the name begins with a digit
  `q` (the only edit)       the name is unchanged; the suffix avoids a clash
  ========================  ===============================================================

`SQLT` is always `sqlt__u0_4`, whether or not a `sqlt` exists: the result depends only on the name.
`my-space` is `my_space__x2_2d`, `a.b` is `a_b__x1_2e`, `userName` is `username__u4`, a field `_lsn` is
`_lsn__q`, `2024` is `_2024__d`, and a space that is literally called `sqlt__u0_4` is `sqlt__u0_4__q`. No two
names have the same result, even if case is ignored, and `unescape` returns the name. Results need no quotes in SQL,
unless the name is one of its keywords.

A space whose table is masked (it hides some fields from its readers) has a second table with the exact tuples:
`_exact_<table>`. No space's own table may have that name, but the escaped name of a space `_exact_...` can end in
`__q`. So, if `<table>` ends in `__q`, the second table's name also ends in `__h` and 32 hex digits.

The table of a space that is local to one instance ends in `__l<global id>`; a table with the rows of only one
replicaset ends in `__r<replicaset id>`. A result longer than the 255 bytes that file systems allow is truncated and
ends in `__h` and 32 hex digits of the name's SHA-256; only `_schema` has the original name.
"""

import hashlib
import re
from collections.abc import Container, Iterator
from itertools import groupby

from schemas.errors import WarehouseError

NAME_MAX_BYTES = 255
"""Greatest number of bytes of a path's component in Linux file systems (`NAME_MAX`) and in object stores' tools."""

EXACT_PREFIX = "_exact_"
"""Prefix of the table with a space's exact tuples, if the space's own table is masked."""

_UNCHANGED_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CAPITALS_EDIT = r"u(?P<start>\d+)(?:_(?P<count>\d+))?"
_BYTES_EDIT = r"x(?P<at>\d+)_(?P<hex>(?:[0-9a-f]{2})+)"
_EDIT_PATTERN = re.compile(f"{_CAPITALS_EDIT}|{_BYTES_EDIT}")
_EDITS_PATTERN = re.sub(r"\?P<\w+>", "?:", f"(?:{_CAPITALS_EDIT}|{_BYTES_EDIT})+")
_ESCAPED_NAME = re.compile(rf"(?P<readable>.*)__(?P<edits>q|d|d?{_EDITS_PATTERN})", re.DOTALL)
_LOCAL_TABLE = re.compile(r"(?P<name>.*)__l(?P<global_id>\d+)", re.DOTALL)
_REPLICASET_TABLE = re.compile(r"(?P<name>.*)__r(?P<replicaset>\d+)", re.DOTALL)
_ENDS_IN_Q = re.compile(r".*__q(?:__[lr]\d+)?", re.DOTALL)
_TRUNCATED_NAME = re.compile(r".*__h[0-9a-f]{32}", re.DOTALL)


def table_name(space_name: str, local_instance: int | None = None, replicaset: int | None = None) -> str:
    """Return the name of a space's table.

    Args:
        local_instance: For a local space (`group_id` 1), the global id of its instance.
        replicaset: For a space that is not merged, the id of its replicaset.

    Returns:
        At most `NAME_MAX_BYTES` characters of `a-z`, `0-9`, `_`.
    """
    suffix = "" if local_instance is None else f"__l{local_instance}"
    suffix = suffix if replicaset is None else f"__r{replicaset}"
    name = _escape(space_name)
    if len(name) + len(suffix) <= NAME_MAX_BYTES:
        return name + suffix
    digest = "__h" + hashlib.sha256(space_name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return name[: NAME_MAX_BYTES - len(digest) - len(suffix)] + digest + suffix


def column_name(field_name: str) -> str:
    """Return the name of a field's column, escaped as in `table_name`."""
    return table_name(field_name)


def replicaset_label(uuid: str, *sources: str | None) -> str:
    """Return a replicaset's name for people: its known sources and the beginning of its uuid, `a1, a2 (09e2d221)`."""
    names = ", ".join(dict.fromkeys(source for source in sources if source is not None))
    return f"{names} ({uuid[:8]})" if names else uuid


def is_space_table(table: str) -> bool:
    """Whether a name is that of a space's table, and not that of a system table or an `_exact_` table.

    An escaped name may begin with `_` (for `2024`, or a name in Cyrillic); it then has `__`, as no system table has.
    """
    return not table.startswith("_") or ("__" in table and not table.startswith(EXACT_PREFIX))


def exact_table(table: str) -> str:
    """Return the name of the table with the exact tuples of a space whose own table is masked."""
    name = EXACT_PREFIX + table
    # `_exact__a__q` is also the table of a space `_exact__a`.
    if len(name) <= NAME_MAX_BYTES and not _ENDS_IN_Q.fullmatch(table):
        return name
    digest = "__h" + hashlib.sha256(table.encode()).hexdigest()[:32]
    return name[: NAME_MAX_BYTES - len(digest)] + digest


def table_of_exact_tuples(tables: Container[str], table: str) -> str:
    """Return the table with the exact tuples of a space: its `_exact_` table if there is one, else `table`."""
    exact = exact_table(table)
    return exact if exact in tables else table


def local_instance_of(name: str) -> int | None:
    """Return the global id in the name of a local space's table, or None."""
    match = _LOCAL_TABLE.fullmatch(name)
    return int(match["global_id"]) if match else None


def replicaset_of(name: str) -> int | None:
    """Return the replicaset id in the name of a table with the rows of one replicaset, or None."""
    match = _REPLICASET_TABLE.fullmatch(name)
    return int(match["replicaset"]) if match else None


def unescape(name: str) -> str:
    """Return the name of the space or field from which `table_name` or `column_name` made a name.

    Raises:
        WarehouseError: The name is truncated (see `_schema`), or neither function made it.
    """
    match = _LOCAL_TABLE.fullmatch(name) or _REPLICASET_TABLE.fullmatch(name)
    escaped = match["name"] if match else name
    if _TRUNCATED_NAME.fullmatch(escaped):
        raise WarehouseError("a truncated name cannot be unescaped", name=name, advice="see `_schema`")
    original = _original_name(escaped)
    if original is None or table_name(original, local_instance_of(name), replicaset_of(name)) != name:
        raise WarehouseError("not the escaped name of a space or field", name=name)
    return original


def _escape(name: str) -> str:
    if _UNCHANGED_NAME.fullmatch(name) and not any(
        p.fullmatch(name) for p in (_ESCAPED_NAME, _LOCAL_TABLE, _REPLICASET_TABLE, _TRUNCATED_NAME)
    ):
        return name
    runs = list(_character_runs(name))
    readable = "".join(text.lower() if kind in "u=" else "_" * len(text) for kind, _, text in runs)
    edits = "".join(_edit_text(*run) for run in runs)
    if readable[:1].isdigit():
        return f"_{readable}__d{edits}"
    return f"{readable}__{edits or 'q'}"


def _character_runs(name: str) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, position, text) of each run of characters; kinds: `=` allowed, `u` capitals, `x` not allowed."""
    position = 0
    for kind, group in groupby(name, _character_kind):
        text = "".join(group)
        yield kind, position, text
        position += len(text)


def _character_kind(character: str) -> str:
    if character in "abcdefghijklmnopqrstuvwxyz0123456789_":
        return "="
    return "u" if "A" <= character <= "Z" else "x"


def _edit_text(kind: str, position: int, text: str) -> str:
    if kind == "=":
        return ""
    if kind == "x":
        return f"x{position}_{text.encode('utf-8', 'surrogatepass').hex()}"
    return f"u{position}_{len(text)}" if len(text) > 1 else f"u{position}"


def _original_name(escaped: str) -> str | None:
    """Return the name from which `_escape` made a name; None if its bytes are not UTF-8."""
    match = _ESCAPED_NAME.fullmatch(escaped)
    if match is None:
        return escaped
    characters = list(match["readable"][match["edits"].startswith("d") :])
    for edit in _EDIT_PATTERN.finditer(match["edits"]):
        if edit["hex"] is None:
            start, end = int(edit["start"]), int(edit["start"]) + int(edit["count"] or 1)
            text = "".join(characters[start:end]).upper()
        else:
            start = int(edit["at"])
            try:
                text = bytes.fromhex(edit["hex"]).decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                return None
        characters[start : start + len(text)] = text
    return "".join(characters)


_UNUSABLE_IN_PATHS = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]\\|^\x00-\x1f\x7f]")


def unusable_in_path(path: str) -> str | None:
    """Return the first part of a path or URI that delta-rs does not take as it is; None if it takes all.

    It decodes `%20` once too often, and refuses the others, which no host name may have (delta-rs 1.6.6).
    """
    found = _UNUSABLE_IN_PATHS.search(path)
    return None if found is None else found.group()


def server_expectation(replicaset: str) -> str:
    """Return the expectation that a space's versions of a replicaset, by its uuid, are what its servers have."""
    return f"each key is as the servers of replicaset {replicaset} have it"
