"""The typed columns of each table: the union of the formats of the space in all replicasets, by field name.

Pure. One table has one layout; each definition of the space that occurs in a batch, and each replicaset's current
one, is a format of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from jobs.batch.apply import Target
from jobs.batch.layouts import Layout
from jobs.batch.masks import check_exposed, mask_of
from jobs.batch.state import State
from config.deployment import Config, Types
from schemas.errors import UnsupportedError
from schemas.layout import TableLayout, table_layout
from schemas.names import column_name, exact_table
from schemas.space import Space
from schemas.types import TypeOptions, union_fields
from udfs.keys import key_plan


def type_options(types: Types) -> TypeOptions:
    """Return the configuration's type choices as `schemas.types` takes them."""
    decimal = types.decimal
    scale: int | Literal["string"] = "string"
    if decimal != "string":
        scale = int(decimal.removeprefix("decimal(38,").removesuffix(")"))
    integer: Literal["long", "decimal"] = "long" if types.integer == "long" else "decimal"
    return TypeOptions(unsigned=types.unsigned, integer=integer, decimal_scale=scale)


def check_space(space: Space) -> None:
    """Refuse a space whose types or key cannot be carried."""
    union_fields([space])
    key_plan([space])


def layout_of(spaces: Sequence[Space], options: TypeOptions) -> TableLayout:
    """Return the layout of a table over the definitions of its space."""
    names = [column_name(field.name) for field in union_fields(spaces)]
    return table_layout(spaces, names, options)


def current_spaces(state: State, config: Config, table: str) -> dict[int, Space]:
    """Return each replicaset's definition of the space that goes to a table."""
    found = {}
    for replicaset in state.replicasets.values():
        for space_id, rows in replicaset.spaces.items():
            space = rows.decoded()
            followed = space.primary_key and not (space.is_local or space.is_temporary or space.is_view)
            own = config.spaces.table(space.name, replicaset=replicaset.id)
            if followed and space_id not in replicaset.refused and own == table:
                found[replicaset.id] = space
    return found


def target_of(
    number: int,
    table: str,
    state: State,
    config: Config,
    layouts: Sequence[Layout],
    known: frozenset[str],
) -> Target:
    """Return how a batch writes one table.

    Parameters
    ----------
    layouts : sequence of Layout
        All of the batch.
    known : frozenset of str
        Tables that have had rows.

    Raises
    ------
    UnsupportedError
        Where two replicasets' definitions contradict each other, or a mask cannot hold.

    """
    current = current_spaces(state, config, table)
    passing = [layout.space for layout in layouts if layout.table == table]
    # What outlives the batch fits the format that stands at its end: Tarantool checks every tuple against it.
    lasting = list(dict.fromkeys(current.values())) or passing[-1:]
    same_key(table, lasting)
    index = {space: i for i, space in enumerate(lasting)}
    layout = layout_of(lasting, type_options(config.types))
    for key in {(one.replicaset_id, one.space.id) for one in layouts if one.table == table}:
        own = [one.space for one in layouts if (one.replicaset_id, one.space.id) == key]
        check_exposed(own, config.spaces.masks_of)
    return Target(
        number,
        table,
        layout,
        {replicaset_id: index[space] for replicaset_id, space in current.items()},
        table not in known,
        tuple(lasting),
        mask_of(config.spaces, lasting, layout, lasts=exact_table(table) in state.versions),
    )


def same_key(table: str, spaces: Iterable[Space]) -> None:
    """Refuse a table whose replicasets, or whose times, do not agree on the primary key."""
    keys: Mapping[tuple[object, ...], Space] = {
        tuple((part.field, part.path, part.collation) for part in space.primary_key): space
        for space in spaces
    }
    if len(keys) > 1:
        raise UnsupportedError(
            "the primary key is not the same in all replicasets, or was changed",
            table=table,
            advice="exclude the space, or rename it on one side",
        )
