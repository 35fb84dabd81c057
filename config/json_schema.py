"""Generates JSON Schemas of the configuration, for completion, descriptions and checks in editors.

    python -m config.json_schema        writes conf/schema.json and conf/live.schema.json

Generated from the models, whose docstrings describe the keys. A schema cannot express all checks of
`config.deployment`, such as names that must differ or keys that need each other. Whatever a schema rejects, the models
reject too.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from config.deployment import Config
from config.live import Live

FOLDER = Path(__file__).resolve().parents[1] / "conf"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PARAMETERS = re.compile(r"\n\nParameters\n-+\n")
_NAMES = re.compile(r"(\w+(?:, \w+)*)(?: : .*)?")


def schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas by file name."""
    live = schema_of(Live)
    # The sections of the daemons may be in the file of the deployment; daemons ignore its other keys.
    live["properties"] |= {name: True for name in Config.model_fields if name not in Live.model_fields}
    return {"schema.json": schema_of(Config), "live.schema.json": live}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a model, with a description of each key that a docstring describes."""
    whole = model.model_json_schema(schema_generator=_Plain)
    models = {one.__name__: one for one in _models(model)}
    for name, part in [(model.__name__, whole), *whole["$defs"].items()]:
        summary, described = described_keys(inspect.getdoc(models[name]) or "")
        part["description"] = summary
        for key, value in part["properties"].items():
            if key in described:
                value["description"] = described[key]
    return {"$schema": DIALECT, **whole}


def described_keys(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the summary of a docstring in NumPy's form, and the text of each parameter that has one."""
    summary, _, parameters = _PARAMETERS.sub("\0", docstring, count=1).partition("\0")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in parameters.splitlines():
        head = _NAMES.fullmatch(line)
        if head is not None:
            names = head[1].split(", ")
        elif line.startswith("    "):
            for name in names:
                found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return " ".join(summary.split()), found


def text_of(schema: dict[str, Any]) -> str:
    """Return a schema as the text of its file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


class _Plain(GenerateJsonSchema):
    """Leaves out the titles of keys, which editors would show in place of the descriptions."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a model and all models of its fields."""
    yield model
    for field in model.model_fields.values():
        for one in _classes(field.annotation):
            yield from _models(one)


def _classes(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _classes(inner)


if __name__ == "__main__":
    for _name, _schema in schemas().items():
        (FOLDER / _name).write_text(text_of(_schema), encoding="utf-8")
