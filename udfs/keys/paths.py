"""The JSON path of an index part, `.city`, `["a b"]` or `[1].x`, as steps into a tuple.

Not here: the syntax (`udfs.operations.json_path`), and following a path through a tuple (`udfs.keys.kernels.keys`).
"""

from __future__ import annotations

from schemas.errors import TupleError, UnsupportedError
from udfs.operations.json_path import ANY, NUMBER, Lexer


def parse_path(path: str, space: str) -> tuple[int | bytes, ...]:
    """Return the steps of a path: an index of an array, from 0, or the key of a map.

    Parameters
    ----------
    path : str
        As in the index's definition.
    space : str
        Name of the space, for the error.

    Raises
    ------
    UnsupportedError
        Where it is not a path, or has `[*]`, which a primary key cannot have.

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
