"""A real Tarantool for tests: a server on a private unix socket and a plain client of its binary protocol.

For tests and for the script that makes the recordings; nothing of the project's own code is used here, so
that a fault in it cannot hide behind itself.
"""

from tests.live.client import Connection, TarantoolError
from tests.live.server import Tarantool, find_tarantool

__all__ = ["Connection", "Tarantool", "TarantoolError", "find_tarantool"]
