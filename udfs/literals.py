"""Lists that enter a plan as array literals.

As one text that Spark folds into a literal once: PySpark itself hands a list over element by element, and with a
thousand replicasets that took longer than the batch. Not here: what is looked up in them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F


def array_literal(values: Sequence[int] | Sequence[str], kind: str) -> Column:
    """Return an array.

    Parameters
    ----------
    values : sequence of int or str
    kind : str
        Spark's name of their type: `bigint`, `int`, `string`.

    """
    return F.from_json(F.lit(json.dumps(list(values))), f"array<{kind}>", {"mode": "FAILFAST"})
