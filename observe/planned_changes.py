"""The planned changes that `aggregator plan` prints, one per line. No I/O."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

from config.deployment import Config
from observe.problems import difference_problem, first_reason
from pipeline.plan.batch_plan import BatchPlan
from pipeline.plan.ids.settle import Settlement
from pipeline.plan.settings import settings_json
from pipeline.preview import Preview, VectorPlan
from pipeline.state import ReplicasetState
from pipeline.write.changes import TableChange
from schemas.names import replicaset_label
from schemas.problems import Problem
from schemas.units import size_text
from udfs.remap.cluster_replace import FIRST_DAEMON_ID


class ChangeSign(StrEnum):
    """Kind of a planned change, and the first character of its line."""

    SAME = " "
    NEW = "+"
    CHANGED = "~"
    GONE = "-"
    REFUSED = "!"


SIGN_AND_MEANING: Mapping[str, tuple[ChangeSign, str]] = {
    "source_new": (ChangeSign.NEW, "the source was none before"),
    "replicaset_new": (ChangeSign.NEW, "and where it begins"),
    "instance_new": (ChangeSign.NEW, "and its global id"),
    "space_new": (ChangeSign.NEW, "the space is taken up"),
    "table_made": (ChangeSign.NEW, "also of the exact rows, where a mask is new"),
    "own_tables_made": (ChangeSign.NEW, "the aggregator's own tables"),
    "request": (ChangeSign.NEW, "a request is taken up"),
    "policy_changed": (ChangeSign.CHANGED, "and which rows it concerns"),
    "mask_changed": (ChangeSign.CHANGED, "and which rows it concerns"),
    "setting_changed": (ChangeSign.CHANGED, "and what it concerns"),
    "table_masked": (ChangeSign.CHANGED, "the table is written again before the first batch"),
    "table_unmasked": (ChangeSign.CHANGED, "readers see the exact rows"),
    "space_moved": (ChangeSign.CHANGED, "renamed, or routed elsewhere"),
    "columns_added": (ChangeSign.CHANGED, "the table gets new columns"),
    "table_rewritten": (ChangeSign.CHANGED, "its columns change"),
    "vectors_made": (ChangeSign.CHANGED, "the table gets deletion vectors"),
    "source_gone": (ChangeSign.GONE, "its rows stay in the tables"),
    "replicaset_gone": (ChangeSign.GONE, "its rows stay in the tables"),
    "space_gone": (ChangeSign.GONE, "dropped; the table stays, without its rows"),
    "table_removed": (ChangeSign.GONE, "the table of the exact rows, where a mask is gone"),
    "not_primary": (ChangeSign.REFUSED, "the warehouse is a copy"),
    "source_not_followed": (ChangeSign.REFUSED, "the source cannot be read"),
    "space_refused": (ChangeSign.REFUSED, "the space goes to no table"),
    "table_refused": (ChangeSign.REFUSED, "the table cannot be written"),
    "table_changed": (ChangeSign.REFUSED, "somebody else has changed the table"),
    "table_lost": (ChangeSign.REFUSED, "the table is not there, or an older one"),
    "gap_found": (ChangeSign.REFUSED, "lsns are missing"),
    "rows_wait": (ChangeSign.REFUSED, "rows wait in `_pending`"),
    "values_left_out": (ChangeSign.REFUSED, "new tuples have a value that its column cannot hold"),
    "spaces_refused": (ChangeSign.REFUSED, "a condition that is true already, as the next three"),
    "rows_waiting": (ChangeSign.REFUSED, "rows wait in `_pending` already"),
    "rows_set_aside": (ChangeSign.REFUSED, "rows are in no table"),
    "misfits": (ChangeSign.REFUSED, "rows have a NULL for a value that its column cannot hold"),
    "continues": (ChangeSign.SAME, "and from where"),
    "setting_unused": (ChangeSign.SAME, "a policy, mask or pattern that no space matches: often misspelt"),
    "table_possible": (ChangeSign.SAME, "made if a batch ends while a space has this name"),
    "vectors": (ChangeSign.SAME, "the table has deletion vectors"),
    "vectors_possible": (ChangeSign.SAME, "the table may get deletion vectors"),
    "vectors_kept": (ChangeSign.SAME, "no new ones are made in a table that has some"),
}
"""By the stable name of a change: its sign, and what it means."""


@dataclass(frozen=True)
class NextRunChange:
    """A change that the next run will make, or what prevents it: one line of the output."""

    name: str
    """A key of `SIGN_AND_MEANING`."""
    subject: str
    """The changed thing: a source, a replicaset's uuid, a table, a setting."""
    text: str

    @property
    def sign(self) -> ChangeSign:
        """The sign of its name."""
        return SIGN_AND_MEANING[self.name][0]


_LINE_BY_TABLE_CHANGE = {
    TableChange.CREATE: ("table_made", "is made"),
    TableChange.ADD: ("columns_added", "gets new columns"),
    TableChange.REWRITE: ("table_rewritten", "is written again: its columns change"),
}
"""By kind of change to a table: the name and the text of the `NextRunChange`."""

_LINE_BY_VECTORS = {
    VectorPlan.HAS: ("vectors", "has deletion vectors"),
    VectorPlan.KEEPS: (
        "vectors_kept",
        "keeps the deletion vectors that it has; `aggregator maintain --purge` writes their files again",
    ),
    VectorPlan.GETS: ("vectors_made", "gets deletion vectors with the first batch that deletes rows of it"),
    VectorPlan.MAY_GET: (
        "vectors_possible",
        "gets deletion vectors if a batch would write more than {size} of its old rows again",
    ),
}
"""Whether a table has or gets deletion vectors: the name and the text of the `NextRunChange`."""

_AFFECTED_BY_SETTING = {
    "policies": "rows that come from now on; `aggregator rebuild SPACE` applies it to the other rows",
    "masks": "all rows, before the first batch",
    "types": "tables that are made from now on, and those whose columns it changes are written again",
    "spaces": "rows that come from now on",
    "start": "replicasets that are new",
    "on_gap": "gaps that are found from now on",
}
"""By section or key of the configuration: the rows, tables or replicasets to which a new value applies."""


_PROBLEMS = ("spaces_refused", "rows_waiting", "rows_set_aside", "misfits")
"""The conditions of tables that the next run does not end by itself."""


def planned_changes(
    config: Config, preview: Preview, problems: Iterable[Problem] = ()
) -> list[NextRunChange]:
    """Return what the next run will change, in the order in which it does so.

    Args:
        problems: What needs attention in the tables now.
    """
    changes = list(_refusals(config, preview))
    changes += [
        NextRunChange(one.condition, one.subject, f"{one.text}; {one.shown_advice}")
        for one in problems
        if one.condition in _PROBLEMS
    ]
    changes += _changed_settings(config, preview)
    changes += _changed_masks(preview)
    changes += [
        NextRunChange(
            "request",
            request.id,
            f"{request.kind} {json.dumps(dict(request.arguments))} is taken up",
        )
        for request in preview.requests
    ]
    if preview.missing_system_tables:
        text = f"the aggregator's own tables are made: {', '.join(preview.missing_system_tables)}"
        changes.append(NextRunChange("own_tables_made", "tables", text))
    changes += _start_position_lines(preview)
    if preview.plan is not None:
        plan = preview.plan
        changes += _new_instances(preview, plan)
        changes += _unused_space_settings(config, plan)
        changes += _changed_spaces(config, preview, plan)
        changes += _changed_tables(preview, plan)
        changes += [
            NextRunChange(name, table, text.format(size=size_text(config.deletion_vectors_above)))
            for table, vectors in preview.vectors.items()
            for name, text in (_LINE_BY_VECTORS[vectors],)
        ]
        changes += _left_out_values(preview)
        for uuid, settlement in sorted(plan.settlements.items()):
            changes += _gaps_and_pending(uuid, settlement)
    return changes


def replicaset_labels(config: Config, preview: Preview) -> dict[str, str]:
    """Return, by replicaset uuid, the name of the replicaset in the output."""
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


def _refusals(config: Config, preview: Preview) -> Iterator[NextRunChange]:
    if not preview.is_writable:
        yield NextRunChange(
            "not_primary",
            "rid",
            "the warehouse is secondary: a run is refused (docs/rid.md)",
        )
    for one in preview.differences:
        found = difference_problem(one)
        result = "the run is refused" if one.stops_job else "it is set aside, and the others go on"
        text = f"{result}: {one.text}; {one.advice}"
        yield NextRunChange(found.condition, one.table, text)
    for source, reason in preview.unreadable_sources.items():
        result = "the run stops" if config.on_source_error == "fail" else "it is left out"
        yield NextRunChange("source_not_followed", source, f"{result}: {reason}")


def _changed_settings(config: Config, preview: Preview) -> Iterator[NextRunChange]:
    if preview.before.settings is None:
        return
    old, new = json.loads(preview.before.settings), json.loads(settings_json(config))
    old_sources, new_sources = set(old.pop("sources", ())), set(new.pop("sources", ()))
    for source in sorted(new_sources - old_sources):
        yield NextRunChange("source_new", source, "a new source")
    for source in sorted(old_sources - new_sources):
        yield NextRunChange("source_gone", source, "not a source any more; its rows stay in the tables")
    for key in sorted({*old, *new} - {"format"}):
        for path, before, after in json_differences(old.get(key), new.get(key), key):
            name = {"policies": "policy_changed", "masks": "mask_changed"}.get(key, "setting_changed")
            affected = _AFFECTED_BY_SETTING.get(key, "the whole run")
            text = f"{_json_text(before)} → {_json_text(after)}; it concerns {affected}"
            yield NextRunChange(name, path, text)


def json_differences(old: object, new: object, path: str) -> Iterator[tuple[str, object, object]]:
    """Yield (path, old value, new value) of each leaf that differs between two JSON values, which are at `path`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from json_differences(old.get(key), new.get(key), f"{path}.{key}")
    elif old != new:
        yield path, old, new


def _json_text(value: object) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _changed_masks(preview: Preview) -> Iterator[NextRunChange]:
    for mask in preview.mask_changes:
        if mask.encoding is None:
            text = "is not masked any more: readers see the exact rows"
            yield NextRunChange("table_unmasked", mask.table, text)
            yield NextRunChange("table_removed", mask.exact, "is removed: it held the exact rows")
            continue
        text = "is masked in another way: it is written again before the first batch"
        yield NextRunChange("table_masked", mask.table, text)
        if not mask.was_masked:
            yield NextRunChange("table_made", mask.exact, "is made: it holds the exact rows from now on")


def _start_position_lines(preview: Preview) -> Iterator[NextRunChange]:
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
            yield NextRunChange("replicaset_new", uuid, f"begins {where}: {amount}")
        else:
            yield NextRunChange("continues", uuid, f"continues {where}: {amount}")
    for uuid in sorted(preview.before.replicasets.keys() - preview.start_offsets.keys()):
        yield NextRunChange("replicaset_gone", uuid, "no source has it; its rows stay in the tables")


def _new_instances(preview: Preview, plan: BatchPlan) -> Iterator[NextRunChange]:
    aggregator_id = plan.after.aggregator_id
    for uuid, number in sorted(plan.after.global_ids.items(), key=lambda item: item[1]):
        if uuid not in preview.before.global_ids and number != aggregator_id:
            what = "a subscription daemon, " if number >= FIRST_DAEMON_ID else ""
            yield NextRunChange("instance_new", uuid, f"{what}gets the global id {number}")


def _changed_spaces(config: Config, preview: Preview, plan: BatchPlan) -> Iterator[NextRunChange]:
    labels = replicaset_labels(config, preview)
    for uuid, after in sorted(plan.after.replicasets.items()):
        before = preview.before.replicasets.get(uuid) or ReplicasetState(0, uuid)
        for number in sorted({*before.spaces, *after.spaces}):
            yield from _space_changes(labels[uuid], number, before, after)


def _unused_space_settings(config: Config, plan: BatchPlan) -> Iterator[NextRunChange]:
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
        yield NextRunChange("setting_unused", subject, f"is of no space that is known{question}")


def _space_changes(
    label: str, number: int, before: ReplicasetState, after: ReplicasetState
) -> Iterator[NextRunChange]:
    name = (after.spaces.get(number) or before.spaces[number]).decoded().name
    where = f"space {name} ({number}) of {label}"
    old, new = before.tables.get(number), after.tables.get(number)
    refused = after.refused.get(number)
    if number not in after.spaces:
        if old is not None:
            yield NextRunChange("space_gone", old, f"{where} is dropped; the table stays, without its rows")
    elif refused is not None and refused != before.refused.get(number):
        yield NextRunChange("space_refused", name, f"{where} goes to no table: {refused}")
    elif new is not None and old is None:
        yield NextRunChange("space_new", new, f"{where} is taken up")
    elif new is not None and new != old:
        yield NextRunChange("space_moved", new, f"{where} goes here; its rows leave the table {old}")


def _changed_tables(preview: Preview, plan: BatchPlan) -> Iterator[NextRunChange]:
    for table, change in preview.table_changes.items():
        if change in _LINE_BY_TABLE_CHANGE:
            name, text = _LINE_BY_TABLE_CHANGE[change]
            yield NextRunChange(name, table, text)
    possible = {version.table for version in plan.history.versions}
    for table in sorted(possible - preview.table_changes.keys() - preview.before.versions.keys()):
        text = "is made, and stays empty, if a batch ends while a space has this name"
        yield NextRunChange("table_possible", table, text)
    for table, reason in plan.refused_tables.items():
        yield NextRunChange("table_refused", table, f"cannot be written: {reason}")


def _left_out_values(preview: Preview) -> Iterator[NextRunChange]:
    for table, values in preview.left_out.items():
        effect = "the row is set aside" if values.is_row_left_out else "it is NULL there"
        count = "1 new row has" if values.row_count == 1 else f"{values.row_count} new rows have"
        text = f"{count} a value that its column cannot hold, so {effect}: {first_reason(values.reason)}"
        yield NextRunChange("values_left_out", table, text)


def _gaps_and_pending(uuid: str, settlement: Settlement) -> Iterator[NextRunChange]:
    for gap in settlement.gaps:
        yield NextRunChange(
            "gap_found",
            uuid,
            f"lsns {gap.first_lsn} to {gap.last_lsn} of replica id {gap.replica_id} are missing",
        )
    if settlement.waits_from is not None:
        yield NextRunChange("rows_wait", uuid, f"rows wait in _pending: {settlement.wait_reason}")


def format_changes(
    changes: Iterable[NextRunChange], labels: Mapping[str, str]
) -> Iterator[tuple[ChangeSign, str]]:
    """Yield (sign, line of text) for each change; `labels` has the names of replicasets in the output, by uuid."""
    for change in changes:
        subject = labels.get(change.subject, change.subject)
        yield change.sign, f"{change.sign} {subject}  {change.text} [{change.name}]"


def as_json(changes: Iterable[NextRunChange]) -> dict[str, Any]:
    """Return the changes as a JSON object."""
    documents = [{"sign": change.sign.name.lower(), **asdict(change)} for change in changes]
    signs = [document["sign"] for document in documents]
    totals = {name: signs.count(name) for name in (sign.name.lower() for sign in ChangeSign)}
    return {"changes": documents, "totals": totals}
