r"""Parses and formats the greeting that a server sends first (128 bytes), and computes the answer to its challenge.

    [0:63]    `Tarantool 2.6.0 (Binary) <instance uuid>`, padded with spaces
    [63]      \n
    [64:108]  base64 of a salt of 32 bytes; only the first 20 are used
    [127]     \n

chap-sha1: scramble = sha1(password) ^ sha1(salt + sha1(sha1(password))).

Source: `greeting_decode` in Tarantool's `src/box/xrow.c`, `scramble_prepare` in `src/scramble.c`. No I/O.
"""

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass

from schemas.errors import ProtocolError

GREETING_SIZE = 128
LINE_SIZE = 64
"""Bytes of each of the greeting's two lines."""
SALT_SIZE, SALT_TEXT_SIZE = 32, 44
SCRAMBLE_SIZE = 20

_FIRST_LINE = re.compile(
    r"Tarantool (\d+)\.(\d+)(?:\.(\d+))?\S* \(Binary\) "
    r"([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}) *\n",
    re.ASCII,
)


@dataclass(frozen=True)
class Greeting:
    """A parsed greeting of a server."""

    version: tuple[int, int, int]
    """The server's version: (major, minor, patch)."""
    instance_uuid: str
    """The server's instance uuid, in lower case."""
    salt: bytes
    """32 bytes, new for each connection."""


def parse_greeting(data: bytes) -> Greeting:
    """Parse the 128 bytes of a greeting; raise ProtocolError if another service or a console has sent them."""
    text = data[:LINE_SIZE].decode("ascii", errors="replace")
    match = _FIRST_LINE.fullmatch(text)
    if len(data) != GREETING_SIZE or match is None:
        advice = "name the port of box.cfg.listen, not a console's"
        raise ProtocolError(f"no greeting of Tarantool's binary protocol: {data[:32]!r}", advice=advice)
    try:
        salt = base64.b64decode(data[LINE_SIZE : LINE_SIZE + SALT_TEXT_SIZE], validate=True)
    except (binascii.Error, ValueError):
        salt = b""
    if len(salt) < SCRAMBLE_SIZE:
        raise ProtocolError("the greeting has no salt")
    version = (int(match[1]), int(match[2]), int(match[3] or 0))
    return Greeting(version, match[4].lower(), salt)


def format_greeting(greeting: Greeting) -> bytes:
    """Encode a greeting in its 128 bytes."""
    version = ".".join(map(str, greeting.version))
    line = f"Tarantool {version} (Binary) {greeting.instance_uuid}".ljust(LINE_SIZE - 1) + "\n"
    salt = base64.b64encode(greeting.salt).decode().ljust(LINE_SIZE - 1) + "\n"
    return (line + salt).encode("ascii")


def scramble(password: str, salt: bytes) -> bytes:
    """Return the 20 bytes by which a client proves that it knows a password, for the salt of a greeting."""
    once = hashlib.sha1(password.encode()).digest()
    twice = hashlib.sha1(once).digest()
    mask = hashlib.sha1(salt[:SCRAMBLE_SIZE] + twice).digest()
    return bytes(a ^ b for a, b in zip(once, mask, strict=True))


def scramble_matches(received: bytes, password: str, salt: bytes) -> bool:
    """Return whether a scramble was computed from this password and salt; the comparison takes constant time."""
    return hmac.compare_digest(received, scramble(password, salt))
