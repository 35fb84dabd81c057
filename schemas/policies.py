"""The table of conflict policies: a new one is a line here, and its module in `udfs/before_replace/policies/`.

The configuration checks its keys by this table, without importing the policies; `udfs.before_replace.policies` imports
the modules that it names.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PolicyEntry:
    """One policy."""

    name: str
    module: str
    """The module in `udfs/before_replace/policies/`."""
    option: str = ""
    """The configuration key that this policy requires; empty if there is none."""
    option_help: str = ""
    """Describes the value of that key."""
    takes_deleted: bool = False
    """Whether the policy can also choose among deleted versions (`deletes: all`); false if it needs a field's value."""
    kind_name: str = "POLICY"
    """The name of the constant in `module` that is the policy's `PolicyKind`."""


LAST_WRITE_WINS = "last_write_wins"

_PRIORITY_HELP = "uuids of replicasets, or names of sources that name theirs, the first wins"

POLICIES: Mapping[str, PolicyEntry] = {
    one.name: one
    for one in (
        PolicyEntry(LAST_WRITE_WINS, "last_write_wins", takes_deleted=True),
        PolicyEntry("first_write_wins", "first_write_wins"),
        PolicyEntry("source_priority", "source_priority", "priority", _PRIORITY_HELP, takes_deleted=True),
        PolicyEntry("max", "extremes", "column", "the field whose greatest value wins", kind_name="MAX"),
        PolicyEntry("min", "extremes", "column", "the field whose least value wins", kind_name="MIN"),
        PolicyEntry("merge_fields", "merge_fields", "fields", "{field: [fields that say how new it is]}"),
        PolicyEntry("sum", "sum_fields", "columns", "the fields that are added up"),
        PolicyEntry("custom", "custom", "function", "package.module:function", takes_deleted=True),
    )
}
