"""How Tarantool's names of spaces and fields become names of tables and columns: one reversible escape.

Spark's catalog takes letters of ASCII, digits and `_` in a table's name, Delta refuses spaces and some signs
in a column's, both look names up without regard to case, and every name with a leading underscore is the
aggregator's own. In Tarantool any printable name is legal, and `SQLT` is not `sqlt`. So:

- A name made of `a-z`, `0-9`, `_` that begins with a letter stays as it is: nearly every name.
- Any other becomes `<readable>__<edits>`. `<readable>` is what a reader expects: capitals in lower case,
  everything else that is not allowed as `_`. `<edits>` says, from left to right, what was there:

  ========================  ===============================================================
  `u<position>`             the letter at this position (from 0, in characters) is a capital
  `u<position>_<count>`     so many letters from there are capitals
  `x<position>_<hex>`       the UTF-8 bytes that stand from there on, one `_` a character
  `d`                       first: the `_` in front was added, since a digit leads
  `q`                       alone: the name itself, only moved out of the way
  ========================  ===============================================================

`SQLT` is always `sqlt__u0_4`, whether or not a `sqlt` exists: a name depends on nothing but itself.
`my-space` is `my_space__x2_2d`, `a.b` is `a_b__x1_2e`, `userName` is `username__u4`, a field `_lsn` is
`_lsn__q`, `2024` is `_2024__d`, and a space that is literally called `sqlt__u0_4` is `sqlt__u0_4__q`. No two
names give one result, also for a reader who ignores case, and `unescape` gives the name back. Results need no
quotes in SQL, unless the name is one of its keywords.

The exact tuples of a space whose table is masked are in a second table, `_exact_<table>`, which no escape gives (of a
table that ends in `__q`, with `__h` and 32 hex digits behind it: else an escape would).

A table of a space that is local to one instance ends in `__l<global id>`, one that holds the rows of one replicaset
alone in `__r<replicaset id>`. A result beyond the 255 bytes that
a file system takes is cut and ends in `__h` and 32 hex digits of the name's SHA-256; only `_schema` knows the
name behind it.

This module computes names only. That two spaces are *configured* to one table, the configuration refuses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterator
from itertools import groupby

from schemas.errors import WarehouseError

NAME_MAX_BYTES = 255
"""What Linux file systems and object stores' tools take as one component of a path (`NAME_MAX`)."""

EXACT = "_exact_"
"""What the table of a space's exact tuples begins with, where the space's own table is masked."""

_PLAIN = re.compile(r"[a-z][a-z0-9_]*")
_CAPITALS = r"u(?P<start>\d+)(?:_(?P<count>\d+))?"
_BYTES = r"x(?P<at>\d+)_(?P<hex>(?:[0-9a-f]{2})+)"
_EDIT = re.compile(f"{_CAPITALS}|{_BYTES}")
_EDITS = re.sub(r"\?P<\w+>", "?:", f"(?:{_CAPITALS}|{_BYTES})+")
_ESCAPED = re.compile(rf"(?P<readable>.*)__(?P<edits>q|d|d?{_EDITS})", re.DOTALL)
_LOCAL = re.compile(r"(?P<name>.*)__l(?P<global_id>\d+)", re.DOTALL)
_OF_ONE = re.compile(r"(?P<name>.*)__r(?P<replicaset>\d+)", re.DOTALL)
_MOVED = re.compile(r".*__q(?:__[lr]\d+)?", re.DOTALL)
_CUT = re.compile(r".*__h[0-9a-f]{32}", re.DOTALL)


def table_name(space_name: str, local_to: int | None = None, replicaset: int | None = None) -> str:
    """Return the name of the table that holds a space.

    Parameters
    ----------
    space_name : str
        As in `_space`, undecodable bytes as surrogates.
    local_to : int, optional
        Global id of the one instance whose local space it is (`group_id` 1).
    replicaset : int, optional
        Id of the one replicaset whose rows it holds, where the space is not merged.

    Returns
    -------
    str
        At most `NAME_MAX_BYTES` characters of `a-z`, `0-9`, `_`.

    """
    suffix = "" if local_to is None else f"__l{local_to}"
    suffix = suffix if replicaset is None else f"__r{replicaset}"
    name = _escape(space_name)
    if len(name) + len(suffix) <= NAME_MAX_BYTES:
        return name + suffix
    digest = "__h" + hashlib.sha256(space_name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return name[: NAME_MAX_BYTES - len(digest) - len(suffix)] + digest + suffix


def column_name(field_name: str) -> str:
    """Return the name of the column that holds a field: the same escape as `table_name`."""
    return table_name(field_name)


def is_of_space(table: str) -> bool:
    """Whether a table is what readers of a space see, by its name: no system table, no `_exact_` one.

    An escape may begin with `_` (of `2024`, of a name in Cyrillic), and then has `__`, which no system table has.
    """
    return not table.startswith("_") or ("__" in table and not table.startswith(EXACT))


def exact_table(table: str) -> str:
    """Return the name of the table that holds the exact tuples of a space whose own table is masked."""
    name = EXACT + table
    # `_exact__a__q` would be the table of a space `_exact__a` too.
    if len(name) <= NAME_MAX_BYTES and not _MOVED.fullmatch(table):
        return name
    digest = "__h" + hashlib.sha256(table.encode()).hexdigest()[:32]
    return name[: NAME_MAX_BYTES - len(digest)] + digest


def held_in(tables: Container[str], table: str) -> str:
    """Return which of some tables holds the exact tuples of a space: its own, unless that is masked."""
    exact = exact_table(table)
    return exact if exact in tables else table


def local_to(name: str) -> int | None:
    """Return the global id of the instance whose local space a table holds, or None."""
    match = _LOCAL.fullmatch(name)
    return int(match["global_id"]) if match else None


def replicaset_of(name: str) -> int | None:
    """Return the id of the one replicaset whose rows a table holds, or None."""
    match = _OF_ONE.fullmatch(name)
    return int(match["replicaset"]) if match else None


def unescape(name: str) -> str:
    """Return the space's or field's name behind a table's or column's name.

    Raises
    ------
    WarehouseError
        If the name was cut (see `_schema`), or is none that `table_name` or `column_name` gives.

    """
    match = _LOCAL.fullmatch(name) or _OF_ONE.fullmatch(name)
    escaped = match["name"] if match else name
    if _CUT.fullmatch(escaped):
        raise WarehouseError("a name that was too long cannot be undone", name=name, advice="see `_schema`")
    original = _undo(escaped)
    if original is None or table_name(original, local_to(name), replicaset_of(name)) != name:
        raise WarehouseError("not the escaped name of a space or field", name=name)
    return original


def _escape(name: str) -> str:
    if _PLAIN.fullmatch(name) and not any(p.fullmatch(name) for p in (_ESCAPED, _LOCAL, _OF_ONE, _CUT)):
        return name
    runs = list(_runs(name))
    readable = "".join(text.lower() if kind in "u=" else "_" * len(text) for kind, _, text in runs)
    edits = "".join(_edit(*run) for run in runs)
    if readable[:1].isdigit():
        return f"_{readable}__d{edits}"
    return f"{readable}__{edits or 'q'}"


def _runs(name: str) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, position, text): `=` stays, `u` is in capitals, `x` is not allowed at all."""
    position = 0
    for kind, group in groupby(name, _kind):
        text = "".join(group)
        yield kind, position, text
        position += len(text)


def _kind(character: str) -> str:
    if character in "abcdefghijklmnopqrstuvwxyz0123456789_":
        return "="
    return "u" if "A" <= character <= "Z" else "x"


def _edit(kind: str, position: int, text: str) -> str:
    if kind == "=":
        return ""
    if kind == "x":
        return f"x{position}_{text.encode('utf-8', 'surrogatepass').hex()}"
    return f"u{position}_{len(text)}" if len(text) > 1 else f"u{position}"


def _undo(escaped: str) -> str | None:
    match = _ESCAPED.fullmatch(escaped)
    if match is None:
        return escaped
    characters = list(match["readable"][match["edits"].startswith("d") :])
    for edit in _EDIT.finditer(match["edits"]):
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
