"""Which table a space goes to, by the configuration and by what can be followed.

Pure. A space that cannot be followed rightly is refused by name: its rows are kept in `_changelog`, it has no
table (or its table stops), and `_schema.state` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from config.spaces import Spaces
from pipeline.encode.masks import check_exposed
from pipeline.plan.history import Refusal, Router
from schemas.errors import UnsupportedError
from schemas.space import Space

SpaceCheck = Callable[[Space], None]
"""Raises UnsupportedError for a space whose types or keys cannot be carried."""


def build_router(spaces: Spaces, check: SpaceCheck) -> Router:
    """Return the router of a deployment.

    Parameters
    ----------
    spaces : Spaces
        The configuration's part.
    check : callable
        Called for each space that is wanted.

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
                check_exposed(earlier, space, spaces.masks_of)
        except UnsupportedError as error:
            return Refusal(replicaset_id, space.id, space.name, str(error))
        return spaces.table(space.name, replicaset=replicaset_id)

    return route


def _unread_reason(space: Space) -> str:
    """Return why a space is refused that a snapshot defines without its rows."""
    if space.engine == "vinyl":
        return (
            "its rows from before the snapshot are in .run files of which there is no .vylog beside the "
            "snapshot, or which are shared after a range was split; follow it from its first log (start: logs)"
        )
    return (
        f"its rows from before the snapshot are not in it as far as this version knows: its engine is {space.engine}; "
        "follow it from its first log (start: logs)"
    )


def can_have_table(space: Space) -> bool:
    """Whether a space can have a table: it has a primary key, and is not local, temporary or a view."""
    return bool(space.primary_key) and not (space.is_local or space.is_temporary or space.is_view)
