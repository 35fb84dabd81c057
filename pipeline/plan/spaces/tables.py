"""Plans the tables that a batch changes: their columns, their policy, their masks.

Pure, except for warnings in the log. A table's columns are the union of its space's formats in all replicasets, by
field name. Each replicaset's definition at the end of the batch is such a format, since Tarantool checks all tuples
against it.
"""

import logging
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from config.deployment import Config, Types
from config.policies import Policies, Policy
from config.spaces import Spaces, TableSettings
from pipeline.plan.rows.summary import Summary
from pipeline.plan.spaces.masks import Mask, mask_of
from pipeline.plan.spaces.meanings import History, Lineage, SpaceKey
from pipeline.plan.spaces.router import TableCheck, TableOwner, TableOwners
from pipeline.state import State, TableWriters
from schemas.errors import UnsupportedError
from schemas.layout import TableLayout, TypeOptions, column_storage, table_layout, union_fields
from schemas.names import column_name, exact_table
from schemas.row_types import CHANGE_TYPES
from schemas.space import KeyParts, Space, key_parts
from schemas.states import SET_ASIDE_PREFIX
from schemas.tables import VERSION_COLUMNS
from udfs.keys.keys import key_plan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TablePlan:
    """How a batch writes the table of a space."""

    name: str
    """The table that readers see."""
    layout: TableLayout
    """Its typed columns."""
    format_indices: Mapping[int, int]
    """For each replicaset id, the index of its format in `layout`."""
    definitions: tuple[Space, ...]
    """The space's definitions, in the order of the layout's formats."""
    policy: Policy
    """The space's conflict policy."""
    priority: tuple[str, ...] = ()
    """Uuids of the replicasets that `source_priority` puts first."""
    mask: Mask | None = None
    """The masked fields, if the space has any."""
    quarantines_misfits: bool = False
    """Whether a row with a value that does not fit its column is left out of the table."""
    is_empty: bool = False
    """Whether no replicaset has written the table so far."""
    is_contended: bool = False
    """Whether several replicasets write it, or it has versions without a usable tuple: then it can have rows in
    `_versions`."""
    has_moved_fields: bool = False
    """Whether fields of a replicaset were renamed or changed their types: then rows that are not in the batch must be
    encoded again, even if the table has the same columns."""
    has_added_fields: bool = False
    """Whether the format of a replicaset got further fields: then values may have to leave `_extra`, even if the table
    has the same columns, since another replicaset had these fields before."""
    cluster_by: tuple[str, ...] = ()
    """The columns in whose order rows are written, before that of the key."""

    @property
    def exact_table(self) -> str:
        """The table with the unmasked rows."""
        return self.name if self.mask is None else exact_table(self.name)


def type_options(types: Types, settings: TableSettings) -> TypeOptions:
    """Convert the section `types` of the configuration, and a space's own settings, for `schemas.layout`."""
    decimal = settings.decimal or types.decimal
    scale: int | Literal["string"] = "string"
    if decimal != "string":
        scale = int(decimal.removeprefix("decimal(38,").removesuffix(")"))
    integer: Literal["long", "decimal"] = "long" if types.integer == "long" else "decimal"
    return TypeOptions(
        unsigned=types.unsigned,
        integer=integer,
        decimal_scale=scale,
        nested=settings.nested or types.nested,
        exact=types.exact,
    )


def check_space(space: Space) -> None:
    """Raise UnsupportedError for a space whose field types or primary key are not supported."""
    for field in union_fields([space]):
        column_storage(field.type, TypeOptions())
    key_plan([space])


def build_table_layout(spaces: Sequence[Space], types: Types, config: Spaces) -> TableLayout:
    """Return the layout (the typed columns) of a table, from all definitions of its space."""
    fields = [field.name for field in union_fields(spaces)]
    binary = frozenset[str]().union(*(config.binary_fields(one.name, fields) for one in spaces))
    options = type_options(types, config.table_settings(spaces[0].name))
    return table_layout(spaces, [column_name(name) for name in fields], options, binary)


def spaces_by_table(state: State) -> dict[str, dict[int, Space]]:
    """Return the definitions of each table's rows, by table and replicaset id.

    For a refused space, that is the last definition by which its rows were applied: its tuples stay in the table.
    """
    found: dict[str, dict[int, Space]] = {}
    for one in state.replicasets.values():
        for space_id, table in one.tables.items():
            space = one.definition(space_id)
            if space is not None:
                found.setdefault(table, {})[one.id] = space
    return found


def table_plan(
    table: str,
    definitions: Mapping[int, Space],
    config: Config,
    state: State,
    ended_definitions: Sequence[Space] = (),
    writer_ids: frozenset[int] = frozenset(),
    primary_keys: Mapping[int, frozenset[KeyParts]] | None = None,
    definitions_before: Mapping[int, Space] | None = None,
) -> TablePlan:
    """Return how a batch writes one table.

    Args:
        definitions: The definition of each replicaset's rows at the end of the batch, by replicaset id.
        writer_ids: Ids of replicasets that write the table in the batch.
        primary_keys: For each replicaset whose primary key must equal that of the others: all primary keys that its
            space has had.

    Raises:
        UnsupportedError: If two replicasets' definitions contradict each other, or a mask would not hide its field.
    """
    spaces = list(dict.fromkeys(definitions.values())) or list(ended_definitions[-1:])
    if not _have_equal_keys(table, definitions, primary_keys or {}):
        log.warning(
            "%s: its replicasets have different primary keys now; equal tuples are separate rows", table
        )
    index = {space: i for i, space in enumerate(spaces)}
    layout = build_table_layout(spaces, config.types, config.spaces)
    policy = config.policies.of(layout.space)
    before = state.writers.get(table, TableWriters())
    settings = config.spaces.table_settings(layout.space)
    return TablePlan(
        table,
        layout,
        {replicaset_id: index[space] for replicaset_id, space in definitions.items()},
        tuple(spaces),
        policy,
        config.preferred_replicasets(policy),
        mask_of(config.spaces, spaces, layout, is_masked=exact_table(table) in state.versions),
        any(config.spaces.quarantines_misfits(space.name) for space in spaces),
        is_empty=not before.replicasets,
        is_contended=len(before.replicasets | writer_ids) > 1 or before.has_unfit,
        has_moved_fields=_has_moved_fields(definitions_before or {}, definitions),
        has_added_fields=_has_added_fields(definitions_before or {}, definitions),
        cluster_by=_cluster_columns(layout, settings),
    )


def _cluster_columns(layout: TableLayout, settings: TableSettings) -> tuple[str, ...]:
    """Return the columns of `cluster_by`, which names fields, or computed columns, or the aggregator's own."""
    fields = dict(zip((field.name for field in layout.fields), layout.column_names, strict=True))
    known = {*settings.columns, *layout.column_names, *(name for name, _ in VERSION_COLUMNS)}
    found = tuple(fields.get(name, name) for name in settings.cluster_by)
    unknown = [name for name in found if name not in known]
    if unknown:
        names = ", ".join(layout.column_names)
        raise UnsupportedError(
            f"there is no column {unknown[0]} to cluster by; the space has {names}",
            space=layout.space,
            advice="see spaces.tables",
        )
    return found


def _has_moved_fields(before: Mapping[int, Space], after: Mapping[int, Space]) -> bool:
    """Return whether existing fields of a replicaset were renamed or changed their types; added fields do not count."""
    for replicaset_id, old in before.items():
        new = after.get(replicaset_id)
        if new is None:
            continue
        known = [(field.name, field.type) for field in old.fields]
        if known != [(field.name, field.type) for field in new.fields[: len(known)]]:
            return True
    return False


def _has_added_fields(before: Mapping[int, Space], after: Mapping[int, Space]) -> bool:
    return any(len(after[i].fields) > len(old.fields) for i, old in before.items() if i in after)


def _have_equal_keys(
    table: str, definitions: Mapping[int, Space], primary_keys: Mapping[int, frozenset[KeyParts]]
) -> bool:
    """Return whether the replicasets in `primary_keys` have equal primary keys now; raise if they never had equal ones.

    Replicasets change a primary key one after another. While only some have changed it, equal tuples have different
    keys, so they are separate rows of the table.
    """
    current = {i: key_parts(space.primary_key) for i, space in definitions.items() if i in primary_keys}
    if len(set(current.values())) <= 1:
        return True
    groups: list[set[KeyParts]] = []
    for number, parts in current.items():
        joined = {parts, *primary_keys[number]}
        for other in [group for group in groups if group & joined]:
            groups.remove(other)
            joined |= other
        groups.append(joined)
    if len(groups) > 1:
        raise UnsupportedError(
            "the primary key is not the same in all replicasets",
            table=table,
            advice="exclude the space, or rename it on one side",
        )
    return False


def table_check(config: Config) -> TableCheck:
    """Return the function that checks whether the definitions of several replicasets fit into one table."""

    def check(table: str, definitions: Mapping[int, Space], keys: Mapping[int, frozenset[KeyParts]]) -> None:
        _have_equal_keys(table, definitions, keys)
        spaces = list(definitions.values())
        layout = build_table_layout(spaces, config.types, config.spaces)
        mask_of(config.spaces, spaces, layout, is_masked=False)

    return check


def table_owners(config: Config, state: State, tracked: Mapping[str, Set[int]]) -> TableOwners:
    """Return the spaces that have rows in tables before a batch, but have neither rows nor events in the batch."""
    found = TableOwners(table_check(config))
    for uuid, one in state.replicasets.items():
        for space_id in one.tables.keys() - tracked.get(uuid, frozenset()):
            keys = None if space_id in one.refused else one.primary_keys.get(space_id, frozenset())
            owner = TableOwner(space_id, one.definition(space_id), keys)
            found.claim(one.id, one.tables[space_id], owner)
    return found


def _keys_by_table(state: State) -> dict[str, dict[int, frozenset[KeyParts]]]:
    """Return all primary keys of the spaces whose rows are applied, by table and replicaset id."""
    found: dict[str, dict[int, frozenset[KeyParts]]] = {}
    for one in state.replicasets.values():
        for space_id, table in one.tables.items():
            if space_id not in one.refused:
                found.setdefault(table, {})[one.id] = one.primary_keys.get(space_id, frozenset())
    return found


def current_table_plan(state: State, config: Config, table: str) -> TablePlan | None:
    """Return the plan of a table by the current definitions of its rows; None if no replicaset has any.

    Raises:
        UnsupportedError: If two replicasets' definitions contradict each other, or a mask would not hide its field.
    """
    definitions, keys = dict[int, Space](), dict[int, frozenset[KeyParts]]()
    for one in state.replicasets.values():
        for space_id, name in one.tables.items():
            if name != table:  # there may be thousands of others
                continue
            if (space := one.definition(space_id)) is not None:
                definitions[one.id] = space
            if space_id not in one.refused:
                keys[one.id] = one.primary_keys.get(space_id, frozenset())
    return table_plan(table, definitions, config, state, primary_keys=keys) if definitions else None


def has_changes(lineage: Lineage, row_types: Mapping[SpaceKey, frozenset[str]]) -> bool:
    """Return whether a batch has rows of a lineage, or changes the lineage's versions in another way."""
    return lineage.changes_keys_without_rows or (lineage.replicaset_id, lineage.space_id) in row_types


def lineages_with_changes(history: History, row_types: Mapping[SpaceKey, frozenset[str]]) -> tuple[bool, ...]:
    """Return a flag for each lineage: whether a batch with rows of these types may change versions of the lineage.

    Rows of a space that was refused before go to no table, so they change no versions.
    """
    applied = {one.lineage for meanings in history.meanings.values() for one in meanings}
    return tuple(
        one.changes_keys_without_rows or (number in applied and has_changes(one, row_types))
        for number, one in enumerate(history.lineages)
    )


def change_types(summaries: Mapping[int, Summary]) -> dict[SpaceKey, frozenset[str]]:
    """Return which of `CHANGE_TYPES` the rows of a batch have, by (replicaset id, space id)."""
    found: dict[SpaceKey, set[str]] = {}
    for replicaset_id, summary in summaries.items():
        for _, space_id, kind in summary.row_counts:
            if kind in CHANGE_TYPES:
                found.setdefault((replicaset_id, space_id), set()).add(kind)
    return {key: frozenset(kinds) for key, kinds in found.items()}


def plan_tables(
    config: Config,
    before: State,
    after: State,
    history: History,
    summaries: Mapping[int, Summary],
) -> tuple[dict[str, TablePlan], dict[str, str]]:
    """Return the plans of the tables that a batch changes, and the reason for each table that cannot be written."""
    is_active = lineages_with_changes(history, change_types(summaries))
    active = [lineage for lineage, one in zip(history.lineages, is_active, strict=True) if one]
    touched = {lineage.table for lineage in active}
    touched |= {lineage.base_table for lineage in active if lineage.leaves_base_table and lineage.base_table}
    # A changed definition creates the table, or adds its new columns, even without rows.
    known = {one.id: one for one in before.replicasets.values()}
    redefined: set[str] = set()
    for (replicaset_id, space_id), number in history.current_versions.items():
        version = history.versions[number]
        one = known.get(replicaset_id)
        rows = one.spaces.get(space_id) if one is not None else None
        if version.table not in before.versions or rows is None or rows.decoded() != version.space:
            redefined.add(version.table)
    touched |= redefined
    writing: dict[str, set[int]] = {}
    ended_definitions: dict[str, list[Space]] = {}
    for lineage in active:
        writing.setdefault(lineage.table, set()).add(lineage.replicaset_id)
        ended_definitions.setdefault(lineage.table, []).append(
            history.versions[lineage.eras[-1].version].space
        )
        if lineage.base_table is not None:
            ended_definitions.setdefault(lineage.base_table, []).append(
                history.versions[lineage.eras[0].version].space
            )
    # If the batch refuses a space, its earlier rows are still written, by the definition at that time.
    definitions, keys, earlier = (
        spaces_by_table(after),
        _keys_by_table(after),
        spaces_by_table(before),
    )
    plans: dict[str, TablePlan] = {}
    refused: dict[str, str] = {}
    for table in sorted(touched):
        if table in before.set_aside:
            refused[table] = SET_ASIDE_PREFIX + before.set_aside[table]
            continue
        if table in redefined:
            warn_unknown_fields(config.policies, definitions.get(table, {}).values())
        try:
            plans[table] = table_plan(
                *(table, definitions.get(table, {}), config, before),
                ended_definitions.get(table, ()),
                frozenset(writing.get(table, ())),
                keys.get(table, {}),
                earlier.get(table, {}),
            )
        except UnsupportedError as error:
            log.error("the table %s is not written any more: %s", table, error)
            refused[table] = str(error)
    return plans, refused


def unknown_fields(policy: Policy, definitions: Collection[Space]) -> tuple[str, ...]:
    """Return the fields that a policy names, but none of the definitions of a space has."""
    known = {field.name for space in definitions for field in space.fields}
    return tuple(name for name in policy.named_fields if name not in known)


def field_suggestion(name: str, definitions: Collection[Space]) -> str:
    """Return the end of a message about an unknown field: a proposal of the closest one, or all fields' names."""
    known = list(dict.fromkeys(field.name for space in definitions for field in space.fields))
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"its fields are {', '.join(known) or 'without names'}"


def warn_unknown_fields(policies: Policies, definitions: Collection[Space]) -> None:
    """Log the fields that a space's policy names and no replicaset has.

    Nothing is logged for a space that only one replicaset has, since a policy chooses between two or more.
    """
    if len(definitions) < 2:
        return
    name = next(iter(definitions)).name
    for field in unknown_fields(policies.of(name), definitions):
        log.warning(
            "%s: its policy names the field %s, which no replicaset has, so it decides nothing: %s",
            *(name, field, field_suggestion(field, definitions)),
        )
