"""Finds the fields that a policy names and that no replicaset's definition of the space has. Pure, but for its warning.

Such a field is nil in every version, so all versions are equal in it and something else decides, silently. It is no
error: the configuration may be ahead of a format that is about to get the field.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from difflib import get_close_matches

from config.policies import Policies, Policy
from schemas.space import Space

log = logging.getLogger(__name__)


def unknown_fields(policy: Policy, definitions: Collection[Space]) -> tuple[str, ...]:
    """Return the fields that a policy names and that none of some definitions of a space has."""
    known = {field.name for space in definitions for field in space.fields}
    return tuple(name for name in policy.named_fields if name not in known)


def closest_fields(name: str, definitions: Collection[Space]) -> str:
    """Return a question that proposes the closest field, or the names of all fields."""
    known = list(dict.fromkeys(field.name for space in definitions for field in space.fields))
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"its fields are {', '.join(known) or 'without names'}"


def warn_unknown_fields(policies: Policies, definitions: Collection[Space]) -> None:
    """Log the fields that a space's policy names in vain; nothing of a space that one replicaset alone has."""
    if len(definitions) < 2:
        return
    name = next(iter(definitions)).name
    for field in unknown_fields(policies.of(name), definitions):
        log.warning(
            "%s: its policy names the field %s, which no replicaset has, so it decides nothing: %s",
            *(name, field, closest_fields(field, definitions)),
        )
