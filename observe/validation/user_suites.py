"""Reads the user's suites: a file for each table, `<table>.yaml` or `.json`, in the format of Great Expectations.

    name: accounts                                   # optional; must be the name of the table
    expectations:
      - type: expect_column_values_to_be_between
        kwargs: {column: balance, min_value: 0}

All files are read and checked before Spark starts; `observe.validation.validator` runs them.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from config.yaml_document import Document, Mistake, configuration_error, read_document
from schemas.errors import ConfigurationError

SUITE_SUFFIXES = (".yaml", ".yml", ".json")
_SUITE_KEYS = {"name", "expectations", "meta", "notes", "id", "suite_parameters"}
_EXPECTATION_KEYS = {"type", "kwargs", "meta", "notes", "description", "severity", "id", "rendered_content"}

FILE_META_KEY = "file"
"""Key in an expectation's `meta` whose value is the path of the expectation's file."""


def read_user_suites(folder: Path, tables: Collection[str]) -> dict[str, list[Any]]:
    """Return the user's expectations by table; an error has the file and the reason."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    suites: dict[str, list[Any]] = {}
    for file in files:
        if file.suffix not in SUITE_SUFFIXES:
            allowed = ", ".join(f"<table>{suffix}" for suffix in SUITE_SUFFIXES)
            raise ConfigurationError(
                "not a suite of expectations", file=str(file), advice=f"name it {allowed}"
            )
        if file.stem not in tables:
            raise ConfigurationError(
                f"there is no table {file.stem}",
                file=str(file),
                advice="name the file like its table, or move it to another folder",
            )
        suites.setdefault(file.stem, []).extend(read_suite(file))
    return suites


def read_suite(file: Path) -> list[Any]:
    """Return the expectations of a file; an error has the file, the line and the reason."""
    document = read_document(file)
    mistakes = [*document.repeated_keys, *_find_mistakes(document)]
    if mistakes:
        raise configuration_error(document, mistakes)
    expectations: list[Any] = []
    for number, item in enumerate(document.data["expectations"]):
        expectation = _expectation_or_error(item, file)
        if isinstance(expectation, str):
            mistakes.append(Mistake(("expectations", number), expectation))
        expectations.append(expectation)
    if mistakes:
        raise configuration_error(document, mistakes)
    return expectations


def _find_mistakes(document: Document) -> list[Mistake]:
    data = document.data
    if not isinstance(data, dict) or not isinstance(data.get("expectations"), list):
        return [Mistake((), "is not a suite: a mapping with a list `expectations`")]
    found = [
        Mistake((key,), f"is not a key of a suite: {', '.join(sorted(_SUITE_KEYS))}")
        for key in {*data} - _SUITE_KEYS
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
        known = ", ".join(sorted(_EXPECTATION_KEYS))
        found += [
            Mistake((*where, key), f"is not a key of an expectation: {known}")
            for key in {*one} - _EXPECTATION_KEYS
        ]
    return found


def _expectation_or_error(item: Mapping[str, Any], file: Path) -> Any:
    import great_expectations.exceptions as gx_exceptions
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    arguments = {key: value for key, value in item.items() if key not in ("id", "rendered_content")}
    arguments["meta"] = {**(item.get("meta") or {}), FILE_META_KEY: str(file)}
    try:
        return ExpectationConfiguration(**{"kwargs": {}, **arguments}).to_domain_obj()
    except gx_exceptions.ExpectationNotFoundError:
        return f"{item['type']!r} is not an expectation of Great Expectations"
    except (ValueError, TypeError, gx_exceptions.GreatExpectationsError) as error:
        reasons = getattr(error, "errors", None)
        if not callable(reasons):
            return str(error)
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in reasons())
