"""Generates JSON Schemas of the configuration, for completion, descriptions and checks in editors.

    python -m config.json_schema        writes conf/schema.json and conf/live.schema.json

They are generated from the models, whose docstrings describe the keys. A schema cannot express all checks of
`config.deployment`, such as names that must differ or keys that need each other; but the models reject all that a
schema rejects.
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

from config.deployment import Config, DaemonConfig

SCHEMA_FOLDER = Path(__file__).resolve().parents[1] / "conf"
JSON_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PARAMETERS_HEADING = re.compile(r"\n\nParameters\n-+\n")
_PARAMETER_NAMES = re.compile(r"(\w+(?:, \w+)*)(?: : .*)?")


def schemas() -> dict[str, dict[str, Any]]:
    """Return file name to schema, for both files."""
    live = schema_of(DaemonConfig)
    # The sections of the daemons may be in the file of the deployment, whose other keys the daemons ignore.
    live["properties"] |= {
        name: True for name in Config.model_fields if name not in DaemonConfig.model_fields
    }
    return {"schema.json": schema_of(Config), "live.schema.json": live}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a model, with a description of each key that a docstring describes."""
    whole = model.model_json_schema(schema_generator=_WithoutTitles)
    models = {one.__name__: one for one in _models_in(model)}
    for name, part in [(model.__name__, whole), *whole["$defs"].items()]:
        summary, described = described_keys(inspect.getdoc(models[name]) or "")
        part["description"] = summary
        for key, value in part["properties"].items():
            if key in described:
                value["description"] = described[key]
    return {"$schema": JSON_SCHEMA_DIALECT, **whole}


def described_keys(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the text before the parameters of a NumPy docstring, and parameter to description."""
    summary, _, parameters = _PARAMETERS_HEADING.sub("\0", docstring, count=1).partition("\0")
    descriptions: dict[str, str] = {}
    names: list[str] = []
    for line in parameters.splitlines():
        head = _PARAMETER_NAMES.fullmatch(line)
        if head is not None:
            names = head[1].split(", ")
        elif line.startswith("    "):
            for name in names:
                descriptions[name] = f"{descriptions.get(name, '')} {line.strip()}".strip()
    return " ".join(summary.split()), descriptions


def schema_text(schema: dict[str, Any]) -> str:
    """Return the text of a schema's file: indented JSON."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


class _WithoutTitles(GenerateJsonSchema):
    """Leaves out the titles of keys, which editors would show instead of the descriptions."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def _models_in(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a model and, recursively, the models of its fields."""
    yield model
    for field in model.model_fields.values():
        for one in _models_of_type(field.annotation):
            yield from _models_in(one)


def _models_of_type(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type annotation."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models_of_type(inner)


if __name__ == "__main__":
    for _name, _schema in schemas().items():
        (SCHEMA_FOLDER / _name).write_text(schema_text(_schema), encoding="utf-8")
