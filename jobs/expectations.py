"""What must hold of the tables whatever happened: names of rows are unique, bookkeeping agrees with the log.

Checks of single tables are Great Expectations' own; what compares two tables is SQL that must return no row. No check
depends on the order of rows. They read one consistent cut: the versions that the newest epoch names. The library is
imported where it is used: it takes a second, and imports much that its own dependencies have deprecated.
Not here: unique secondary indexes (`jobs.secondary`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

Cut = Callable[[str], DataFrame]
"""Table to its rows at the versions of the newest epoch."""


@dataclass(frozen=True)
class Check:
    """What is expected of one frame.

    Parameters
    ----------
    name : str
    rows : DataFrame
    expectations : tuple
        Great Expectations' expectations.

    """

    name: str
    rows: DataFrame
    expectations: tuple[Any, ...]


@dataclass(frozen=True)
class Verdict:
    """What came of one expectation."""

    check: str
    expected: str
    holds: bool
    details: Mapping[str, Any] = field(default_factory=dict)


def system_checks(cut: Cut) -> Iterator[Check]:
    """Yield what is expected of the aggregator's own tables."""
    import great_expectations.expectations as gxe

    unique = gxe.ExpectColumnValuesToBeUnique
    present = gxe.ExpectColumnValuesToNotBeNull
    cluster = (unique(column="uuid"), unique(column="global_id"), present(column="replicaset_id"))
    yield Check("_cluster", cut("_cluster"), cluster)
    logged = cut("_changelog").where("file LIKE '%.xlog' AND lsn IS NOT NULL")
    named = logged.selectExpr("global_id", "coalesce(replica_id, 0) AS replica_id", "lsn", "replicaset_id")
    one_row = gxe.ExpectCompoundColumnsToBeUnique(
        column_list=["replicaset_id", "global_id", "replica_id", "lsn"]
    )
    yield Check("_changelog", named, (one_row, present(column="global_id")))
    yield Check("_epochs", cut("_epochs"), (unique(column="epoch"), present(column="versions")))
    states = gxe.ExpectColumnValuesToBeInSet(column="state", value_set=["present", "deleted", "unfit"])
    yield Check("_versions", cut("_versions"), (states, present(column="key")))


def space_check(cut: Cut, table: str) -> Check:
    """Return what is expected of a space's table."""
    import great_expectations.expectations as gxe

    keys = (gxe.ExpectColumnValuesToBeUnique(column="_key"), gxe.ExpectColumnValuesToNotBeNull(column="_key"))
    exact = gxe.ExpectColumnValuesToNotBeNull(column="_tuple")
    # A variant is nothing that the library's metrics know.
    rows = cut(table).select("_key", "_tuple", "_replicaset_id", "_lsn")
    return Check(table, rows, (*keys, exact, gxe.ExpectColumnValuesToNotBeNull(column="_replicaset_id")))


def verdicts(check: Check) -> Iterator[Verdict]:
    """Yield what comes of each expectation of a check."""
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    source = context.data_sources.add_spark(name="warehouse", persist=False)
    asset = source.add_dataframe_asset(name=check.name)
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": check.rows})
    for expectation in check.expectations:
        result = batch.validate(expectation)
        told = dict(result.result or {})
        kept = {key: told[key] for key in ("unexpected_count", "element_count") if key in told}
        raised = (result.exception_info or {}).get("exception_message")
        if raised:
            kept["exception"] = raised
        yield Verdict(check.name, _said(expectation), bool(result.success), kept)


def _said(expectation: Any) -> str:
    words = {"column": getattr(expectation, "column", None), "of": getattr(expectation, "column_list", None)}
    rest = ", ".join(f"{name} {value}" for name, value in words.items() if value)
    return f"{type(expectation).__name__}({rest})"


AGREEMENTS: Mapping[str, str] = {
    "no row of _changelog is beyond _vclock": """
        WITH told AS (
          SELECT replicaset_id, local_id, max_by(lsn, epoch) AS lsn FROM {_vclock} GROUP BY ALL
        ), logged AS (
          SELECT replicaset_id, coalesce(replica_id, 0) AS local_id, max(lsn) AS lsn FROM {_changelog}
          WHERE file LIKE '%.xlog' AND lsn IS NOT NULL AND replica_id IS NOT NULL GROUP BY ALL
        )
        SELECT * FROM logged LEFT JOIN told USING (replicaset_id, local_id)
        WHERE told.lsn IS NULL OR logged.lsn > told.lsn""",
    "rows of one origin in _changelog have no hole but those in _gaps": """
        WITH logged AS (
          SELECT replicaset_id, replica_id, lsn,
                 lag(lsn) OVER (PARTITION BY replicaset_id, replica_id ORDER BY lsn) AS before FROM {_changelog}
          WHERE file LIKE '%.xlog' AND lsn IS NOT NULL AND replica_id > 0
        )
        SELECT l.* FROM logged l WHERE l.lsn > l.before + 1 AND NOT EXISTS (
          SELECT 1 FROM {_gaps} g WHERE g.replicaset_id = l.replicaset_id AND g.local_id = l.replica_id
            AND g.first_lsn <= l.before + 1 AND g.last_lsn >= l.lsn - 1)""",
    "epochs follow one another": """
        SELECT * FROM (SELECT epoch, lag(epoch) OVER (ORDER BY epoch) AS before FROM {_epochs})
        WHERE epoch <> before + 1""",
}
"""What is expected to SQL that returns no row where it holds; `{table}` stands for the table's rows."""


def agreements(cut: Cut) -> Iterator[Verdict]:
    """Yield whether the tables agree with one another."""
    for expected, sql in AGREEMENTS.items():
        names = [name for name in ("_vclock", "_changelog", "_gaps", "_epochs") if f"{{{name}}}" in sql]
        frames: dict[str, Any] = {name.removeprefix("_"): cut(name) for name in names}
        spark = next(iter(frames.values())).sparkSession
        text = sql
        for name in names:
            text = text.replace(f"{{{name}}}", f"{{{name.removeprefix('_')}}}")
        found = spark.sql(text, **frames).limit(5).collect()
        details = {"rows": [row.asDict() for row in found]} if found else {}
        yield Verdict("tables", expected, not found, details)
