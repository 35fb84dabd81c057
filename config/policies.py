"""The section `policies` of the configuration: how conflicts are resolved in each space.

Checks the keys that each policy takes and needs (`schemas.policies`), after merging with `default`.
`udfs.before_replace` has the policies themselves; a job checks at its start that a custom function can be imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from uuid import UUID

from pydantic import Field, model_validator

from config.values import ConfigSection, FunctionName, mistake
from schemas.policies import LAST_WRITE_WINS, POLICIES

if TYPE_CHECKING:
    PolicyName = str
else:
    PolicyName = Literal[tuple(POLICIES)]


def uuid_or_none(text: str) -> str | None:
    """Return a uuid in its canonical text; None if the text is not a uuid."""
    try:
        return str(UUID(text))
    except ValueError:
        return None


class Policy(ConfigSection):
    """How the conflict between several replicasets' versions of a key is resolved."""

    policy: PolicyName = LAST_WRITE_WINS
    """What chooses between the versions of a key."""
    sequence: tuple[str, ...] = ()
    """Fields of the space that say which version is later; the first difference decides. If empty, the rows' timestamps
    are compared. Policies other than `last_write_wins` use it only between equals."""
    deletes: Literal["own", "all"] = "own"
    """`own`: a DELETE removes only its replicaset's own version. `all`: a DELETE competes with the versions of all
    replicasets like any other change; if the policy chooses it, the key is deleted."""
    priority: tuple[str, ...] = ()
    """For `source_priority`: uuids of replicasets, or names of sources whose `replicaset` is configured, the preferred
    one first. Replicasets that are not listed come last."""
    column: str | None = None
    """For `max` and `min`: the field to compare."""
    fields: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """For `merge_fields`: a field to the fields that say which version has its newest value."""
    columns: tuple[str, ...] = ()
    """For `sum`: the numeric fields whose values in all replicasets' versions are added up."""
    function: FunctionName | None = None
    """For `custom`: `package.module:function`, called as `function(old, new, change)`."""

    @property
    def named_fields(self) -> tuple[str, ...]:
        """Names of the space's fields that the settings of this policy refer to, without duplicates."""
        merged = [name for field, sequence in self.fields.items() for name in (field, *sequence)]
        column = () if self.column is None else (self.column,)
        return tuple(dict.fromkeys((*column, *self.columns, *merged, *self.sequence)))

    def check(self, *value_path: str | int) -> None:
        """Raise a mistake if the policy at `value_path` lacks a key that it needs, or has one that it does not take."""
        entry = POLICIES[self.policy]
        for key in filter(None, dict.fromkeys(one.option for one in POLICIES.values())):
            if key != entry.option and getattr(self, key) and key in self.model_fields_set:
                raise mistake(f"is not a key of {self.policy}", *value_path, key)
        if entry.option and not getattr(self, entry.option):
            raise mistake(f"{self.policy} needs the key {entry.option}: {entry.option_help}", *value_path)
        if self.deletes == "all" and not entry.takes_deleted:
            allowed = ", ".join(one.name for one in POLICIES.values() if one.takes_deleted)
            raise mistake(
                f"deletes: all has no meaning for {self.policy}; allowed with {allowed}", *value_path
            )
        for field, sequence in self.fields.items():
            if not sequence:
                raise mistake("names no field that says how new it is", *value_path, "fields", field)


class Policies(ConfigSection):
    """The policy of every space: `default`, and, by the space's name in Tarantool, the keys that differ from it."""

    default: Policy = Policy()
    spaces: dict[str, Policy] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_policies(self) -> Policies:
        self.default.check("default")
        for name in self.spaces:
            self.of(name).check("spaces", name)
        return self

    def of(self, space_name: str) -> Policy:
        """Return the policy of a space; keys that its entry leaves out are as in `default`."""
        own = self.spaces.get(space_name)
        if own is None:
            return self.default
        given = {name: getattr(own, name) for name in own.model_fields_set}
        base = self.default
        if own.policy != base.policy and "policy" in own.model_fields_set:
            # Another policy than the default's inherits only the keys that all policies have.
            base = Policy(sequence=base.sequence, deletes=base.deletes)
        return base.model_copy(update=given)
