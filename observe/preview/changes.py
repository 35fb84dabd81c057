"""The lines of `aggregator plan`: one planned change each. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from config.deployment import Config
from pipeline.plan.settings import settings_json
from pipeline.plan.settle import Settlement
from pipeline.preview import Preview
from pipeline.state import ReplicasetState
from pipeline.write.table_change import TableChange


class Sign(StrEnum):
    """Kind of a line."""

    SAME = " "
    NEW = "+"
    CHANGED = "~"
    GONE = "-"
    REFUSED = "!"


@dataclass(frozen=True)
class PlannedChange:
    """One line of the output.

    Parameters
    ----------
    sign : Sign
    name : str
        Stable name, such as `table_made`; docs/operation.md lists them.
    subject : str
        The changed thing: a source, a replicaset's uuid, a table, a setting.
    text : str

    """

    sign: Sign
    name: str
    subject: str
    text: str


_TABLES = {
    TableChange.CREATE: (Sign.NEW, "table_made", "is made"),
    TableChange.ADD: (Sign.CHANGED, "columns_added", "gets new columns"),
    TableChange.REWRITE: (Sign.CHANGED, "table_rewritten", "is written again: its columns change"),
}
_EFFECTS = {
    "policies": "rows that come from now on; `aggregator rebuild --space SPACE` decides the others by it",
    "masks": "all rows, before the first batch",
    "types": "tables that are made from now on, and those whose columns it changes are written again",
    "spaces": "rows that come from now on",
    "start": "replicasets that are new",
    "on_gap": "gaps that are found from now on",
}
"""Setting to the scope of a change of it."""


def changes_of(config: Config, found: Preview) -> list[PlannedChange]:
    """Return what a run will do, in order."""
    changes = list(_refusals(config, found))
    changes += _settings(config, found)
    changes += _masks(found)
    changes += [
        PlannedChange(
            Sign.NEW, "request", one.id, f"{one.kind} {json.dumps(dict(one.arguments))} is taken up"
        )
        for one in found.requests
    ]
    if found.own_tables:
        text = f"the aggregator's own tables are made: {', '.join(found.own_tables)}"
        changes.append(PlannedChange(Sign.NEW, "own_tables_made", "tables", text))
    changes += _begins(found)
    if found.plan is not None:
        changes += _instances(found)
        changes += _spaces(found)
        changes += _tables(found)
        changes += _waits(found)
    return changes


def _refusals(config: Config, found: Preview) -> Iterator[PlannedChange]:
    if not found.is_primary:
        yield PlannedChange(
            Sign.REFUSED, "not_primary", "rid", "the warehouse is secondary: a run is refused (docs/rid.md)"
        )
    for source, reason in found.unfollowed.items():
        result = "the run stops" if config.on_source_error == "fail" else "it is left out"
        yield PlannedChange(Sign.REFUSED, "source_not_followed", source, f"{result}: {reason}")


def _settings(config: Config, found: Preview) -> Iterator[PlannedChange]:
    if found.before.epoch < 0:
        return
    if found.before.settings is None:
        text = "unknown of the last run, since its release did not store them: nothing is compared"
        yield PlannedChange(Sign.SAME, "settings_unknown", "settings", text)
        return
    old, new = json.loads(found.before.settings), json.loads(settings_json(config))
    had, has = set(old.pop("sources", ())), set(new.pop("sources", ()))
    for source in sorted(has - had):
        yield PlannedChange(Sign.NEW, "source_new", source, "a new source")
    for source in sorted(had - has):
        yield PlannedChange(
            Sign.GONE, "source_gone", source, "not a source any more; its rows stay in the tables"
        )
    for key in sorted({*old, *new} - {"format"}):
        for path, was, now in differences(old.get(key), new.get(key), key):
            name = {"policies": "policy_changed", "masks": "mask_changed"}.get(key, "setting_changed")
            text = f"{_shown(was)} → {_shown(now)}; it concerns {_EFFECTS.get(key, 'the whole run')}"
            yield PlannedChange(Sign.CHANGED, name, path, text)


def differences(old: object, new: object, path: str) -> Iterator[tuple[str, object, object]]:
    """Yield the differing leaves of two JSON values, each with its path."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}")
    elif old != new:
        yield path, old, new


def _shown(value: object) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _masks(found: Preview) -> Iterator[PlannedChange]:
    for one in found.masks:
        if one.encoding is None:
            text = "is not masked any more: readers see the exact rows"
            yield PlannedChange(Sign.CHANGED, "table_unmasked", one.table, text)
            yield PlannedChange(Sign.GONE, "table_removed", one.exact, "is removed: it held the exact rows")
            continue
        text = "is masked in another way: it is written again before the first batch"
        yield PlannedChange(Sign.CHANGED, "table_masked", one.table, text)
        if not one.was_masked:
            yield PlannedChange(
                Sign.NEW, "table_made", one.exact, "is made: it holds the exact rows from now on"
            )


def _begins(found: Preview) -> Iterator[PlannedChange]:
    for uuid, entry in sorted(found.start_offsets.items()):
        is_new = uuid not in found.before.replicasets
        where = f"in {entry.file} at {entry.position} of {entry.leader}"
        rows = (
            0
            if found.plan is None or uuid not in found.plan.summaries
            else found.plan.summaries[uuid].row_count
        )
        amount = f"{rows} rows in {found.bytes.get(uuid, 0)} bytes of logs are new"
        if is_new:
            yield PlannedChange(Sign.NEW, "replicaset_new", uuid, f"begins {where}: {amount}")
        else:
            yield PlannedChange(Sign.SAME, "continues", uuid, f"continues {where}: {amount}")
    for uuid in sorted(found.before.replicasets.keys() - found.start_offsets.keys()):
        yield PlannedChange(
            Sign.GONE, "replicaset_gone", uuid, "no source has it; its rows stay in the tables"
        )


def _instances(found: Preview) -> Iterator[PlannedChange]:
    if found.plan is None:
        return
    own = found.plan.after.own_id
    for uuid, number in sorted(found.plan.after.global_ids.items(), key=lambda item: item[1]):
        if uuid not in found.before.global_ids and number != own:
            yield PlannedChange(Sign.NEW, "instance_new", uuid, f"gets the global id {number}")


def _spaces(found: Preview) -> Iterator[PlannedChange]:
    if found.plan is None:
        return
    for uuid, after in sorted(found.plan.after.replicasets.items()):
        before = found.before.replicasets.get(uuid) or ReplicasetState(0, uuid)
        for number in sorted({*before.spaces, *after.spaces}):
            yield from _space(uuid, number, before, after)


def _space(
    uuid: str, number: int, before: ReplicasetState, after: ReplicasetState
) -> Iterator[PlannedChange]:
    last = after.spaces.get(number) or before.spaces[number]
    name = last.decoded().name
    where = f"space {name} ({number}) of {uuid}"
    old, new = before.tables.get(number), after.tables.get(number)
    refused = after.refused.get(number)
    if number not in after.spaces:
        if old is not None:
            yield PlannedChange(
                Sign.GONE, "space_gone", old, f"{where} is dropped; the table stays, without its rows"
            )
    elif refused is not None and refused != before.refused.get(number):
        yield PlannedChange(Sign.REFUSED, "space_refused", name, f"{where} goes to no table: {refused}")
    elif new is not None and old is None:
        yield PlannedChange(Sign.NEW, "space_new", new, f"{where} is taken up")
    elif new is not None and new != old:
        yield PlannedChange(
            Sign.CHANGED, "space_moved", new, f"{where} goes here; its rows leave the table {old}"
        )


def _tables(found: Preview) -> Iterator[PlannedChange]:
    if found.plan is None:
        return
    for table, change in found.tables.items():
        if change in _TABLES:
            sign, name, text = _TABLES[change]
            yield PlannedChange(sign, name, table, text)
    named = {version.table for version in found.plan.history.versions}
    for table in sorted(named - found.tables.keys() - found.before.versions.keys()):
        text = "is made, and stays empty, if a batch ends while a space has this name"
        yield PlannedChange(Sign.SAME, "table_possible", table, text)
    for table, reason in found.plan.refused_tables.items():
        yield PlannedChange(Sign.REFUSED, "table_refused", table, f"cannot be written: {reason}")


def _waits(found: Preview) -> Iterator[PlannedChange]:
    if found.plan is None:
        return
    for uuid, settlement in sorted(found.plan.settlements.items()):
        yield from _held(uuid, settlement)


def _held(uuid: str, settlement: Settlement) -> Iterator[PlannedChange]:
    for gap in settlement.gaps:
        yield PlannedChange(
            Sign.REFUSED,
            "gap_found",
            uuid,
            f"lsns {gap.first} to {gap.last} of replica id {gap.replica_id} are missing",
        )
    if settlement.waits_from is not None:
        yield PlannedChange(Sign.REFUSED, "rows_wait", uuid, f"rows wait in _pending: {settlement.reason}")


def lines(changes: Iterable[PlannedChange]) -> Iterator[tuple[Sign, str]]:
    """Yield each change as one line of text."""
    for one in changes:
        yield one.sign, f"{one.sign} {one.subject}  {one.text} [{one.name}]"


def as_json(changes: Iterable[PlannedChange]) -> dict[str, Any]:
    """Return the changes as a JSON object."""
    found = list(changes)
    totals = {sign.name.lower(): sum(one.sign is sign for one in found) for sign in Sign}
    return {"changes": [{**asdict(one), "sign": one.sign.name.lower()} for one in found], "totals": totals}
