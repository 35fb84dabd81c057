"""Show everything about one key: who changed it, when, in which transaction, and why the winner won.

Reads the tables as of the newest epoch (`observe.key_changes`), without Spark, also while a stream runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from jobs.runtime.command_line import finished
from observe.key_changes.reader import KeyChangesReader
from observe.key_changes.text import described, lines
from observe.log_rows.row_format import to_json_value
from udfs.keys.key_patterns import Value
from warehouse.place import Place


def who(place: Place, space: str, values: Sequence[Value], *, as_json: bool = False) -> int:
    """Print everything about a key; return 1 if no row has the key.

    Parameters
    ----------
    place : Place
    space : str
        Name of the space or of its table.
    values : sequence
        The values of the key.
    as_json : bool

    """
    story = KeyChangesReader(place).history(space, values)
    found = described(story)
    if as_json:
        print(json.dumps({"space": space, "key": to_json_value(list(values)), **found}, ensure_ascii=False))
    else:
        print("\n".join(lines(found)))
    if not story.changes and story.winner is None:
        finished(
            f"no row of {space} has the key {json.dumps(to_json_value(list(values)))}",
            f"aggregator cat --space {space}",
        )
        return 1
    replicasets = len({step.row["replicaset_id"] for step in story.changes})
    finished(f"{len(story.changes)} changes in {replicasets} replicasets, {len(story.decisions)} decisions")
    return 0
