"""Chooses the table of each space, or refuses the space, by the configuration and the space's definition.

Pure. A refused space has no table, or its table is not updated any more. Its rows still go to `_changelog`, and
`_schema.state` has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from config.spaces import Spaces
from pipeline.encode.masks import check_still_masked
from pipeline.plan.history import Refusal, Router
from schemas.errors import UnsupportedError
from schemas.space import Space

SpaceCheck = Callable[[Space], None]
"""Raises UnsupportedError for a space whose types or primary key are not supported."""


def build_router(spaces: Spaces, check: SpaceCheck) -> Router:
    """Return the function that chooses the table of each space.

    Parameters
    ----------
    spaces : Spaces
        The section `spaces` of the configuration.
    check : callable
        Called for each space that the configuration includes.

    """

    def route(
        replicaset_id: int, space: Space, earlier: Sequence[Space], unread: bool
    ) -> str | Refusal | None:
        if not spaces.wants(space.name):
            return None
        if space.fault is not None:
            return Refusal(replicaset_id, space.id, space.name, space.fault)
        if not can_have_table(space):
            return None
        if unread:
            return Refusal(replicaset_id, space.id, space.name, _unread_reason(space))
        try:
            check(space)
            if spaces.masks:
                check_still_masked(earlier, space, spaces.masks_of)
        except UnsupportedError as error:
            return Refusal(replicaset_id, space.id, space.name, str(error))
        return spaces.table(space.name, replicaset=replicaset_id)

    return route


def _unread_reason(space: Space) -> str:
    """Return the reason to refuse a space whose rows a snapshot does not contain."""
    if space.engine == "vinyl":
        return (
            "its rows from before the snapshot are in .run files, and the snapshot's directory has no .vylog that "
            "lists them, or a range was split and shares them; follow it from its first log (start: logs)"
        )
    return (
        f"its rows from before the snapshot may be missing: its engine is {space.engine}, and this "
        "version does not know whether a snapshot contains them; follow it from its first log (start: logs)"
    )


def can_have_table(space: Space) -> bool:
    """Return whether a space can have a table: it has a primary key, and is not local, temporary or a view."""
    return bool(space.primary_key) and not (space.is_local or space.is_temporary or space.is_view)
