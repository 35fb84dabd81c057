"""The conflict policies, one per module; `schemas.policies` lists them."""

from collections.abc import Mapping
from importlib import import_module

from schemas.policies import POLICIES as ENTRIES
from schemas.policies import PolicyEntry
from udfs.before_replace.policy import PolicyKind


def _kind_of(entry: PolicyEntry) -> PolicyKind:
    kind = getattr(import_module(f"{__name__}.{entry.module}"), entry.kind_name)
    assert isinstance(kind, PolicyKind), f"{entry.module}.{entry.kind_name} is not a PolicyKind"
    return kind


POLICIES: Mapping[str, PolicyKind] = {name: _kind_of(entry) for name, entry in ENTRIES.items()}
"""Each policy, by its name in the configuration."""
