"""Makes the users of subscribers. A subscriber is read-only, so its users must come with the stream.

Pure, except that it reads passwords. Source: `box.schema.user` in Tarantool's `src/box/lua/schema.lua`; `chap-sha1`
stores base64 of sha1(sha1(password)).
"""

import base64
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.replication_out.bootstrap_rows import (
    EXECUTE,
    PUBLIC,
    READ,
    SESSION,
    SUPER,
    USAGE,
    privilege_tuple,
    user_tuple,
)
from pipeline.replication_out.bootstrap_rows import GUEST as GUEST_ID
from schemas.iproto import SystemSpace
from sources.iproto.address import PasswordSource

GUEST = "guest"


@dataclass(frozen=True)
class SubscriberUser:
    """A user of the subscribers."""

    name: str
    """`guest` for the user of connections without authentication."""
    password: PasswordSource | None = None
    executes: bool = False
    """Whether the user may call functions and evaluate code."""


def user_rows(
    readers: Sequence[SubscriberUser], ids: Mapping[str, int] | None = None
) -> Iterator[tuple[SystemSpace, list[Any]]]:
    """Yield (space id, tuple) of the rows of `_user` and `_priv` for some users and, in any case, for the guest.

    Args:
        ids: The ids of existing users, by name; they keep them. A server does not drop a user who has privileges, so an
            id must not go from one user to another at once.
    """
    known = dict(ids or {})
    free = itertools.count(max(known.values(), default=SUPER) + 1)
    guest = next((reader for reader in readers if reader.name == GUEST), None)
    rights = SESSION | USAGE if guest is None else _privileges(guest)
    yield SystemSpace.PRIV, privilege_tuple(GUEST_ID, "universe", 0, rights)
    others = sorted((reader for reader in readers if reader.name != GUEST), key=lambda reader: reader.name)
    for reader in others:
        number = known[reader.name] if reader.name in known else next(free)
        auth = {} if reader.password is None else {"chap-sha1": _chap_sha1_hash(reader.password.read())}
        yield SystemSpace.USER, user_tuple(number, reader.name, "user", auth)
        yield SystemSpace.PRIV, privilege_tuple(number, "role", PUBLIC, EXECUTE)
        yield SystemSpace.PRIV, privilege_tuple(number, "universe", 0, _privileges(reader))


def _privileges(reader: SubscriberUser) -> int:
    return READ | SESSION | USAGE | (EXECUTE if reader.executes else 0)


def _chap_sha1_hash(password: str) -> str:
    once = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    return base64.b64encode(hashlib.sha1(once, usedforsecurity=False).digest()).decode()
