"""Reads the JSON path of an update operation token by token: `name`, `.name`, `[3]`, `["any string"]`, `[*]`.

Source: `src/lib/json/json.c` (`json_lexer_next_token`). Indexes are 1-based in paths, whatever the base of
field numbers is. A lexer works on bytes and keeps its offset, because the server compares paths by bytes and
continues from the middle of them; errors appear only when the faulty part is reached, as in the server.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from schemas.errors import TupleError, UnsupportedError

NUMBER, STRING, ANY, END = range(4)
"""Kinds of tokens."""

ER_UPDATE_FIELD = 29
"""Tarantool's error code."""

_LETTERS = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo"})
_NAME_CATEGORIES = _LETTERS | {"Nl", "Nd"}
# ICU treats some characters of these categories as alphabetic (Other_Alphabetic); Python's tables do not list them.
_UNDECIDABLE_CATEGORIES = frozenset({"Mn", "Mc", "So"})


@dataclass(frozen=True, slots=True)
class Token:
    """One step of a path: `kind` NUMBER with `index` (0-based), STRING with `key`, ANY or END."""

    kind: int
    index: int = 0
    key: bytes = b""


_END, _ANY = Token(END), Token(ANY)


def path_text(path: bytes) -> str:
    """Return a path as text for an error."""
    return path.decode("utf-8", "backslashreplace")


def invalid_path(path: bytes, position: int) -> TupleError:
    """Return the server's error for an invalid path; `position` is 1-based, in characters."""
    reason = f"Field '{path_text(path)}' UPDATE error: invalid JSON in position {position}"
    return TupleError(reason, code=ER_UPDATE_FIELD)


class Lexer:
    """Reads a path; `offset` is the byte where the next token starts, and `symbols` the characters read so far.

    Args:
        path: The path, UTF-8.
        offset: Where to start.
        base: The n of an array's first element in `[n]`: 1 in operations.
    """

    __slots__ = ("base", "offset", "path", "symbols")

    def __init__(self, path: bytes, offset: int = 0, base: int = 1) -> None:
        self.path, self.offset, self.base, self.symbols = path, offset, base, 0

    @property
    def at_end(self) -> bool:
        """Whether no token is left."""
        return self.offset >= len(self.path)

    def next(self) -> Token:
        """Return the next token.

        Raises:
            TupleError: The path is invalid here (`ER_UPDATE_FIELD`, "invalid JSON").
            UnsupportedError: A bare name has a combining mark; only ICU's tables say whether it is a letter.
        """
        if self.at_end:
            return _END
        first = self.path[self.offset]
        if first == 0x5B:  # [
            self._advance(1)
            return self._read_brackets()
        if first == 0x2E:  # .
            self._advance(1)
            if self.at_end:
                raise invalid_path(self.path, self.symbols + 1)
        elif self.offset:
            raise invalid_path(self.path, self.symbols + 1)
        return self._read_bare_name()

    def _advance(self, size: int) -> None:
        self.offset += size
        self.symbols += 1

    def _read_brackets(self) -> Token:
        if self.at_end:
            raise invalid_path(self.path, self.symbols)
        first = self.path[self.offset]
        if first in b"\"'":
            token = self._read_quoted_name(first)
        elif first == 0x2A:  # *
            self._advance(1)
            token = _ANY
        else:
            token = self._read_index()
        if self.at_end or self.path[self.offset] != 0x5D:
            raise invalid_path(self.path, self.symbols + 1)
        self._advance(1)
        return token

    def _read_quoted_name(self, quote: int) -> Token:
        self._advance(1)
        start = self.offset
        while True:
            character, size = self._peek_character()
            self._advance(size)
            if size == 1 and ord(character) == quote:
                if self.offset - 1 == start:
                    raise invalid_path(self.path, self.symbols)
                return Token(STRING, key=self.path[start : self.offset - 1])

    def _read_index(self) -> Token:
        end = self.offset
        while end < len(self.path) and 0x30 <= self.path[end] <= 0x39:
            end += 1
        if end == self.offset:
            raise invalid_path(self.path, self.symbols + 1)
        # The server counts in a C int; beyond it the number wraps.
        value = (int(self.path[self.offset : end]) + (1 << 31)) % (1 << 32) - (1 << 31)
        if value < self.base:
            raise invalid_path(self.path, self.symbols + 1)
        self.symbols += end - self.offset
        self.offset = end
        return Token(NUMBER, index=value - self.base)

    def _read_bare_name(self) -> Token:
        start = self.offset
        character, size = self._peek_character()
        self._advance(size)
        if character != "_" and unicodedata.category(character) not in _LETTERS:
            raise invalid_path(self.path, self.symbols)
        while not self.at_end:
            character, size = self._peek_character()
            category = unicodedata.category(character)
            if category in _UNDECIDABLE_CATEGORIES:
                raise UnsupportedError(
                    f"the path {self.path!r} has a bare name with {character!r}",
                    advice="write such names in brackets and quotes",
                )
            if character != "_" and category not in _NAME_CATEGORIES:
                break
            self._advance(size)
        return Token(STRING, key=self.path[start : self.offset])

    def _peek_character(self) -> tuple[str, int]:
        if self.at_end:
            raise invalid_path(self.path, self.symbols + 1)
        lead = self.path[self.offset : self.offset + 1]
        size = 1 if lead < b"\xc0" else 2 if lead < b"\xe0" else 3 if lead < b"\xf0" else 4
        try:
            return self.path[self.offset : self.offset + size].decode("utf-8"), size
        except UnicodeDecodeError:
            raise invalid_path(self.path, self.symbols + 1) from None
