"""The planned changes that `aggregator plan` prints, one per line. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

from config.deployment import Config
from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.settings import settings_json
from pipeline.plan.settle import Settlement
from pipeline.preview import Preview
from pipeline.state import ReplicasetState
from pipeline.write.tables import TableChange
from schemas.names import replicaset_label


class Sign(StrEnum):
    """Kind of a planned change, and the first character of its line."""

    SAME = " "
    NEW = "+"
    CHANGED = "~"
    GONE = "-"
    REFUSED = "!"


@dataclass(frozen=True)
class PlannedChange:
    """Something that the next run will change: one line of the output.

    Parameters
    ----------
    sign : Sign
    name : str
        Stable name, such as `table_made`; docs/operation.md lists all names.
    subject : str
        The changed thing: a source, a replicaset's uuid, a table, a setting.
    text : str
        Description of the change.

    """

    sign: Sign
    name: str
    subject: str
    text: str


_BY_TABLE_CHANGE = {
    TableChange.CREATE: (Sign.NEW, "table_made", "is made"),
    TableChange.ADD: (Sign.CHANGED, "columns_added", "gets new columns"),
    TableChange.REWRITE: (Sign.CHANGED, "table_rewritten", "is written again: its columns change"),
}
"""By kind of change to a table: sign, name and text of the planned change."""

_EFFECTS = {
    "policies": "rows that come from now on; `aggregator rebuild SPACE` applies it to the other rows",
    "masks": "all rows, before the first batch",
    "types": "tables that are made from now on, and those whose columns it changes are written again",
    "spaces": "rows that come from now on",
    "start": "replicasets that are new",
    "on_gap": "gaps that are found from now on",
}
"""By setting: what a change of the setting affects."""


def planned_changes(config: Config, preview: Preview) -> list[PlannedChange]:
    """Return what the next run will change, in the order in which it does so."""
    changes = list(_refusals(config, preview))
    changes += _settings(config, preview)
    changes += _masks(preview)
    changes += [
        PlannedChange(
            Sign.NEW,
            "request",
            request.id,
            f"{request.kind} {json.dumps(dict(request.arguments))} is taken up",
        )
        for request in preview.requests
    ]
    if preview.missing_system_tables:
        text = f"the aggregator's own tables are made: {', '.join(preview.missing_system_tables)}"
        changes.append(PlannedChange(Sign.NEW, "own_tables_made", "tables", text))
    changes += _start_positions(preview)
    if preview.plan is not None:
        plan = preview.plan
        changes += _instances(preview, plan)
        changes += _unused_settings(config, plan)
        changes += _spaces(config, preview, plan)
        changes += _tables(preview, plan)
        for uuid, settlement in sorted(plan.settlements.items()):
            changes += _gaps_and_pending(uuid, settlement)
    return changes


def replicaset_labels(config: Config, preview: Preview) -> dict[str, str]:
    """Return, by replicaset uuid, the label by which the output calls the replicaset."""
    states = dict(preview.before.replicasets)
    if preview.plan is not None:
        states |= preview.plan.after.replicasets
    sources: dict[str, list[str | None]] = {uuid: [one.last_source] for uuid, one in states.items()}
    for uuid, entry in preview.start_offsets.items():
        sources[uuid] = [entry.leader]
    for source in config.sources:
        if source.replicaset is not None:
            sources.setdefault(source.replicaset, []).append(source.name)
    return {uuid: replicaset_label(uuid, *names) for uuid, names in sources.items()}


def _refusals(config: Config, preview: Preview) -> Iterator[PlannedChange]:
    if not preview.is_writable:
        yield PlannedChange(
            Sign.REFUSED, "not_primary", "rid", "the warehouse is secondary: a run is refused (docs/rid.md)"
        )
    for source, reason in preview.unreadable_sources.items():
        result = "the run stops" if config.on_source_error == "fail" else "it is left out"
        yield PlannedChange(Sign.REFUSED, "source_not_followed", source, f"{result}: {reason}")


def _settings(config: Config, preview: Preview) -> Iterator[PlannedChange]:
    """Yield the sources and settings that differ from those of the last run."""
    if preview.before.epoch < 0:
        return
    if preview.before.settings is None:
        text = "unknown of the last run, since its release did not store them: nothing is compared"
        yield PlannedChange(Sign.SAME, "settings_unknown", "settings", text)
        return
    old, new = json.loads(preview.before.settings), json.loads(settings_json(config))
    old_sources, new_sources = set(old.pop("sources", ())), set(new.pop("sources", ()))
    for source in sorted(new_sources - old_sources):
        yield PlannedChange(Sign.NEW, "source_new", source, "a new source")
    for source in sorted(old_sources - new_sources):
        yield PlannedChange(
            Sign.GONE, "source_gone", source, "not a source any more; its rows stay in the tables"
        )
    for key in sorted({*old, *new} - {"format"}):
        for path, before, after in differences(old.get(key), new.get(key), key):
            name = {"policies": "policy_changed", "masks": "mask_changed"}.get(key, "setting_changed")
            text = f"{_json_text(before)} → {_json_text(after)}; it concerns {_EFFECTS.get(key, 'the whole run')}"
            yield PlannedChange(Sign.CHANGED, name, path, text)


def differences(old: object, new: object, path: str) -> Iterator[tuple[str, object, object]]:
    """Yield (path, old value, new value) of each leaf that differs between two JSON values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}")
    elif old != new:
        yield path, old, new


def _json_text(value: object) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _masks(preview: Preview) -> Iterator[PlannedChange]:
    for mask in preview.mask_changes:
        if mask.encoding is None:
            text = "is not masked any more: readers see the exact rows"
            yield PlannedChange(Sign.CHANGED, "table_unmasked", mask.table, text)
            yield PlannedChange(Sign.GONE, "table_removed", mask.exact, "is removed: it held the exact rows")
            continue
        text = "is masked in another way: it is written again before the first batch"
        yield PlannedChange(Sign.CHANGED, "table_masked", mask.table, text)
        if not mask.was_masked:
            yield PlannedChange(
                Sign.NEW, "table_made", mask.exact, "is made: it holds the exact rows from now on"
            )


def _start_positions(preview: Preview) -> Iterator[PlannedChange]:
    for uuid, entry in sorted(preview.start_offsets.items()):
        is_new = uuid not in preview.before.replicasets
        where = f"in {entry.file} at {entry.position} of {entry.leader}"
        rows = (
            0
            if preview.plan is None or uuid not in preview.plan.summaries
            else preview.plan.summaries[uuid].row_count
        )
        amount = f"{rows} rows in {preview.log_bytes.get(uuid, 0)} bytes of logs are new"
        if is_new:
            yield PlannedChange(Sign.NEW, "replicaset_new", uuid, f"begins {where}: {amount}")
        else:
            yield PlannedChange(Sign.SAME, "continues", uuid, f"continues {where}: {amount}")
    for uuid in sorted(preview.before.replicasets.keys() - preview.start_offsets.keys()):
        yield PlannedChange(
            Sign.GONE, "replicaset_gone", uuid, "no source has it; its rows stay in the tables"
        )


def _instances(preview: Preview, plan: BatchPlan) -> Iterator[PlannedChange]:
    aggregator_id = plan.after.aggregator_id
    for uuid, number in sorted(plan.after.global_ids.items(), key=lambda item: item[1]):
        if uuid not in preview.before.global_ids and number != aggregator_id:
            yield PlannedChange(Sign.NEW, "instance_new", uuid, f"gets the global id {number}")


def _spaces(config: Config, preview: Preview, plan: BatchPlan) -> Iterator[PlannedChange]:
    labels = replicaset_labels(config, preview)
    for uuid, after in sorted(plan.after.replicasets.items()):
        before = preview.before.replicasets.get(uuid) or ReplicasetState(0, uuid)
        for number in sorted({*before.spaces, *after.spaces}):
            yield from _space_changes(labels[uuid], number, before, after)


def _unused_settings(config: Config, plan: BatchPlan) -> Iterator[PlannedChange]:
    """Yield the names and patterns of spaces in the configuration that no space matches, such as misspelt ones."""
    states = plan.after.replicasets.values()
    names = sorted({rows.decoded().name for one in states for rows in one.spaces.values()})
    given = [(f"policies.spaces.{name}", escape(name)) for name in config.policies.spaces]
    spaces = config.spaces
    given += [(f"spaces.rename.{name}", escape(name)) for name in spaces.rename]
    for key in ("include", "per_replicaset", "masks", "strings", "misfits"):
        given += [(f"spaces.{key}: {pattern}", pattern) for pattern in getattr(spaces, key)]
    for subject, pattern in given:
        if any(fnmatchcase(name, pattern) for name in names):
            continue
        close = get_close_matches(pattern, names, n=1)
        question = f"; did you mean {close[0]}?" if close else ""
        yield PlannedChange(Sign.SAME, "setting_unused", subject, f"is of no space that is known{question}")


def _space_changes(
    label: str, number: int, before: ReplicasetState, after: ReplicasetState
) -> Iterator[PlannedChange]:
    name = (after.spaces.get(number) or before.spaces[number]).decoded().name
    where = f"space {name} ({number}) of {label}"
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


def _tables(preview: Preview, plan: BatchPlan) -> Iterator[PlannedChange]:
    for table, change in preview.table_changes.items():
        if change in _BY_TABLE_CHANGE:
            sign, name, text = _BY_TABLE_CHANGE[change]
            yield PlannedChange(sign, name, table, text)
    possible = {version.table for version in plan.history.versions}
    for table in sorted(possible - preview.table_changes.keys() - preview.before.versions.keys()):
        text = "is made, and stays empty, if a batch ends while a space has this name"
        yield PlannedChange(Sign.SAME, "table_possible", table, text)
    for table, reason in plan.refused_tables.items():
        yield PlannedChange(Sign.REFUSED, "table_refused", table, f"cannot be written: {reason}")


def _gaps_and_pending(uuid: str, settlement: Settlement) -> Iterator[PlannedChange]:
    for gap in settlement.gaps:
        yield PlannedChange(
            Sign.REFUSED,
            "gap_found",
            uuid,
            f"lsns {gap.first} to {gap.last} of replica id {gap.replica_id} are missing",
        )
    if settlement.waits_from is not None:
        yield PlannedChange(Sign.REFUSED, "rows_wait", uuid, f"rows wait in _pending: {settlement.reason}")


def format_changes(changes: Iterable[PlannedChange], labels: Mapping[str, str]) -> Iterator[tuple[Sign, str]]:
    """Yield (sign, line of text) for each change; `labels` has the label of each replicaset, by uuid."""
    for change in changes:
        subject = labels.get(change.subject, change.subject)
        yield change.sign, f"{change.sign} {subject}  {change.text} [{change.name}]"


def as_json(changes: Iterable[PlannedChange]) -> dict[str, Any]:
    """Return the changes as a JSON object."""
    documents = [{**asdict(change), "sign": change.sign.name.lower()} for change in changes]
    signs = [document["sign"] for document in documents]
    totals = {name: signs.count(name) for name in (sign.name.lower() for sign in Sign)}
    return {"changes": documents, "totals": totals}
