"""Generates JSON Schemas of the configuration, for completion, descriptions and checks in editors.

    python -m config.json_schema        writes conf/schema.json and conf/live.schema.json

They are generated from the models: the strings under the fields describe the keys. A schema cannot express all checks
of `config.deployment`, such as names that must differ or keys that need each other; but the models reject all that a
schema rejects.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from config.deployment import Config, DaemonConfig

SCHEMA_FOLDER = Path(__file__).resolve().parents[1] / "conf"
JSON_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """Return file name to schema, for both files."""
    live = schema_of(DaemonConfig)
    # The sections of the daemons may be in the file of the deployment, whose other keys the daemons ignore.
    live["properties"] |= {
        name: True for name in Config.model_fields if name not in DaemonConfig.model_fields
    }
    return {"schema.json": schema_of(Config), "live.schema.json": live}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a model; its descriptions are those of the models and their fields, each in one line."""
    whole = model.model_json_schema(schema_generator=_WithDescriptions)
    for part in (whole, *whole["$defs"].values()):
        part["description"] = _in_one_line(part["description"])
        for value in part["properties"].values():
            if "description" in value:  # the last key, as in the committed files
                value["description"] = _in_one_line(value.pop("description"))
    return {"$schema": JSON_SCHEMA_DIALECT, **whole}


def schema_text(schema: dict[str, Any]) -> str:
    """Return the text of a schema's file: indented JSON."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


class _WithDescriptions(GenerateJsonSchema):
    """Keeps the description of each key, and leaves out titles, which editors would show instead of it."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def handle_ref_overrides(self, json_schema: dict[str, Any]) -> dict[str, Any]:
        # pydantic leaves out what equals the schema of the key's model.
        return json_schema


if __name__ == "__main__":
    for _name, _schema in schemas().items():
        (SCHEMA_FOLDER / _name).write_text(schema_text(_schema), encoding="utf-8")
