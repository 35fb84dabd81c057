"""Parses the JSON path of an index part, `.city`, `["a b"]` or `[1].x`, to steps into a tuple.

`udfs.operations.json_path` has the syntax; `udfs.keys.kernels.keys` follows a path through a tuple.
"""

from __future__ import annotations

from schemas.errors import TupleError, UnsupportedError
from udfs.operations.json_path import ANY, NUMBER, Lexer


def parse_path(path: str, space: str) -> tuple[int | bytes, ...]:
    """Return the steps of a path: 0-based indexes of arrays, and keys of maps.

    Parameters
    ----------
    path : str
        As in the index's definition.
    space : str
        Name of the space, for the error.

    Raises
    ------
    UnsupportedError
        It is not a valid path, or has `[*]`, which a primary key cannot have.

    """
    lexer = Lexer(path.encode())
    steps: list[int | bytes] = []
    while not lexer.at_end:
        try:
            token = lexer.next()
        except TupleError as error:
            raise UnsupportedError(
                f"the JSON path {path} of an index part is not valid", space=space
            ) from error
        if token.kind == ANY:
            raise UnsupportedError(f"the JSON path {path} of an index part has many values", space=space)
        steps.append(token.index if token.kind == NUMBER else token.key)
    return tuple(steps)
