"""The JSON path of an index part, `.city`, `["a b"]` or `[1].x`, as steps.

Syntax as of Tarantool's `src/lib/json/json.c`; indexes count from 1. `[*]` (multikey) is for secondary indexes
only and is refused. Not here: following a path through a tuple (`udfs.kernels.keys`).
"""

from __future__ import annotations

import re

from schemas.errors import UnsupportedError

_STEP = re.compile(
    r"""\[(?P<index>\d+)\] | \[(?P<quote>["'])(?P<quoted>.*?)(?P=quote)\] | \.?(?P<name>[^\[\].\s"']+)""",
    re.X,
)


def parse_path(path: str) -> tuple[int | str, ...]:
    """Return the steps of a path: an index of an array, from 0, or the key of a map.

    Raises
    ------
    UnsupportedError
        Where the path is not one that a primary key may have.

    """
    steps: list[int | str] = []
    place = 0
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None or step["index"] == "0" or step["name"] == "*":
            raise UnsupportedError(f"the JSON path {path} of an index part is not supported")
        if step["index"] is not None:
            steps.append(int(step["index"]) - 1)
        else:
            steps.append(step["quoted"] if step["quote"] is not None else step["name"])
        place = step.end()
    return tuple(steps)
