"""What a deployment knows of its rows beside their tuples: origin, times, typed columns.

Origin and times must be what a simple fold of the same logs says (`tests.oracle`), which also says which tuple wins
a key that two replicasets have. Typed columns must hold what the fields of the exact tuple hold.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.names import column_name, table_name
from tests.histories.play import Held
from tests.oracle import Winner, fold_directory, last_write_wins, mp
from tests.oracle.keys import Part
from tests.pipeline.deployment import Deployment

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "unsigned": int,
    "integer": int,
    "string": str,
    "boolean": bool,
    "double": float,
}
"""Types whose columns hold a value as Python does, where it fits."""


def unlike_the_logs(deployment: Deployment, folders: Iterable[Path], names: Iterable[str]) -> list[str]:
    """Return in words where rows differ from those that a fold of the logs gives.

    Args:
        deployment: Whose rows have all been read from logs.
        folders: A server's directory each replicaset.
        names: Of the spaces to look at.
    """
    folded = [fold_directory(folder) for folder in folders]
    found = []
    for name in names:
        own = [one for one in folded if name in one.by_name() and not one.by_name()[name].is_local]
        if any(one.by_name()[name].engine == "vinyl" and one.by_name()[name].field_count for one in own):
            continue  # a fold does not know which UPSERTs a server skips since their results do not fit
        if len({tuple(map(_compared, one.by_name()[name].key)) for one in own}) > 1:
            continue  # rows under different keys do not meet
        expected = sorted(map(_known_of, last_write_wins(own, name).values()))
        rows = sorted(map(_known, deployment.table(name).values()))
        lacking = [one for one in expected if one not in rows]
        extra = [one for one in rows if one not in expected]
        if lacking or extra:
            found.append(
                f"{name}: (tuple, lsn, changed, created) are {_read(extra)}, by the logs {_read(lacking)}"
            )
    return found


def _compared(part: Part) -> tuple[int, str, bool]:
    """Return what decides which keys of a part a fold takes for the same (`tests.oracle.keys`)."""
    return part.field, part.path, part.type == "unsigned"


_Known = tuple[bytes, int, int, int]


def _known_of(winner: Winner) -> _Known:
    version = winner.version
    return winner.tuple, version.lsn, version.timestamp, version.created


def _known(row: Mapping[str, Any]) -> _Known:
    times = [
        (row[column] - EPOCH) if row[column] is not None else None for column in ("_timestamp", "_created")
    ]
    micros = [0 if time is None else round(time.total_seconds() * 1_000_000) for time in times]
    return row["_tuple"], row["_lsn"] or 0, micros[0], micros[1]


def _read(known: Iterable[_Known]) -> list[Any]:
    return [(mp.decode(raw), *rest) for raw, *rest in known]


def unlike_the_tuples(deployment: Deployment, truth: Mapping[str, Held]) -> list[str]:
    """Return in words which typed columns do not hold what the tuples do.

    Args:
        deployment: Of one replicaset.
        truth: What its server holds, by name of space.
    """
    found = []
    for name, held in truth.items():
        for row in deployment.rows(table_name(name)):
            fields = mp.decode(row["_tuple"])
            for index, (field, kind) in enumerate(held.fields):
                value = fields[index] if index < len(fields) else None
                column = row.get(column_name(field), "no column")
                wanted = None if _is_misfit(kind, value) else value
                if kind in PLAIN and not _is_same(column, wanted, PLAIN[kind]):
                    found.append(f"{name}: {field} is {column!r} in the row of {fields}")
            found += _other_misfits(name, row, fields, held)
    return found


def _other_misfits(name: str, row: Mapping[str, Any], fields: Sequence[Any], held: Held) -> list[str]:
    """Return in words where `_misfits` does not name the columns that cannot hold their fields."""
    plain = {column_name(field): kind for field, kind in held.fields if kind in PLAIN}
    values = dict(zip((column_name(field) for field, _ in held.fields), fields, strict=False))
    expected = [column for column, kind in plain.items() if _is_misfit(kind, values.get(column))]
    named = [column for column in row["_misfits"] or () if column in plain]
    return (
        [] if named == expected else [f"{name}: misfits are {named}, not {expected}, in the row of {fields}"]
    )


def _is_misfit(kind: str, value: Any) -> bool:
    """Return whether a column of a type cannot hold a value: one that is not UTF-8, or beyond 64 bits with a sign."""
    if kind == "string" and value is not None:
        return any("\udc80" <= letter <= "\udcff" for letter in value)
    return kind == "integer" and value is not None and value >= 2**63


def _is_same(column: Any, value: Any, of: Callable[[Any], Any]) -> bool:
    if value is None or column is None or column == "no column":
        return column is value
    return bool(of(column) == of(value)) or (column != column and value != value)  # noqa: PLR0124
