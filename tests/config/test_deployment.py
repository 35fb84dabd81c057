"""A valid configuration becomes a `Config` with defaults; each mistake is named by its location in the YAML."""

import pickle
import re
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from config.deployment import Config, GlobalIds, SourceConfig, Types, Validation, load
from config.policies import Policies, Policy
from config.spaces import Spaces
from schemas.errors import ConfigurationError

UUID = "a7b43b53-30ba-4f41-8b2d-1c2f6d7d3f01"
DEMO = Path(__file__).resolve().parents[2] / "conf" / "demo.yaml"
LEAST = "warehouse: wh\ncheckpoint: cp\nsources:\n  - {name: a1, path: a1}\n"


@pytest.fixture
def yaml(tmp_path: Path) -> Path:
    return tmp_path / "deployment.yaml"


def write(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def refused(file: Path, text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load(write(file, text))
    return caught.value


def test_the_least_configuration_has_defaults_for_the_rest(yaml: Path) -> None:
    config = load(write(yaml, LEAST))
    assert config.database == "aggregator"
    assert config.trigger == "5 seconds"
    assert config.cluster.allocation == "counter"
    assert (config.start, config.feed) == ("snapshot", "leader")
    assert (config.on_gap, config.on_source_error) == ("hold", "fail")
    assert config.policies.of("any") == Policy(policy="last_write_wins", sequence=(), deletes="own")
    assert (config.types.unsigned, config.types.integer, config.types.decimal) == (
        "precise",
        "long",
        "decimal(38,18)",
    )
    assert config.spaces.becomes_table("any")
    assert not config.spaces.local


def test_every_key(yaml: Path) -> None:
    text = f"""
        warehouse: s3a://lake/warehouse/
        database: tarantool
        checkpoint: /data/checkpoint
        trigger: 500 milliseconds
        sources:
          - {{name: a1, path: /logs/a1, origins: [{UUID.upper()}], replicaset: {UUID}}}
          - {{name: b-1, path: "s3a://logs/b1"}}
        cluster: {{allocation: counter}}
        start: logs
        feed: leader
        on_gap: skip
        on_source_error: skip
        spaces: {{include: ["acc*", "?x"], exclude: [old], rename: {{SQLT: upper}}, local: false}}
        policies:
          default: {{policy: last_write_wins, deletes: all}}
          spaces: {{accounts: {{sequence: [updated, id]}}}}
        types: {{unsigned: long, integer: precise, decimal: "decimal(38, 10)"}}
        max_bytes_per_trigger: 64 MiB
    """
    config = load(write(yaml, text))
    assert config.warehouse == "s3a://lake/warehouse"
    assert (config.checkpoint, config.database, config.trigger) == (
        "/data/checkpoint",
        "tarantool",
        "500 milliseconds",
    )
    assert config.sources == (
        SourceConfig(name="a1", path="/logs/a1", origins=(UUID,), replicaset=UUID),
        SourceConfig(name="b-1", path="s3a://logs/b1"),
    )
    assert (config.start, config.on_gap, config.on_source_error) == ("logs", "skip", "skip")
    assert config.types.decimal == "decimal(38,10)"
    assert config.max_bytes_per_trigger == 64 * 2**20


def test_relative_paths_start_at_the_files_folder(yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", "/home/somebody")
    text = "warehouse: ../wh\ncheckpoint: ~/cp\nsources: [{name: a, path: logs/../a1}]"
    config = load(write(yaml, text))
    assert config.warehouse == str(yaml.parent.parent / "wh")
    assert config.checkpoint == "/home/somebody/cp"
    assert config.sources[0].path == str(yaml.parent / "a1")


def test_spaces_are_chosen_by_patterns_and_named(yaml: Path) -> None:
    text = "spaces: {include: ['a*', SQLT], exclude: ['*_old'], rename: {SQLT: upper, my-space: mine}}"
    spaces = load(write(yaml, LEAST + text)).spaces
    assert [
        name for name in ("accounts", "Accounts", "a_old", "SQLT", "sqlt") if spaces.becomes_table(name)
    ] == [
        "accounts",
        "SQLT",
    ]
    assert [spaces.table(name) for name in ("accounts", "SQLT", "my-space", "my.space")] == [
        "accounts",
        "upper",
        "mine",
        "my_space__x2_2e",
    ]
    assert spaces.table("SQLT", local_instance=7) == "upper__l7"


def test_masks_are_found_by_patterns_and_the_stricter_one_wins(yaml: Path) -> None:
    masks = "{'a*': {mail: hash, phone: drop}, '*': {phone: hash, pin: drop}}"
    spaces = load(write(yaml, LEAST + f"spaces: {{masks: {masks}, mask_key_file: key.txt}}")).spaces
    assert spaces.masks_of("accounts") == {"mail": "hash", "phone": "drop", "pin": "drop"}
    assert spaces.masks_of("users") == {"phone": "hash", "pin": "drop"}
    assert spaces.mask_key().file == str(yaml.parent / "key.txt")
    assert load(write(yaml, LEAST + "spaces: {masks: {a: {pin: drop}}}")).spaces.masks_of("b") == {}


def test_the_treatment_of_misfits_is_chosen_by_pattern(yaml: Path) -> None:
    text = "spaces: {strings: {old_*: binary, users: {name: binary}, u*: {mail: binary}}, misfits: {led*: quarantine}}"
    spaces = load(write(yaml, LEAST + text)).spaces
    fields = ("id", "name", "mail")
    assert spaces.binary_fields("old_users", fields) == {"id", "name", "mail"}
    assert spaces.binary_fields("users", fields) == {"name", "mail"}
    assert spaces.binary_fields("people", fields) == frozenset()
    assert spaces.quarantines_misfits("ledger")
    assert not spaces.quarantines_misfits("users")
    for wrong, allowed in (("{strings: {a: text}}", "binary"), ("{misfits: {a: keep}}", "quarantine")):
        assert f"allowed: {allowed}" in str(refused(yaml, LEAST + f"spaces: {wrong}"))
    message = str(refused(yaml, LEAST + "spaces: {strings: {a: {b: text}}}"))
    assert "'text' is refused; allowed: binary" in message
    assert "path spaces.strings.a.b" in message


@pytest.mark.parametrize("keys", ["", ", mask_key_env: A, mask_key_file: b"])
def test_a_hash_needs_exactly_one_key(yaml: Path, keys: str) -> None:
    error = refused(yaml, LEAST + f"spaces: {{masks: {{a: {{mail: hash}}}}{keys}}}")
    assert "one of mask_key_env, mask_key_file" in str(error)


def test_a_spaces_policy_changes_only_what_it_names(yaml: Path) -> None:
    spaces = "{a: {sequence: [n]}, b: {deletes: own}, c: {}}"
    text = f"policies: {{default: {{deletes: all, sequence: [at]}}, spaces: {spaces}}}"
    policies = load(write(yaml, LEAST + text)).policies
    assert policies.of("a") == Policy(sequence=("n",), deletes="all")
    assert policies.of("b") == Policy(sequence=("at",), deletes="own")
    assert policies.of("c") == policies.of("d") == policies.default


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("1", 1),
        ("17 B", 17),
        ("2kB", None),
        ("2 KiB", 2048),
        ("3 MB", 3_000_000),
        ("1GiB", 2**30),
        ("0", None),
    ],
)
def test_sizes(yaml: Path, size: str, count: int | None) -> None:
    text = f"{LEAST}max_bytes_per_trigger: {size}"
    if count is None:
        assert "is not a size" in str(refused(yaml, text))
    else:
        assert load(write(yaml, text)).max_bytes_per_trigger == count


MISTAKES = [
    ("trigger: soon", "trigger", "'soon' is not a time; allowed: a number and a unit, like 5 seconds"),
    ("trigger: 0 seconds", "trigger", "'0 seconds' is not a time"),
    ("trigger: 5", "trigger", "5 is refused; allowed: a text"),
    ("database: My-DB", "database", "'My-DB' is refused; allowed: a-z, 0-9 and _"),
    ("triger: 5 seconds", "triger", "'triger' is not a key here; did you mean trigger?"),
    ("start: begin", "start", "'begin' is refused; allowed: snapshot, logs"),
    ("feed: own_peer", "feed", "'own_peer' is for live masters: see subscribe.feed; allowed: leader"),
    ("cluster: {allocation: hash}", "cluster.allocation", "'hash' is refused; allowed: counter, preserve"),
    ("on_gap: true", "on_gap", "true is refused; allowed: hold, skip"),
    ("on_source_error: hold", "on_source_error", "'hold' is refused; allowed: fail, skip"),
    ("spaces: {include: accounts}", "spaces.include", "'accounts' is refused; allowed: a list"),
    ("spaces: {include: [1]}", "spaces.include[0]", "1 is refused; allowed: a text"),
    ("spaces: {local: 'yes'}", "spaces.local", "'yes' is refused; allowed: false"),
    ("spaces: {local: true}", "spaces.local", "true is not there yet; allowed: false"),
    ("spaces: {rename: {a: B}}", "spaces.rename.a", "'B' is not a table's name"),
    ("spaces: {rename: {a: _cluster}}", "spaces.rename.a", "'_cluster' is not a table's name"),
    ("spaces: {rename: {a: t, b: t}}", "spaces.rename.b", "'t' is the name of 'a' already"),
    ("policies: {spaces: {a: {policy: lww}}}", "policies.spaces.a.policy", "allowed: last_write_wins"),
    ("policies: {default: {policy: sum}}", "policies.default", "sum needs the key columns: the fields"),
    ("policies: {spaces: {a: {policy: max}}}", "policies.spaces.a", "max needs the key column"),
    (
        "policies: {spaces: {a: {column: x}}}",
        "policies.spaces.a.column",
        "is not a key of last_write_wins",
    ),
    (
        "policies: {default: {deletes: all}, spaces: {a: {policy: max, column: x}}}",
        "policies.spaces.a",
        "deletes: all has no meaning for max; allowed with last_write_wins, source_priority, custom",
    ),
    (
        "policies: {default: {policy: merge_fields, fields: {x: []}}}",
        "policies.default.fields.x",
        "names no field that says how new it is",
    ),
    (
        "policies: {default: {policy: custom, function: rules.resolve}}",
        "policies.default.function",
        "'rules.resolve' is refused; allowed: package.module:function",
    ),
    (
        "policies: {default: {policy: source_priority, priority: [a]}}",
        "policies.default.priority[0]",
        "'a' is neither a uuid nor a source whose replicaset is configured",
    ),
    ("policies: {spaces: {a: {sequense: [x]}}}", "policies.spaces.a.sequense", "did you mean sequence?"),
    ("policies: {default: {deletes: none}}", "policies.default.deletes", "allowed: own, all"),
    ("policies: last_write_wins", "policies", "allowed: keys with values"),
    ("types: {unsigned: int}", "types.unsigned", "allowed: precise, long"),
    ("types: {decimal: 'decimal(10,2)'}", "types.decimal", "allowed: string, decimal(38,s)"),
    ("types: {decimal: 'decimal(38,39)'}", "types.decimal", "allowed: string, decimal(38,s)"),
    ("max_bytes_per_trigger: -1", "max_bytes_per_trigger", "-1 is not a size"),
    ("max_bytes_per_trigger: true", "max_bytes_per_trigger", "True is not a size"),
    ("warehouse: other", "warehouse", "appears twice (also in line 1)"),
    ("instants: {wait: soon}", "instants.wait", "is not a time"),
    ("instants: {markers: []}", "instants.markers", "names no marker"),
    ("instants: {markers: [{space: marks}]}", "instants.markers[0].label", "marks needs a label"),
    (
        "instants: {markers: [{space: _recovery_point, label: opts}]}",
        "instants.markers[0].label",
        "has fixed labels; allowed: none",
    ),
    (
        "instants: {markers: [{space: a, label: b}, {space: a, label: c}]}",
        "instants.markers[1].space",
        "a is named twice",
    ),
]


@pytest.mark.parametrize(("text", "path", "what"), MISTAKES, ids=[path for _, path, _ in MISTAKES])
def test_a_mistake_is_reported_with_its_line(yaml: Path, text: str, path: str, what: str) -> None:
    error = refused(yaml, LEAST + text)
    assert what in error.reason
    assert error.fields == {"file": str(yaml), "line": 5, "path": path}
    assert path in str(error)


A_UUID = "aaaaaaaa-0000-4000-8000-000000000000"
POLICIES = [
    "policy: first_write_wins",
    f"policy: source_priority, priority: [{A_UUID}]",
    "policy: max, column: balance",
    "policy: min, column: balance, sequence: [updated]",
    "policy: merge_fields, fields: {name: [name_at]}",
    "policy: sum, columns: [hits]",
    "policy: custom, function: 'rules.accounts:resolve', deletes: all",
]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_valid_with_the_keys_that_it_needs(yaml: Path, policy: str) -> None:
    config = load(write(yaml, f"{LEAST}policies: {{spaces: {{a: {{{policy}}}}}}}"))
    assert config.policies.of("a").policy in policy
    assert config.policies.of("b").policy == "last_write_wins"


def test_keys_of_the_defaults_policy_are_not_inherited_by_another_policy(yaml: Path) -> None:
    text = "policies: {default: {policy: max, column: x, sequence: [u]}, spaces: {a: {policy: first_write_wins}}}"
    policy = load(write(yaml, LEAST + text)).policies.of("a")
    assert (policy.column, policy.sequence) == (None, ("u",))


def test_priorities_may_name_sources_that_name_their_replicaset(yaml: Path) -> None:
    text = (
        f"warehouse: wh\ncheckpoint: cp\nsources: [{{name: a1, path: a, replicaset: {A_UUID}}}]\n"
        "policies: {spaces: {a: {policy: source_priority, priority: [a1]}}}"
    )
    config = load(write(yaml, text))
    assert config.preferred_replicasets(config.policies.of("a")) == (A_UUID,)


@pytest.mark.parametrize(
    ("sources", "path", "what"),
    [
        ("[]", "sources", "allowed: a list of one or more"),
        ("[{name: a}]", "sources[0].path", "is missing"),
        ("[{path: a}]", "sources[0].name", "is missing"),
        ("[{name: a b, path: a}]", "sources[0].name", "'a b' is refused"),
        ("[{name: a, path: ''}]", "sources[0].path", "is empty; allowed: a path or a URI"),
        ("[{name: a, path: x}, {name: a, path: y}]", "sources[1].name", "'a' is the name of another source"),
        ("[{name: a, path: x}, {name: b, path: ./x/}]", "sources[1].path", "is read by another source"),
        ("[{name: a, path: x, origins: [zz]}]", "sources[0].origins[0]", "'zz' is not a uuid"),
        ("[{name: a, path: x, replicaset: 3}]", "sources[0].replicaset", "3 is refused; allowed: a text"),
        ("[{name: a, path: x, origin: []}]", "sources[0].origin", "did you mean origins?"),
    ],
)
def test_mistakes_in_sources(yaml: Path, sources: str, path: str, what: str) -> None:
    error = refused(yaml, f"warehouse: wh\ncheckpoint: cp\nsources: {sources}\n")
    assert what in error.reason
    assert (error.fields["path"], error.fields["line"]) == (path, 3)


def test_all_mistakes_in_one_message_in_the_order_of_lines(yaml: Path) -> None:
    error = refused(
        yaml,
        "feed: own_peer\nsources:\n  - name: a1\n  - path: b1\non_gap: hold\non_gap: hold\nwarehouse: wh\n",
    )
    assert str(error).splitlines() == [
        "5 mistakes in the configuration",
        "  line 1: checkpoint: is missing",
        "  line 1: feed: 'own_peer' is for live masters: see subscribe.feed; allowed: leader",
        "  line 3: sources[0].path: is missing",
        "  line 4: sources[1].name: is missing",
        f"  line 6: on_gap: appears twice (also in line 5) (file {yaml})",
    ]


def test_a_key_that_is_not_text_is_a_mistake(yaml: Path) -> None:
    assert refused(yaml, LEAST + "policies: {spaces: {5: {}}}").reason == (
        "the key 5 is not a text: put it in quotes"
    )


def test_warehouse_and_checkpoint_must_differ(yaml: Path) -> None:
    error = refused(yaml, "warehouse: x\ncheckpoint: ./x\nsources: [{name: a, path: a}]")
    assert error.fields["path"] == "checkpoint"


@pytest.mark.parametrize("name", ["warehouse", "checkpoint"])
def test_spark_must_be_able_to_open_warehouse_and_checkpoint(yaml: Path, name: str) -> None:
    error = refused(yaml, LEAST.replace(f"{name}: ", f"{name}: s3://bucket/"))
    assert error.fields["path"] == name
    assert "s3a://" in error.reason


@pytest.mark.parametrize("name", ["warehouse", "checkpoint"])
@pytest.mark.parametrize("part", ["%20", "[", "]", "\\", "|", "^"])
def test_a_path_that_no_table_can_be_in_is_refused(yaml: Path, name: str, part: str) -> None:
    error = refused(yaml, LEAST.replace(f"{name}: ", f"{name}: odd{part}folder/"))
    assert error.fields["path"] == name
    assert "is not allowed in its path" in error.reason


def test_a_long_value_is_shortened_in_the_message(yaml: Path) -> None:
    assert len(str(refused(yaml, f"{LEAST}start: {'x' * 10_000}"))) < 300


def test_settings_of_the_validation(yaml: Path) -> None:
    assert load(write(yaml, LEAST)).validation.clock_tolerance() == timedelta(hours=1)
    given = load(write(yaml, LEAST + "validation: {expectations: mine, ahead: null}\n")).validation
    assert (given.expectations, given.clock_tolerance()) == (str(yaml.parent / "mine"), None)
    assert "ahead" in str(refused(yaml, LEAST + "validation: {ahead: 1 fortnight}\n"))


def test_it_is_frozen_and_travels_to_workers(yaml: Path) -> None:
    config = load(write(yaml, LEAST))
    with pytest.raises(ValidationError):
        config.trigger = "1 second"
    assert pickle.loads(pickle.dumps(config)) == config
    assert isinstance(config, Config)


def test_the_demo_names_every_key() -> None:
    """It is the reference: it has each key of each part, and its sources exist."""
    text = DEMO.read_text(encoding="utf-8")
    config = load(DEMO)
    assert all(Path(source.path).is_dir() for source in config.sources)
    assert set(Config.model_fields) == config.model_fields_set
    for part in (GlobalIds, SourceConfig, Spaces, Policy, Policies, Types, Validation):
        assert [key for key in part.model_fields if not re.search(rf"\b{key}\b", text)] == []
