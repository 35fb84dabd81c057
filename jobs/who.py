"""Show everything about one key: who changed it, when, in which transaction, and why the winner won.

Reads the tables as of the newest epoch (`observe.key_changes.reader`), without Spark, also while a stream runs.
`history_as_json` converts the history to a JSON object, and `history_lines` converts that to text.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jobs.runtime.command_line import print_result
from jobs.runtime.output import say_json, say_lines
from observe.key_changes.reader import KeyChange, KeyChangesReader, KeyHistory
from observe.log_rows.catalog import LoggedSpace
from observe.log_rows.row_format import to_json_value, with_field_names
from schemas.names import replicaset_label
from schemas.states import RowState
from udfs.before_replace.row import decode
from udfs.keys.key_patterns import Value
from warehouse.delta.location import WarehouseLocation


def history_as_json(history: KeyHistory) -> dict[str, Any]:
    """Return the history of a key as a JSON object."""
    newest = history.space.definitions[-1].definition
    winner = history.winning_row
    return {
        "changes": [_change_as_json(change, history) for change in history.changes],
        "decisions": [_decision_as_json(row, history, newest) for row in history.decisions],
        "versions": [
            {
                "replicaset": history.replicaset_uuids.get(row["replicaset_id"]),
                "state": row["state"],
                "lsn": row["lsn"],
                "tuple": _readable_tuple(row["tuple"], newest),
            }
            for row in history.newest_versions
        ],
        "current": None
        if winner is None
        else {
            "tuple": _readable_tuple(winner["_tuple"], newest),
            "replicaset": history.replicaset_uuids.get(abs(winner["_replicaset_id"])),
            "origin": history.instance_uuids.get(winner["_global_id"]),
            "lsn": winner["_lsn"],
            "timestamp": _iso_time(winner["_timestamp"]),
        },
        "incomplete": sorted(
            history.replicaset_uuids.get(one, str(one)) for one in history.replicaset_ids_with_removed_rows
        ),
    }


def _change_as_json(change: KeyChange, history: KeyHistory) -> dict[str, Any]:
    row = change.row
    definition = history.space.definition_at(row["epoch"], row["replicaset_id"], row["space_id"])
    is_snapshot = row["file"].endswith(".snap")
    found = {
        **{"timestamp": None if is_snapshot else _iso_time(row["timestamp"]), "type": row["type"]},
        **{"replicaset": history.replicaset_uuids.get(row["replicaset_id"]), "source": row["source"]},
        **{"origin": history.instance_uuids.get(row["global_id"]), "lsn": row["lsn"], "state": row["state"]},
        **{"epoch": row["epoch"], "file": row["file"], "position": row["position"], "row": row["row"]},
        "operations": None if row["operations"] is None else to_json_value(decode(row["operations"])),
        "transaction": [
            {
                "space": one["space"] or one["space_id"],
                "type": one["type"],
                "lsn": one["lsn"],
                "key": None if one["key"] is None else to_json_value(decode(one["key"])),
                "tuple": None if one["tuple"] is None else to_json_value(decode(one["tuple"])),
            }
            for one in change.transaction_rows
        ],
    }
    if change.is_tuple_known:
        found["after"] = _readable_tuple(change.tuple_after, definition)
    return found


def _decision_as_json(row: Mapping[str, Any], history: KeyHistory, definition: LoggedSpace) -> dict[str, Any]:
    def side(name: str) -> dict[str, Any]:
        replicaset = row[f"{name}_replicaset_id"]
        return {
            "replicaset": None if replicaset is None else history.replicaset_uuids.get(abs(replicaset)),
            "origin": history.instance_uuids.get(row[f"{name}_global_id"]),
            "lsn": row[f"{name}_lsn"],
            "timestamp": _iso_time(row[f"{name}_timestamp"]),
            "tuple": _readable_tuple(row[f"{name}_tuple"], definition),
        }

    found = {
        **{"decided_at": _iso_time(row["decided_at"]), "epoch": row["epoch"], "kind": row["kind"]},
        **{
            "policy": row["policy"],
            "sequence": row["sequence"],
            "changed": row["changed"],
            "note": row["note"],
        },
        **{"winner": side("winner"), "loser": side("loser")},
    }
    return {**found, "why": decision_reason(found)}


def decision_reason(decision: Mapping[str, Any]) -> str:
    """Return why the winner of a decision won, as text: the policy, the compared values, the note."""
    winner, loser, sequence = decision["winner"], decision["loser"], decision["sequence"]
    text = f"{decision['policy']} by {sequence}" if sequence else str(decision["policy"])
    if sequence == "timestamp":
        sides = [side["timestamp"] for side in (winner, loser)]
    else:
        columns = str(sequence or "").partition("(")[2].rstrip(")") or str(sequence or "")
        sides = [_fields_text(side["tuple"], columns.split(", ")) for side in (winner, loser)]
    if all(side is not None for side in sides):
        text += f": {sides[0]} against {sides[1]}"
    return f"{text} ({decision['note']})" if decision["note"] else text


def _fields_text(values: Any, names: Sequence[str]) -> str | None:
    if not isinstance(values, dict) or not all(name in values for name in names):
        return None
    return ", ".join(json.dumps(values[name], ensure_ascii=False) for name in names)


def _readable_tuple(data: bytes | None, definition: LoggedSpace | None) -> Any:
    return None if data is None else with_field_names(to_json_value(decode(data)), definition)


def _iso_time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def history_lines(history_json: Mapping[str, Any]) -> list[str]:
    """Return the history of a key as lines of text."""
    sources: dict[str, list[str]] = {}
    for change in history_json["changes"]:
        sources.setdefault(change["replicaset"], []).append(change["source"])
    incomplete = [_label_or_unknown(one, sources) for one in history_json["incomplete"]]
    result = [f"maintenance has removed older rows of replicaset {one}" for one in incomplete]
    replicaset = None
    for change in history_json["changes"]:
        if change["replicaset"] != replicaset:
            replicaset = change["replicaset"]
            result.append(f"replicaset {_label_or_unknown(replicaset, sources)}")
        after = _json_line(change["after"]) if "after" in change else "not known"
        state = "" if change["state"] == RowState.COMMITTED else f" ({change['state']})"
        when, who_ = change["timestamp"] or "from a snapshot", change["origin"] or "origin not known"
        result.append(f"  {when} {change['type']}{state} by {who_} lsn {change['lsn']} -> {after}")
        result += [f"    with {_transaction_line(one)}" for one in change["transaction"]]
    for one in history_json["decisions"]:
        result.append(f"decision in epoch {one['epoch']}, {one['decided_at']}: {one['why']}")
        for name, verb in (("winner", "won"), ("loser", "lost")):
            side = one[name]
            owner = _label_or_unknown(side["replicaset"], sources)
            result.append(f"  {verb}: {_json_line(side['tuple'])} of replicaset {owner} lsn {side['lsn']}")
    current = history_json["current"]
    if current is None:
        result.append("now: no row in the table")
    else:
        owner = _label_or_unknown(current["replicaset"], sources)
        result.append(f"now: {_json_line(current['tuple'])} of {owner} lsn {current['lsn']}")
    return result


def _label_or_unknown(replicaset_uuid: str | None, sources: Mapping[str, list[str]]) -> str:
    return (
        "unknown"
        if replicaset_uuid is None
        else replicaset_label(replicaset_uuid, *sources.get(replicaset_uuid, ()))
    )


def _transaction_line(row: Mapping[str, Any]) -> str:
    return f"{row['type']} {row['space']} lsn {row['lsn']} {_json_line(row['key'] or row['tuple'])}"


def _json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def who(location: WarehouseLocation, space: str, values: Sequence[Value], *, as_json: bool = False) -> int:
    """Print everything about a key; return 1 if no row has the key."""
    history = KeyChangesReader(location).history(space, values)
    found = history_as_json(history)
    if as_json:
        say_json({"space": space, "key": to_json_value(list(values)), **found})
    else:
        say_lines(history_lines(found))
    if not history.changes and history.winning_row is None:
        print_result(
            f"no row of {space} has the key {json.dumps(to_json_value(list(values)))}",
            f"aggregator cat --space {space}",
        )
        return 1
    replicasets = len({change.row["replicaset_id"] for change in history.changes})
    print_result(
        f"{len(history.changes)} changes in {replicasets} replicasets, {len(history.decisions)} decisions"
    )
    return 0
