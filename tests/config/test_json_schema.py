"""The JSON Schemas of the configuration: the committed files accept and refuse the same as the models."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from config.deployment import Config, DaemonConfig
from config.json_schema import SCHEMA_FOLDER, schema_text, schemas

LEAST = "{warehouse: wh, checkpoint: cp, sources: [{name: a1, path: a1}]}"
UUID = "a7b43b53-30ba-4f41-8b2d-1c2f6d7d3f01"
PEER = "{replicasets: [{name: a, spool: s, peers: ['u@h:1']}]}"

TAKEN = (
    "trigger: 500 milliseconds",
    "local_bytes: 64 MiB",
    "local_bytes: 5",
    "reader: null",
    f"sources: [{{name: a-1.x, path: 's3a://l/a', origins: [{UUID}], replicaset: {UUID.upper()}}}]",
    "types: {decimal: 'decimal(38, 10)', unsigned: long}",
    "spaces: {strings: {s: binary, t: {f: binary}}, misfits: {'*': quarantine}, masks: {s: {f: drop}}}",
    "policies: {default: {policy: custom, function: 'a.b:c'}, spaces: {s: {sequence: [t], deletes: all}}}",
    "retention: {tombstones: 90 days, changelog: 3, batches: 2}",
    "metrics: {status: '127.0.0.1:1', stale: null}",
    "lineage: {url: 'https://h:5000/api', key_env: KEY}",
    f"subscribe: {PEER}",
)
REFUSED = (
    "warehouse: ' '",
    "trigger: 5 parsecs",
    "trigger: 5",
    "local_bytes: 0",
    "local_bytes: 5 MeB",
    "database: Upper",
    "sources: [{name: 'a b', path: a}]",
    "sources: [{name: a}]",
    "sources: [{name: a, path: a, replicaset: x}]",
    "types: {decimal: 'decimal(37,1)'}",
    "spaces: {strings: {s: text}}",
    "spaces: {local: true}",
    "policies: {default: {policy: best}}",
    "policies: {default: {policy: custom, function: nowhere}}",
    "retention: {batches: 1}",
    "retention: {tombstones: 2 weeks}",
    "feed: own_peer",
    "no_such_key: 1",
    "lineage: {url: 'http://u:p@h'}",
    "subscribe: {replicasets: [{name: a}]}",
)


def document(change: str) -> dict[str, Any]:
    whole: dict[str, Any] = yaml.safe_load(LEAST) | yaml.safe_load(change)
    return whole


def taken_by_model(model: type[BaseModel], data: Any) -> bool:
    try:
        model.model_validate(data)
    except ValidationError:
        return False
    return True


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMA_FOLDER / "schema.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["schema.json", "live.schema.json"])
def test_the_committed_file_is_what_the_models_say(name: str) -> None:
    assert (SCHEMA_FOLDER / name).read_text(encoding="utf-8") == schema_text(schemas()[name]), (
        "run `make schema`"
    )
    Draft202012Validator.check_schema(schemas()[name])


@pytest.mark.parametrize(("change", "taken"), [*((c, True) for c in TAKEN), *((c, False) for c in REFUSED)])
def test_schema_and_model_agree(validator: Draft202012Validator, change: str, taken: bool) -> None:
    data = document(change)
    assert taken_by_model(Config, data) is taken
    assert validator.is_valid(data) is taken


def test_the_schema_needs_what_the_model_needs(validator: Draft202012Validator) -> None:
    for key in ("warehouse", "checkpoint", "sources"):
        data = document("{}")
        del data[key]
        assert not taken_by_model(Config, data)
        assert not validator.is_valid(data)


@pytest.mark.parametrize("file", sorted(SCHEMA_FOLDER.glob("*.yaml")), ids=lambda file: str(file.name))
def test_each_example_names_its_schema_and_follows_it(file: Path) -> None:
    first, _, text = file.read_text(encoding="utf-8").partition("\n")
    assert first.startswith("# yaml-language-server: $schema=")
    schema = json.loads((file.parent / first.partition("=")[2]).read_text(encoding="utf-8"))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(yaml.safe_load(text))] == []


def test_a_file_of_the_daemons_may_have_the_deployments_keys() -> None:
    live = Draft202012Validator(schemas()["live.schema.json"])
    assert live.is_valid(document(f"subscribe: {PEER}"))
    assert not live.is_valid({"subscribe": {}})
    assert not live.is_valid({"no_such_key": 1})
    assert taken_by_model(DaemonConfig, {"subscribe": yaml.safe_load(PEER)})


def test_each_key_of_the_deployment_is_described() -> None:
    parts = {"Config": schemas()["schema.json"], **schemas()["schema.json"]["$defs"]}
    bare = {name for name, part in parts["Config"]["properties"].items() if "description" not in part}
    assert bare == set()
    assert (
        "one of several sources of a replicaset is read"
        in parts["Config"]["properties"]["feed"]["description"]
    )


def test_a_key_whose_description_is_that_of_its_model_keeps_it() -> None:
    cluster = schemas()["schema.json"]["properties"]["cluster"]
    assert cluster["description"] == schemas()["schema.json"]["$defs"]["GlobalIds"]["description"]
