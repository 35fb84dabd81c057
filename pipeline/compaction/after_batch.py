"""Joins small files of the tables that a batch wrote, if a table has many, in commits that change no row."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.compaction.choose import crowded_size_classes, groups_to_join, is_join_due
from pipeline.compaction.rewrite import sized_files, write_joined
from warehouse.delta.commits import OpenTables


def join_small_files(
    tables: OpenTables, versions: Mapping[str, int], added_files: Mapping[str, int]
) -> dict[str, int]:
    """Join small files of tables that have many, and return the new versions of these tables.

    Args:
        versions: The versions of the tables that the batch wrote.
        added_files: The number of files that the batch added to each table.
    """
    due = [name for name, version in versions.items() if is_join_due(version, added_files.get(name, 0))]
    after = {name: _join_files_of(tables, name) for name in sorted(due)}
    return {name: version for name, version in after.items() if version != versions[name]}


def _join_files_of(tables: OpenTables, table: str) -> int:
    """Join one group of files of each size class that has many, and return the table's version."""
    version = tables.version(table)
    for files in crowded_size_classes(tables.files(table)):
        group = next(groups_to_join(sized_files(tables, table, files)), [])
        if group:
            removed = [(file, False) for file in group]
            version = tables.commit(table, write_joined(tables, table, group), removed)
    return version
