"""Expands globs: the files and directories that a path with wildcards matches now.

As in Spark's file sources, a glob is a path that contains one of `* ? [ {`, unless a file or directory has exactly this
name. In a URI, `?` begins the query. Each part between two slashes is matched separately, so `*` matches no slash. If
the last part ends in `*`, only files with a suffix of Tarantool's log files match, and only directories that have such
files.
"""

import fnmatch
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as pafs

from sources.xlog.reader.file_buffer import open_fs

_BRACES = re.compile(r"\{([^{}]*)\}")
_LOG_SUFFIXES = (".xlog", ".snap", ".vylog", ".run", ".index")


def is_glob(path: str) -> bool:
    """Return whether a path has wildcards and is not the name of something that exists."""
    stem, query = _split_query(path)
    if not any(character in stem for character in _wildcard_characters(path)):
        return False
    try:
        filesystem, inner = open_fs(stem + query)
    except (ValueError, pa.ArrowException):
        return True  # not a URI: `[` and `{` are not allowed in one
    return bool(filesystem.get_file_info(inner).type == pafs.FileType.NotFound)


def expand_glob(pattern: str) -> list[str]:
    """Return the paths that a glob matches now, sorted; raise OSError if a directory cannot be listed."""
    stem, query = _split_query(pattern)
    found: set[str] = set()
    for alternative in _expanded_braces(stem):
        parts = alternative.split("/")
        first = next((i for i, part in enumerate(parts) if _has_wildcard(part, pattern)), len(parts) - 1)
        shown_directory = "/".join(parts[:first])
        root = shown_directory or ("/" if alternative.startswith("/") else ".")
        filesystem, directory = open_fs(root + query)
        found.update(
            path + query
            for path in _matches_below(filesystem, directory, shown_directory, parts[first:], pattern)
        )
    return sorted(found)


def glob_matches(pattern: str, path: str) -> bool:
    """Return whether a glob would match a path if it existed."""
    stem, query = _split_query(path)
    wanted, wanted_query = _split_query(pattern)
    return query == wanted_query and any(
        len(parts) == stem.count("/") + 1 and all(map(_name_matches, parts, stem.split("/")))
        for parts in (alternative.split("/") for alternative in _expanded_braces(wanted))
    )


def _matches_below(
    filesystem: pafs.FileSystem, directory: str, shown_directory: str, parts: list[str], pattern: str
) -> Iterator[str]:
    if filesystem.get_file_info(directory).type != pafs.FileType.Directory:
        return
    for info in filesystem.get_file_info(pafs.FileSelector(directory)):
        name, is_directory = info.base_name, info.type == pafs.FileType.Directory
        if not _name_matches(parts[0], name) or (name.startswith(".") and not parts[0].startswith(".")):
            continue
        path = f"{shown_directory}/{name}" if shown_directory or pattern.startswith("/") else name
        if len(parts) > 1:
            if is_directory:
                yield from _matches_below(filesystem, info.path, path, parts[1:], pattern)
        elif not parts[0].endswith("*") or (
            _has_logs(filesystem, info.path) if is_directory else name.endswith(_LOG_SUFFIXES)
        ):
            yield path


def _has_logs(filesystem: pafs.FileSystem, path: str) -> bool:
    infos = filesystem.get_file_info(pafs.FileSelector(path))
    return any(info.base_name.endswith((".xlog", ".snap")) for info in infos)


def _name_matches(part: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, part.replace("[^", "[!"))


def _wildcard_characters(path: str) -> str:
    return "*[{" if "://" in path else "*?[{"


def _has_wildcard(part: str, pattern: str) -> bool:
    return any(character in part for character in _wildcard_characters(pattern))


def _split_query(path: str) -> tuple[str, str]:
    stem, question, query = path.partition("?") if "://" in path else (path, "", "")
    return stem, question + query


def _expanded_braces(pattern: str) -> Iterator[str]:
    found = _BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    for choice in found[1].split(","):
        yield from _expanded_braces(pattern[: found.start()] + choice + pattern[found.end() :])
