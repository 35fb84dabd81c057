"""Options: each is read, each mistake is named."""

import json
from typing import Any

import pytest

from schemas.errors import ConfigurationError
from sources.xlog.directory.offset import OffsetEntry, to_text
from sources.xlog.directory.source import Source
from sources.xlog.format.damage import Mode
from sources.xlog.options import OPTION_NAMES, bytes_of, microseconds_of, parse_options

A = "aaaaaaaa-0000-4000-8000-0000000000aa"


def test_a_path_alone_has_sparks_defaults() -> None:
    options = parse_options({"path": "/logs/a1"})
    assert options.sources == (Source("/logs/a1", "/logs/a1"),)
    assert not options.with_replicaset
    assert (options.start_from, options.mode, options.on_gap) == ("logs", Mode.FAILFAST, "fail")
    assert options.split_bytes == 32 << 20


def test_every_option_is_read_without_regard_to_case() -> None:
    offset = {A: OffsetEntry("a1", "1.xlog", 0, {})}
    given = {
        "PATH": "/x",
        "includesnapshot": "TRUE",
        "startVclock": json.dumps({A: {"1": 5}}),
        "startoffset": to_text(offset),
        "endOffset": to_text(offset),
        "fromVclock": '{"1": 5}',
        "toVclock": '{"1": 9}',
        "fromTimestamp": "2024-01-01T00:00:00+01:00",
        "toTimestamp": "1704067200.5",
        "spaces": "512, 513",
        "origins": A.upper(),
        "maxBytesPerTrigger": "64M",
        "splitBytes": "1k",
        "minPartitions": "4",
        "mode": "permissive",
        "gaps": "REPORT",
        "on_source_error": "skip",
        "maxLag": "0.5",
        "replicaset": A,
    }
    options = parse_options(given)
    assert options.sources == (Source("/x", "/x", A),)
    assert options.start_from == "snapshot"
    assert options.start_vclock == {A: {1: 5}}
    assert options.start_offset == options.end_offset == offset
    assert (options.from_vclock, options.to_vclock) == ({1: 5}, {1: 9})
    assert options.from_timestamp == 1704063600_000000
    assert options.to_timestamp == 1704067200_500000
    assert options.space_ids == frozenset({512, 513})
    assert options.origin_uuids == {A}
    assert (options.max_bytes_per_trigger, options.split_bytes, options.min_partitions) == (64 << 20, 1024, 4)
    assert (options.mode, options.on_gap, options.on_source_error) == (Mode.PERMISSIVE, "report", "skip")
    assert options.max_lag_seconds == 0.5
    assert len(options.batch_only_options) == 6


def test_sources_are_read() -> None:
    text = json.dumps(
        [{"name": "a1", "path": "s3a://b/a1", "origins": [A.upper()]}, {"name": "b1", "path": "/b1"}]
    )
    options = parse_options({"sources": text})
    assert options.with_replicaset
    assert options.sources[0] == Source("a1", "s3a://b/a1", None, frozenset({A}))
    assert options.sources[1] == Source("b1", "/b1")


def test_several_paths_are_read_once_each() -> None:
    assert [s.path for s in parse_options({"paths": '["/a", "/b", "/a"]'}).sources] == ["/a", "/b"]


def source(**changed: Any) -> str:
    return json.dumps([{"name": "a1", "path": "/a1"} | changed])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "nothing to read"),
        ({"path": ""}, "path"),
        ({"paths": "/x,/y", "replicaset": A}, "option replicaset is for one path"),
        ({"path": "/x", "sources": source()}, "path and sources"),
        ({"path": "/x", "maxRows": "7"}, "'maxRows'"),
        ({"path": "/x", "pathGlobFilter": "*"}, "'pathGlobFilter'"),
        ({"path": "/x", "mode": "LENIENT"}, "mode"),
        ({"path": "/x", "gaps": "skip"}, "gaps"),
        ({"path": "/x", "start": "end"}, "start"),
        ({"path": "/x", "start": "logs", "includeSnapshot": "true"}, "includeSnapshot"),
        ({"path": "/x", "includeSnapshot": "yes"}, "includeSnapshot"),
        ({"path": "/x", "spaces": "accounts"}, "accounts.*_space"),
        ({"path": "/x", "spaces": ""}, "spaces"),
        ({"path": "/x", "spaces": str(1 << 31)}, "spaces"),
        ({"path": "/x", "origins": "a1"}, "origins"),
        ({"path": "/x", "origins": "[]"}, "origins"),
        ({"path": "/x", "splitBytes": "0"}, "splitBytes"),
        ({"path": "/x", "splitBytes": "12q"}, "splitBytes"),
        ({"path": "/x", "minPartitions": "0"}, "minPartitions"),
        ({"path": "/x", "maxBytesPerTrigger": "-1"}, "maxBytesPerTrigger"),
        ({"path": "/x", "fromVclock": "{1: 5}"}, "fromVclock"),
        ({"path": "/x", "fromTimestamp": "yesterday"}, "fromTimestamp"),
        ({"path": "/x", "startOffset": "{}"}, "startOffset"),
        ({"path": "/x", "startVclock": '{"a": {}}'}, "startVclock"),
        ({"path": "/x", "startVclock": "[]"}, "startVclock"),
        ({"path": "/x", "maxLag": "-5"}, "maxLag"),
        ({"path": "/x", "replicaset": "a"}, "replicaset"),
        ({"sources": source(), "replicaset": A}, "replicaset"),
        ({"sources": source(), "fromVclock": "{}"}, "fromVclock"),
        ({"sources": "[]"}, "sources"),
        ({"sources": "{"}, "sources"),
        ({"sources": '["/a1"]'}, r"sources: \[0\]"),
        ({"sources": source(name="")}, r"\[0\].name"),
        ({"sources": source(path=7)}, r"\[0\].path"),
        ({"sources": source(url="x")}, "unknown key 'url'"),
        ({"sources": source(origins=A)}, r"\[0\].origins"),
        ({"sources": source(replicaset="a")}, "sources"),
        (
            {"sources": json.dumps([{"name": "a", "path": "/1"}, {"name": "a", "path": "/2"}])},
            "'a' occurs twice",
        ),
    ],
)
def test_a_mistake_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        parse_options(given)


def test_the_error_for_an_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_options({"path": "/x", "nope": "1"})
    for name in OPTION_NAMES:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("10b", 10), ("2K", 2048), ("3 mb", 3 << 20), ("1g", 1 << 30), ("1t", 1 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01.000001Z", 1_000_001),
        ("1970-01-01 01:00:00+01:00", 0),
        ("0.1", 100_000),
        ("12", 12_000_000),
        ("4102444799.999999", 4102444799_999999),
    ],
)
def test_moments_are_exact(text: str, microseconds: int) -> None:
    assert microseconds_of(text) == microseconds
