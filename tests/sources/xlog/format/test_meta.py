"""The text header: golden bytes, every cut, every kind of mistake."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import XlogMetaError, XlogMetaIncompleteError
from sources.xlog.format.meta import META_LIMIT, Meta, format_meta, format_vclock, parse_meta, parse_vclock

UUID = "aaaaaaaa-0000-4000-8000-0000000000a1"
GOLDEN = (
    b"XLOG\n0.13\nVersion: 2.6.0-0-g47aa4e01e\nInstance: " + UUID.encode() + b"\n"
    b"VClock: {0: 9, 1: 956, 2: 707}\nPrevVClock: {0: 2, 1: 729, 2: 613}\n\n"
)


def test_a_header_of_tarantool_2_6() -> None:
    assert parse_meta(GOLDEN + b"\xd5\xba\x0b\xab", "f") == Meta(
        filetype="XLOG",
        version="0.13",
        instance_uuid=UUID,
        vclock={0: 9, 1: 956, 2: 707},
        prev_vclock={0: 2, 1: 729, 2: 613},
        other={"Version": "2.6.0-0-g47aa4e01e"},
        length=len(GOLDEN),
    )


def test_a_header_of_tarantool_1_6_names_the_server() -> None:
    data = b"SNAP\n0.12\nServer: AAAAAAAA-0000-4000-8000-0000000000A1\nVClock: {1: 5}\n\n"
    meta = parse_meta(data, "f")
    assert (meta.filetype, meta.version, meta.instance_uuid) == ("SNAP", "0.12", UUID)
    assert (meta.vclock, meta.prev_vclock) == ({1: 5}, None)


@pytest.mark.parametrize("filetype", ["XLOG", "SNAP"])
def test_a_header_of_tarantool_1_6_1_has_no_vclock(filetype: str) -> None:
    data = f"{filetype}\n0.12\nServer: {UUID}\n\n".encode()
    meta = parse_meta(data, "f")
    assert (meta.filetype, meta.instance_uuid, meta.vclock, meta.has_vclock) == (filetype, UUID, {}, False)
    assert format_meta(meta) == data


@pytest.mark.parametrize("filetype", ["RUN", "INDEX"])
def test_vinyl_files_have_no_vclock(filetype: str) -> None:
    meta = parse_meta(f"{filetype}\n0.13\nVersion: 2.6.0\nInstance: {UUID}\n\n".encode(), "f")
    assert (meta.filetype, meta.vclock) == (filetype, {})


def test_a_header_may_be_its_first_two_lines() -> None:
    meta = parse_meta(b"RUN\n0.13\n\n", "f")
    assert (meta.filetype, meta.version, meta.other) == ("RUN", "0.13", {})


def test_a_wrong_line_is_named_by_its_offset() -> None:
    begin = b"XLOG\n0.13\nVersion: 2.6.0\n"
    with pytest.raises(XlogMetaError, match="not a `key: value` line") as raised:
        parse_meta(begin + b"VClock\n\n", "f.xlog")
    assert raised.value.fields["offset"] == len(begin)


def test_unknown_keys_are_kept_as_written() -> None:
    meta = parse_meta(b"VYLOG\n0.13\nVClock: {}\nPrevCheckpoint: {1: 2}\nX-Y:  a: b \n\n", "f")
    assert meta.other == {"PrevCheckpoint": "{1: 2}", "X-Y": "a: b"}
    assert meta.instance_uuid is None


@pytest.mark.parametrize("size", range(len(GOLDEN)))
def test_every_prefix_of_a_header_is_incomplete_not_wrong(size: int) -> None:
    with pytest.raises(XlogMetaIncompleteError) as raised:
        parse_meta(GOLDEN[:size], "f.xlog")
    assert raised.value.fields == {"file": "f.xlog", "offset": size}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GARBAGE", "not a log file"),
        (b"GARBAGE\n0.13\n\n", "not a log file"),
        (b"XLOG\n0.14\nVClock: {}\n\n", "unknown version '0.14'"),
        (b"XLOG\n0.14\nVClo", "not a log file"),
        (b"XLOG\n\n", "unknown version ''"),
        (b"XLOG\n0.13\nVersion: 2\n\n", "no VClock"),
        (b"XLOG\n0.13\nVClock\n\n", "not a `key: value` line"),
        (b"XLOG\n0.13\n: x\nVClock: {}\n\n", "not a `key: value` line"),
        (b"XLOG\n0.13\nVClock: {}\nVClock: {}\n\n", "occurs twice"),
        (b"XLOG\n0.13\nInstance: a1\nVClock: {}\n\n", "not an instance uuid"),
        (b"XLOG\n0.13\nVClock: {}\nKey: \xff\n\n", "not text"),
        (b"XLOG\n0.13\n" + b"k: v" * META_LIMIT, "no header ends"),
        (b"XLOG\n0.13\n" + b"k: v" * META_LIMIT + b"\n\n", "no header ends"),
    ],
)
def test_a_wrong_header_says_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(XlogMetaError, match=reason) as raised:
        parse_meta(data, "f.xlog")
    assert not isinstance(raised.value, XlogMetaIncompleteError)
    assert raised.value.fields["file"] == "f.xlog"
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "}",
        "{1}",
        "{1: }",
        "{1: 2",
        "{1: 2, 1: 3}",
        "{32: 1}",
        "{1: -1}",
        "{1: 9223372036854775808}",
        "{1: 2} x",
        "{,}",
        "{1: 2 3: 4}",
        "{a: 1}",
        "{1: 0x2}",
    ],
)
def test_a_malformed_vclock_is_refused(text: str) -> None:
    with pytest.raises(XlogMetaError, match="not a vclock"):
        parse_vclock(text, "f")


def test_white_space_in_a_vclock_means_nothing() -> None:
    assert parse_vclock(" { 1 :2,  31: 9223372036854775807 } ", "f") == {1: 2, 31: 2**63 - 1}


VCLOCKS = st.dictionaries(st.integers(0, 31), st.integers(1, 2**63 - 1))


@given(VCLOCKS)
def test_a_vclock_survives_being_written(vclock: dict[int, int]) -> None:
    assert parse_vclock(format_vclock(vclock), "f") == vclock


def test_zero_components_are_not_written() -> None:
    assert format_vclock({2: 7, 0: 0, 1: 5}) == "{1: 5, 2: 7}"


@given(
    VCLOCKS,
    st.none() | VCLOCKS,
    st.sampled_from(["XLOG", "SNAP", "VYLOG"]),
    st.sampled_from(["0.12", "0.13"]),
)
def test_a_header_survives_being_written(
    vclock: dict[int, int], prev: dict[int, int] | None, filetype: str, version: str
) -> None:
    meta = Meta(filetype, version, UUID, vclock, prev, {"Version": "3.8.0"})
    data = format_meta(meta)
    assert parse_meta(data, "f") == Meta(
        filetype, version, UUID, vclock, prev, {"Version": "3.8.0"}, len(data)
    )


def test_the_golden_header_is_what_is_written() -> None:
    meta = parse_meta(GOLDEN, "f")
    assert format_meta(meta) == GOLDEN
