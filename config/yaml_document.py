"""Reads a YAML file as plain data with the line of each value, and describes its mistakes by lines.

Stricter than YAML itself: a repeated key in a mapping is a mistake (YAML loaders silently use the last one), and keys
must be strings. `mistakes_of` converts pydantic's errors about the data to mistakes in terms of the YAML.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from schemas.errors import ConfigurationError

ValuePath = tuple[str | int, ...]
"""The path from the top of the YAML to a value: keys of mappings and indexes of lists."""


@dataclass(frozen=True)
class Mistake:
    """One mistake in a document.

    Parameters
    ----------
    where : tuple of str and int
        The path of the value; empty for the document as a whole.
    what : str
        What is wrong, and what is allowed.

    """

    where: ValuePath
    what: str


@dataclass(frozen=True)
class Document:
    """A parsed file.

    Parameters
    ----------
    file : Path
        The file that was parsed.
    data : object
        Dicts, lists and scalars.
    lines : dict
        1-based line of each location; for values of a mapping, the line of their key.
    repeated : tuple of Mistake
        Repeated keys.

    """

    file: Path
    data: Any
    lines: dict[ValuePath, int]
    repeated: tuple[Mistake, ...]

    def line(self, where: ValuePath) -> int:
        """Return the line of a value; if it is missing, that of the mapping or list around it."""
        while where not in self.lines:
            where = where[:-1]
        return self.lines[where]


def read_document(file: Path) -> Document:
    """Parse a YAML file.

    Raises
    ------
    ConfigurationError
        The file cannot be read, is not UTF-8, or is not one YAML document.

    """
    lines: dict[ValuePath, int] = {(): 1}
    try:
        text = file.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
        repeated = tuple(_collect_lines(node, (), lines)) if node is not None else ()
    except OSError as error:
        raise ConfigurationError(
            f"the configuration cannot be read: {error.strerror}", file=str(file), advice="check its path"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"the configuration is not YAML: {reason}", file=str(file)) from error
    except RecursionError as error:
        raise ConfigurationError("the configuration contains itself (an alias)", file=str(file)) from error
    return Document(file, data, lines, repeated)


def _collect_lines(node: yaml.Node, where: ValuePath, lines: dict[ValuePath, int]) -> Iterator[Mistake]:
    """Add the line of each value below a node to `lines`, and yield a mistake for each repeated key."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*where, key.value)
            line = key.start_mark.line + 1
            if inner in lines:
                yield Mistake(inner, f"appears twice (also in line {lines[inner]})")
            lines[inner] = line
            yield from _collect_lines(value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            lines[(*where, number)] = item.start_mark.line + 1
            yield from _collect_lines(item, (*where, number), lines)


def location_text(where: ValuePath) -> str:
    """Return a location as text: `sources[1].path`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
    return text.removeprefix(".")


def configuration_error(document: Document, mistakes: list[Mistake]) -> ConfigurationError:
    """Return one error for all mistakes of a document, in the order of their lines.

    If there is only one, the error's fields are `file`, `line` and `path`.
    """
    ordered = sorted(
        mistakes, key=lambda mistake: (document.line(mistake.where), location_text(mistake.where))
    )
    file = str(document.file)
    if len(ordered) == 1:
        where = ordered[0].where
        return ConfigurationError(
            ordered[0].what,
            file=file,
            line=document.line(where),
            path=location_text(where) or "the whole file",
        )
    texts = (f"line {document.line(m.where)}: {location_text(m.where)}: {m.what}" for m in ordered)
    return ConfigurationError(
        "\n  ".join([f"{len(ordered)} mistakes in the configuration", *texts]), file=file
    )


_ALLOWED = {
    "model_type": "keys with values",
    "dict_type": "keys with values",
    "tuple_type": "a list",
    "string_type": "a text",
    "bool_type": "true, false",
}
"""What is allowed for each type of pydantic's errors, in terms of YAML."""


def mistakes_of(error: ValidationError, model: type[BaseModel]) -> list[Mistake]:
    """Return a mistake for each of pydantic's errors in a document of type `model`."""
    return [_mistake(details, model) for details in error.errors()]


def _mistake(details: ErrorDetails, model: type[BaseModel]) -> Mistake:
    where = tuple(details["loc"])
    if details["type"] == "mistake":
        context = details["ctx"]
        return Mistake((*where, *context["where"]), context["what"])
    if where and where[-1] == "[key]":
        return Mistake(where[:-1], f"the key {details['input']!r} is not a text: put it in quotes")
    return Mistake(where, _explanation(details, where, model))


def _explanation(details: ErrorDetails, where: ValuePath, model: type[BaseModel]) -> str:
    value = _shortened(details["input"])
    match details["type"]:
        case "missing":
            what = "is missing"
        case "extra_forbidden":
            what = _unknown_key(str(where[-1]), sorted(_keys_at(model, where[:-1])))
        case "later":
            what = f"{value} {details['ctx']['why']}; allowed: {_allowed_values(model, where)}"
        case "literal_error":
            what = f"{value} is refused; allowed: {_allowed_values(model, where)}"
        case _:
            what = f"{value} is refused; allowed: {_ALLOWED.get(details['type'], details['msg'])}"
    return what


def _shortened(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unknown_key(key: str, known: list[str]) -> str:
    close = get_close_matches(key, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"is not a key here{hint} (known: {', '.join(known)})"


def _keys_at(model: type[BaseModel], where: ValuePath) -> set[str]:
    kind = _type_at(model, where)
    return set(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else set()


def _allowed_values(model: type[BaseModel], where: ValuePath) -> str:
    return ", ".join(str(value).lower() for value in get_args(_type_at(model, where)))


def _type_at(model: type[BaseModel], where: ValuePath) -> Any:
    """Return the type that the model has at a location: follow fields, items of tuples and values of dicts."""
    kind: Any = model
    for part in where:
        kind = _without_none(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(part)].annotation
        else:
            kind = next(inner for inner in reversed(get_args(kind)) if inner is not Ellipsis)
    return _without_none(kind)


def _without_none(kind: Any) -> Any:
    """Return a type without its annotations and without None."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    rest = [inner for inner in get_args(kind) if inner is not type(None)]
    return rest[0] if type(None) in get_args(kind) and len(rest) == 1 else kind
