"""Converts pydantic's errors about a configuration to messages in terms of the YAML.

Each error becomes one `Mistake`: its location in the YAML, its value, and what is allowed.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from config.yaml_document import Location, Mistake

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


def _explanation(details: ErrorDetails, where: Location, model: type[BaseModel]) -> str:
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


def _keys_at(model: type[BaseModel], where: Location) -> set[str]:
    kind = _type_at(model, where)
    return set(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else set()


def _allowed_values(model: type[BaseModel], where: Location) -> str:
    return ", ".join(str(value).lower() for value in get_args(_type_at(model, where)))


def _type_at(model: type[BaseModel], where: Location) -> Any:
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
