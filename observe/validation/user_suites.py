"""Reads the user's suites: a file per table, `<table>.yaml` or `.json`, in Great Expectations' own format.

    name: accounts                                   # optional; if given, the table
    expectations:
      - type: expect_column_values_to_be_between
        kwargs: {column: balance, min_value: 0}

All files are read and checked before Spark starts; `observe.validation.validator` runs them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from config.yaml_document import Document, Mistake, read_document, refuse
from schemas.errors import ConfigurationError

SUFFIXES = (".yaml", ".yml", ".json")
_KEYS = {"name", "expectations", "meta", "notes", "id", "suite_parameters"}
_EXPECTATION = {"type", "kwargs", "meta", "notes", "description", "severity", "id", "rendered_content"}

FILE = "file"
"""Key of an expectation's `meta` for the path of its file."""


def read_user_suites(folder: Path, tables: Collection[str]) -> dict[str, list[Any]]:
    """Return the user's expectations by table.

    Parameters
    ----------
    folder : Path
    tables : collection of str
        The existing tables.

    Raises
    ------
    ConfigurationError
        A file is not a suite, or its name is not that of a table; names the first such file and the reason.

    """
    files = sorted(one for one in folder.iterdir() if one.is_file() and not one.name.startswith("."))
    found: dict[str, list[Any]] = {}
    for file in files:
        if file.suffix not in SUFFIXES:
            allowed = ", ".join(f"<table>{suffix}" for suffix in SUFFIXES)
            raise ConfigurationError(
                "not a suite of expectations", file=str(file), advice=f"name it {allowed}"
            )
        if file.stem not in tables:
            raise ConfigurationError(
                f"there is no table {file.stem} to expect anything of",
                file=str(file),
                advice="name the file as the table is named, or move it elsewhere",
            )
        found.setdefault(file.stem, []).extend(expectations_of(file))
    return found


def expectations_of(file: Path) -> list[Any]:
    """Return the expectations of a file.

    Raises
    ------
    ConfigurationError
        Names the file, the line and the reason.

    """
    document = read_document(file)
    mistakes = [*document.repeated, *_shape(document)]
    if mistakes:
        raise refuse(document, mistakes)
    built: list[Any] = []
    for number, item in enumerate(document.data["expectations"]):
        one = _built(item, file)
        if isinstance(one, str):
            mistakes.append(Mistake(("expectations", number), one))
        built.append(one)
    if mistakes:
        raise refuse(document, mistakes)
    return built


def _shape(document: Document) -> list[Mistake]:
    data = document.data
    if not isinstance(data, dict) or not isinstance(data.get("expectations"), list):
        return [Mistake((), "is not a suite: a mapping with a list `expectations`")]
    found = [
        Mistake((key,), f"is not a key of a suite: {', '.join(sorted(_KEYS))}") for key in {*data} - _KEYS
    ]
    if data.get("name", document.file.stem) != document.file.stem:
        found.append(Mistake(("name",), f"{data['name']!r} is not the file's name"))
    for number, one in enumerate(data["expectations"]):
        where = ("expectations", number)
        if not isinstance(one, dict) or not isinstance(one.get("type"), str):
            found.append(Mistake(where, "is not an expectation: a mapping with `type` and `kwargs`"))
            continue
        if not isinstance(one.get("kwargs", {}), dict):
            found.append(Mistake((*where, "kwargs"), "is not a mapping"))
        known = ", ".join(sorted(_EXPECTATION))
        found += [
            Mistake((*where, key), f"is not a key of an expectation: {known}")
            for key in {*one} - _EXPECTATION
        ]
    return found


def _built(item: Mapping[str, Any], file: Path) -> Any:
    """Return the expectation, or what is wrong with it."""
    import great_expectations.exceptions as gx_exceptions
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    given = {key: value for key, value in item.items() if key not in ("id", "rendered_content")}
    given["meta"] = {**(item.get("meta") or {}), FILE: str(file)}
    try:
        return ExpectationConfiguration(**{"kwargs": {}, **given}).to_domain_obj()
    except gx_exceptions.ExpectationNotFoundError:
        return f"{item['type']!r} is not an expectation of Great Expectations"
    except (ValueError, TypeError, gx_exceptions.GreatExpectationsError) as error:
        reasons = getattr(error, "errors", None)
        if not callable(reasons):
            return str(error)
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in reasons())
