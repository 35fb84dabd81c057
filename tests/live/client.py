"""A simple blocking client of Tarantool's binary protocol, for EVAL and for any request with a given body.

It is the user guest on a private unix socket, and never connects again. With `send` and `receive`, several servers can
work at the same time.

Source: Tarantool's `src/box/iproto_constants.h` and the documentation's page "Binary protocol".
"""

import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import msgpack

GREETING_SIZE = 128
EVAL = 0x08
KEY_TYPE, KEY_SYNC = 0x00, 0x01
KEY_EXPRESSION, KEY_ARGUMENTS = 0x27, 0x21
KEY_DATA, KEY_ERROR = 0x30, 0x31
ERROR_BIT = 0x8000


class TarantoolError(Exception):
    """The server's error answer.

    Args:
        code: Tarantool's error code (`src/box/errcode.h`), without the error bit.
        message: The server's text.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code
        self.message = message


def pack(value: Any) -> bytes:
    """Return a value as MessagePack; str is a string (surrogates become raw bytes), bytes a binary."""
    packed: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogateescape")
    return packed


class Connection:
    """One connection to one server.

    Args:
        path: The server's unix socket.
        timeout: Seconds that one read or write may take.
    """

    def __init__(self, path: str, timeout: float = 180.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        self._sync = 0
        try:
            self._socket.connect(path)
            self.greeting = self._read(GREETING_SIZE)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def eval(self, expression: str, *arguments: Any) -> Any:
        """Run Lua on the server and return its result: None, one value, or a list of several.

        Raises:
            TarantoolError: The Lua code raises an error.
        """
        self.send(expression, *arguments)
        return self.receive()

    def send(self, expression: str, *arguments: Any) -> None:
        """Send an EVAL without waiting; `receive` returns its result, in the order of the requests."""
        self.send_raw(EVAL, pack({KEY_EXPRESSION: expression, KEY_ARGUMENTS: list(arguments)}))

    def receive(self) -> Any:
        """Return the result of the oldest unanswered `send`."""
        values = self.receive_raw().get(KEY_DATA, [])
        return values[0] if len(values) == 1 else (values or None)

    def request(self, request_type: int, body: bytes) -> Mapping[int, Any]:
        """Send one request with an encoded body, and return the answer's body."""
        self.send_raw(request_type, body)
        return self.receive_raw()

    def send_raw(self, request_type: int, body: bytes) -> None:
        self._sync += 1
        message = pack({KEY_TYPE: request_type, KEY_SYNC: self._sync}) + body
        self._socket.sendall(b"\xce" + len(message).to_bytes(4, "big") + message)

    def receive_raw(self) -> Mapping[int, Any]:
        """Return the body of the next answer; raise `TarantoolError` if it is an error."""
        size = int.from_bytes(self._read(5)[1:], "big")
        unpacker = msgpack.Unpacker(
            strict_map_key=False, raw=False, unicode_errors="surrogateescape", max_buffer_size=0
        )
        unpacker.feed(self._read(size))
        header = unpacker.unpack()
        body: Mapping[int, Any] = next(unpacker, {})
        code = header[KEY_TYPE]
        if code & ERROR_BIT:
            raise TarantoolError(code & ~ERROR_BIT, body.get(KEY_ERROR, ""))
        return body

    def _read(self, size: int) -> bytes:
        chunks = []
        while size > 0:
            chunk = self._socket.recv(min(size, 1 << 20))
            if not chunk:
                raise ConnectionError("the server closed the connection")
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)
