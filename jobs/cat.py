"""Show the rows of log files, decoded: `aggregator cat`; needs neither Spark nor a configuration.

Reads local files only, and stops at damage, with an error that names it.
"""

import sys
from pathlib import Path

from jobs.runtime.output import write_line
from observe.log_rows.catalog import LogCatalog
from observe.log_rows.read import PrintedRowFilter, read_rows
from observe.log_rows.row_format import row_json, row_text


def cat(
    path: Path,
    row_filter: PrintedRowFilter,
    *,
    as_json: bool = False,
    follow: bool = False,
    with_tuples: bool = False,
    with_origins: bool = False,
) -> int:
    """Print the rows of a file or a directory that match a filter, and return their number.

    Args:
        follow: Wait for more rows at the end.
        with_tuples: Show UPDATE and UPSERT with the resulting tuple if the old one is known.
        with_origins: Name the instance of each row in text, too; JSON always has it.
    """
    catalog = LogCatalog(stores_all_tuples=with_tuples)
    count = 0
    for found in read_rows(path, catalog, follow=follow):
        for one in found:
            if not row_filter.matches(one, catalog):
                continue
            origin = catalog.uuid_by_replica_id.get(one.row.replica_id or 0)
            if as_json:
                write_line(row_json(one, origin, with_tuple_after=with_tuples), is_json=True)
            else:
                write_line(row_text(one, origin if with_origins else None, with_tuple_after=with_tuples))
            count += 1
        sys.stdout.flush()
    return count
