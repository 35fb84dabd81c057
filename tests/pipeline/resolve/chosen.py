"""Keys with versions for tests of the choice: each key has a table of its own, so each may have another policy."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from config.policies import Policy
from pipeline.resolve.choose import MADE, NOBODY, Choices, KeyVersions, choose
from pipeline.resolve.resolve_plan import ResolvePlan, TablePolicy, policy_options
from schemas.space import Space
from tests.udfs.before_replace.versions import OTHER, SPACE
from udfs.before_replace.policy import Candidate, Formats
from udfs.versions.kernels.lives import DELETED, NO_TIME, PRESENT

NO_ID = -1


class Chosen(NamedTuple):
    """What stands under a key: the number of a version, or a tuple; or why nothing does."""

    winner: int | None = None
    tuple: bytes | None = None
    fault: str | None = None


def choices(
    keys: Sequence[Sequence[Candidate]],
    policies: Sequence[Policy],
    spaces: tuple[Space, ...] = (SPACE, OTHER),
) -> Choices:
    """Choose for each key by its own policy; versions are numbered over all keys."""
    flat = [(key, one) for key, versions in enumerate(keys) for one in versions]
    replicasets = ["", *sorted({one.replicaset for _, one in flat})]
    instances = ["", *sorted({one.instance for _, one in flat} - {""})]
    tables = []
    for key, versions in enumerate(keys):
        formats = np.full(len(replicasets), NO_ID, np.int32)
        for one in versions:
            formats[replicasets.index(one.replicaset)] = one.format_index
        policy = policies[key]
        options = policy_options(policy, policy.priority)
        name, deletes = f"t{key}", policy.deletes == "all"
        tables.append(
            TablePolicy(name, policy.policy, options, Formats("accounts", spaces), formats, deletes)
        )
    plan = ResolvePlan(0, datetime.now(UTC), tuple(tables), (True,) * len(keys), replicasets, instances)
    numbers = np.array([key for key, _ in flat], np.int32)
    given = KeyVersions(
        numbers,
        numbers,
        np.array([replicasets.index(one.replicaset) for _, one in flat], np.int32),
        np.array([DELETED if one.tuple is None else PRESENT for _, one in flat], np.int8),
        pa.array([one.tuple for _, one in flat], pa.binary()),
        np.array([instances.index(one.instance) if one.instance else NO_ID for _, one in flat], np.int64),
        np.array([one.lsn for _, one in flat], np.int64),
        np.array([NO_TIME if one.timestamp is None else one.timestamp for _, one in flat], np.int64),
        np.array([NO_TIME if one.created is None else one.created for _, one in flat], np.int64),
    )
    return choose(given, len(keys), plan)


def chosen(
    keys: Sequence[Sequence[Candidate]],
    policies: Sequence[Policy],
    spaces: tuple[Space, ...] = (SPACE, OTHER),
) -> list[Chosen]:
    """Return what stands under each key; winners are numbered within their key."""
    found = choices(keys, policies, spaces)
    first, result = 0, []
    for key, versions in enumerate(keys):
        winner, made = int(found.winners[key]), found.policy_outcomes.get(key)
        result.append(
            Chosen(
                None if winner in (MADE, NOBODY) else winner - first,
                None if made is None or winner != MADE else made.tuple,
                None if made is None else made.fault,
            )
        )
        first += len(versions)
    return result


def winner_of(
    versions: Sequence[Candidate], policy: Policy, spaces: tuple[Space, ...] = (SPACE, OTHER)
) -> Candidate | None:
    """Return the version that stands under one key, None where none does."""
    (one,) = chosen([versions], [policy], spaces)
    return None if one.winner is None else versions[one.winner]
