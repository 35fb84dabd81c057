"""The table of policies: a new one is a module here and a line in `POLICIES`."""

from __future__ import annotations

from collections.abc import Mapping

from udfs.before_replace.policies import (
    custom,
    extremes,
    first_write_wins,
    last_write_wins,
    merge_fields,
    source_priority,
    sum_columns,
)
from udfs.before_replace.policy import PolicyKind

POLICIES: Mapping[str, PolicyKind] = {
    kind.name: kind
    for kind in (
        last_write_wins.POLICY,
        first_write_wins.POLICY,
        source_priority.POLICY,
        extremes.MAX,
        extremes.MIN,
        merge_fields.POLICY,
        sum_columns.POLICY,
        custom.POLICY,
    )
}
