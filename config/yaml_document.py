"""Reads a YAML file as plain data with the line of each value, and describes its mistakes by lines.

Stricter than YAML itself: a repeated key in a mapping is a mistake (YAML loaders silently use the last one), and keys
must be strings. `mistakes_of` converts pydantic's errors about the data to mistakes in terms of the YAML.
"""

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
    """One mistake in a document."""

    value_path: ValuePath
    """The path of the value; empty for the document as a whole."""
    problem: str
    """What is wrong, and what is allowed."""


@dataclass(frozen=True)
class Document:
    """A parsed file."""

    file: Path
    """The file that was parsed."""
    data: Any
    """Dicts, lists and scalars."""
    line_by_path: dict[ValuePath, int]
    """Path of a value to its 1-based line; for a value of a mapping, the line of its key."""
    repeated_keys: tuple[Mistake, ...]

    def line(self, value_path: ValuePath) -> int:
        """Return the line of a value; if it is missing, that of the mapping or list around it."""
        while value_path not in self.line_by_path:
            value_path = value_path[:-1]
        return self.line_by_path[value_path]


def read_document(file: Path) -> Document:
    """Parse a YAML file.

    Raises:
        ConfigurationError: The file cannot be read, is not UTF-8, or is not one YAML document.
    """
    line_by_path: dict[ValuePath, int] = {(): 1}
    try:
        text = file.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
        repeated_keys = tuple(_collect_lines(node, (), line_by_path)) if node is not None else ()
    except OSError as error:
        raise ConfigurationError(
            f"the configuration cannot be read: {error.strerror}", file=str(file), advice="check its path"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"the configuration is not YAML: {reason}", file=str(file)) from error
    except RecursionError as error:
        raise ConfigurationError("the configuration contains itself (an alias)", file=str(file)) from error
    return Document(file, data, line_by_path, repeated_keys)


def _collect_lines(
    node: yaml.Node, value_path: ValuePath, line_by_path: dict[ValuePath, int]
) -> Iterator[Mistake]:
    """Add the line of each value below a node to `line_by_path`, and yield a mistake for each repeated key.

    `value_path` is the path of the node itself.
    """
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*value_path, key.value)
            line = key.start_mark.line + 1
            if inner in line_by_path:
                yield Mistake(inner, f"appears twice (also in line {line_by_path[inner]})")
            line_by_path[inner] = line
            yield from _collect_lines(value, inner, line_by_path)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            line_by_path[(*value_path, number)] = item.start_mark.line + 1
            yield from _collect_lines(item, (*value_path, number), line_by_path)


def path_text(value_path: ValuePath) -> str:
    """Return the path of a value as text: `sources[1].path`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in value_path)
    return text.removeprefix(".")


def configuration_error(document: Document, mistakes: list[Mistake]) -> ConfigurationError:
    """Return one error for all mistakes of a document, in the order of their lines.

    If there is only one, the error's fields are `file`, `line` and `path`.
    """
    ordered = sorted(
        mistakes, key=lambda mistake: (document.line(mistake.value_path), path_text(mistake.value_path))
    )
    file = str(document.file)
    if len(ordered) == 1:
        value_path = ordered[0].value_path
        return ConfigurationError(
            ordered[0].problem,
            file=file,
            line=document.line(value_path),
            path=path_text(value_path) or "the whole file",
        )
    texts = (f"line {document.line(m.value_path)}: {path_text(m.value_path)}: {m.problem}" for m in ordered)
    return ConfigurationError(
        "\n  ".join([f"{len(ordered)} mistakes in the configuration", *texts]), file=file
    )


_ALLOWED_BY_ERROR_TYPE = {
    "model_type": "keys with values",
    "dict_type": "keys with values",
    "tuple_type": "a list",
    "string_type": "a text",
    "bool_type": "true, false",
}
"""Type of pydantic's error to what is allowed instead, in terms of YAML."""


def mistakes_of(error: ValidationError, model: type[BaseModel]) -> list[Mistake]:
    """Return a mistake for each of pydantic's errors in a document of type `model`."""
    return [_mistake(details, model) for details in error.errors()]


def _mistake(details: ErrorDetails, model: type[BaseModel]) -> Mistake:
    value_path = tuple(details["loc"])
    if details["type"] == "mistake":
        context = details["ctx"]
        return Mistake((*value_path, *context["value_path"]), context["problem"])
    if value_path and value_path[-1] == "[key]":
        return Mistake(value_path[:-1], f"the key {details['input']!r} is not a text: put it in quotes")
    return Mistake(value_path, _explanation(details, value_path, model))


def _explanation(details: ErrorDetails, value_path: ValuePath, model: type[BaseModel]) -> str:
    value = _shortened(details["input"])
    match details["type"]:
        case "missing":
            problem = "is missing"
        case "extra_forbidden":
            problem = _unknown_key(str(value_path[-1]), sorted(_keys_at(model, value_path[:-1])))
        case "unsupported_value":
            problem = f"{value} {details['ctx']['why']}; allowed: {_allowed_values(model, value_path)}"
        case "literal_error":
            problem = f"{value} is refused; allowed: {_allowed_values(model, value_path)}"
        case _:
            problem = (
                f"{value} is refused; allowed: {_ALLOWED_BY_ERROR_TYPE.get(details['type'], details['msg'])}"
            )
    return problem


def _shortened(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unknown_key(key: str, known: list[str]) -> str:
    close = get_close_matches(key, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{key!r} is not a key here{hint} (known: {', '.join(known)})"


def _keys_at(model: type[BaseModel], value_path: ValuePath) -> set[str]:
    kind = _type_at(model, value_path)
    return set(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else set()


def _allowed_values(model: type[BaseModel], value_path: ValuePath) -> str:
    return ", ".join(str(value).lower() for value in get_args(_type_at(model, value_path)))


def _type_at(model: type[BaseModel], value_path: ValuePath) -> Any:
    """Return the type of the value at a path: follow fields, items of tuples and values of dicts."""
    kind: Any = model
    for part in value_path:
        kind = _without_none(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(part)].annotation
        else:
            kind = next(inner for inner in reversed(get_args(kind)) if inner is not Ellipsis)
    return _without_none(kind)


def _without_none(kind: Any) -> Any:
    """Return a type without what `Annotated` adds to it, and `X` for `X | None`."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    rest = [inner for inner in get_args(kind) if inner is not type(None)]
    return rest[0] if type(None) in get_args(kind) and len(rest) == 1 else kind
