"""Ranges of a file and damage in it: each row once whatever the cut, each damage reported once, nothing passed over."""

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.errors import (
    XlogChecksumError,
    XlogError,
    XlogHeaderError,
    XlogMagicError,
    XlogTruncatedError,
)
from sources.xlog.format.block import EOF_MARKER, MAGIC_PLAIN, MAGIC_ZSTD, encode_block
from sources.xlog.reader import reader
from sources.xlog.reader.reader import Limits, Mode, SkippedDamage
from tests.soaked import IS_SOAK, examples
from tests.sources.xlog import samples

PARTS = samples.blocks(7)
WHOLE = samples.log(*PARTS)
STARTS = [*itertools.accumulate(map(len, PARTS), initial=len(samples.HEADER))]
LSNS = list(range(6, 20))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return samples.put(tmp_path_factory.mktemp("log"), WHOLE)


def cut(path: str, *cuts: int, **kwargs: object) -> list[int | None]:
    """Return the lsns of all ranges between the cuts, one range after another."""
    ends = [0, *sorted(cuts), None]
    return [
        lsn for begin, end in itertools.pairwise(ends) for lsn in samples.lsns(path, begin, end, **kwargs)
    ]


def test_ranges_split_at_any_byte_give_each_row_once(path: str) -> None:
    for position in range(len(WHOLE) + 2):
        assert cut(path, position) == LSNS, position


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(0, len(WHOLE) + 3), max_size=12))
def test_any_split_gives_each_row_once(path: str, cuts: set[int]) -> None:
    assert cut(path, *cuts) == LSNS


def test_a_block_belongs_to_the_range_in_which_it_starts(path: str) -> None:
    for number, start in enumerate(STARTS[:-1]):
        assert samples.lsns(path, start, start + 1) == LSNS[2 * number : 2 * number + 2]
        assert samples.lsns(path, start + 1, STARTS[number + 1]) == []


@pytest.mark.parametrize("every", [1, 60, 150, 10_000])
def test_exact_ranges_give_each_row_once(path: str, every: int) -> None:
    starts = reader.block_starts(*reader.open_fs(path), 0, None, every)
    assert starts[0] == len(samples.HEADER)
    ends = [*starts[1:], None]
    found = [
        lsn
        for begin, end in zip(starts, ends, strict=True)
        for lsn in samples.lsns(path, begin, end, at_block_starts=True, closed=True)
    ]
    assert found == LSNS


@pytest.mark.parametrize("window", [1, 20, 64, 100, 1000])
def test_a_small_window_reads_the_same(path: str, window: int) -> None:
    for position in range(0, len(WHOLE), 23):
        assert cut(path, position, limits=Limits(window_bytes=window)) == LSNS


def test_magics_inside_data_do_not_fool(tmp_path: Path) -> None:
    magics = MAGIC_PLAIN.to_bytes(4, "big") + MAGIC_ZSTD.to_bytes(4, "big") + EOF_MARKER
    header = encode_block(b"x" * 40)[:19]
    traps = [magics, header, header + bytes(30), magics * 5 + header, header[:8]]
    parts = [
        encode_block(samples.insert(lsn, trap, "y"), compress=False) for lsn, trap in enumerate(traps, 6)
    ]
    path = samples.put(tmp_path, samples.log(*parts))
    for position in range(len(samples.log(*parts))):
        assert cut(path, position) == list(range(6, 11)), position


def test_a_header_in_data_that_says_a_huge_block_does_not_fool(tmp_path: Path) -> None:
    huge = bytes.fromhex("d5ba0bab ce 3fffffff 00 ce 00000000 a2 0000")
    path = samples.put(
        tmp_path, samples.log(encode_block(samples.insert(6, huge)), encode_block(samples.insert(7)))
    )
    for position in range(len(samples.HEADER), len(samples.HEADER) + 100):
        assert cut(path, position) == [6, 7]


@pytest.mark.parametrize("marker", [True, False])
def test_a_growing_file_is_its_longest_prefix_of_whole_blocks(tmp_path: Path, marker: bool) -> None:
    data = samples.log(*PARTS, marker=marker)
    for size in range(len(samples.HEADER), len(data) + 1):
        path = samples.put(tmp_path, data[:size])
        whole = sum(start <= size for start in STARTS[1:])
        assert samples.lsns(path) == LSNS[: 2 * whole], size


def test_a_truncated_closed_file_is_an_error(tmp_path: Path) -> None:
    for size in range(len(samples.HEADER), len(WHOLE)):
        path = samples.put(tmp_path, WHOLE[:size])
        if size in STARTS:
            assert len(samples.lsns(path, closed=True)) == 2 * STARTS.index(size)
            continue
        with pytest.raises(XlogTruncatedError) as raised:
            samples.lsns(path, closed=True)
        assert raised.value.fields["offset"] == max(start for start in STARTS if start < size)


def test_space_that_was_allocated_and_not_written_is_the_end(tmp_path: Path) -> None:
    path = samples.put(tmp_path, samples.log(*PARTS, marker=False) + bytes(5000))
    assert samples.lsns(path) == LSNS
    assert samples.lsns(path, closed=True, limits=Limits(window_bytes=100)) == LSNS
    path = samples.put(tmp_path, samples.log(*PARTS, marker=False) + bytes(5000) + b"\x01")
    assert samples.lsns(path) == LSNS
    with pytest.raises(XlogMagicError):
        samples.lsns(path, closed=True, limits=Limits(window_bytes=100))


def damaged(number: int, kind: str) -> bytes:
    part = PARTS[number]
    bad = {
        "magic": b"\x00\x01\x02\x03" + part[4:],
        "length": part[:4] + b"\xc0" + part[5:],
        "checksum": part[:-1] + bytes([part[-1] ^ 1]),
        "lost byte": part[:-1],
        "garbage": part + b"garbage",
    }[kind]
    return samples.log(*PARTS[:number], bad, *PARTS[number + 1 :])


KINDS = {
    "magic": XlogMagicError,
    "length": XlogHeaderError,
    "checksum": XlogChecksumError,
    "lost byte": XlogChecksumError,
    "garbage": XlogMagicError,
}
CASES = [(number, kind) for number in (0, 1, 2, 5) for kind in KINDS]


def some_positions(data: bytes) -> range:
    """Return at which bytes a damaged file is split; a soak splits it at more."""
    return range(0, len(data), 3 if IS_SOAK else 11)


@pytest.mark.parametrize(("number", "kind"), CASES)
def test_failfast_finds_damage_however_the_file_is_split(tmp_path: Path, number: int, kind: str) -> None:
    data = damaged(number, kind)
    path = samples.put(tmp_path, data)
    where = STARTS[number + (kind == "garbage")]
    for position in some_positions(data):
        with pytest.raises(KINDS[kind]) as raised:
            cut(path, position)
        assert raised.value.fields["offset"] == where


@pytest.mark.parametrize("begin", [0, 1, STARTS[0]])
def test_a_damaged_first_block_is_not_taken_for_an_unknown_start(tmp_path: Path, begin: int) -> None:
    path = samples.put(tmp_path, damaged(0, "checksum"))
    with pytest.raises(XlogChecksumError):
        samples.lsns(path, begin)
    assert samples.lsns(path, 0, begin) == []


@pytest.mark.parametrize(("number", "kind"), CASES)
def test_lenient_modes_report_damage_once_however_the_file_is_split(
    tmp_path: Path, number: int, kind: str
) -> None:
    data = damaged(number, kind)
    path = samples.put(tmp_path, data)
    lost = set() if kind == "garbage" else {6 + 2 * number, 7 + 2 * number}
    left = [lsn for lsn in LSNS if lsn not in lost]
    for position in some_positions(data):
        skipped = SkippedDamage()
        assert cut(path, position, mode=Mode.DROPMALFORMED, skipped=skipped) == left, position
        assert (skipped.damaged_parts, dict(skipped.reasons)) == (1, {KINDS[kind].__name__: 1})
        assert skipped.bytes == (
            7 if kind == "garbage" else STARTS[number + 1] - STARTS[number] - (kind == "lost byte")
        )
    rows = samples.table(path, mode=Mode.PERMISSIVE).to_pylist()
    assert [row["lsn"] for row in rows if row["_corrupt_record"] is None] == left
    at = [index for index, row in enumerate(rows) if row["_corrupt_record"] is not None]
    assert at == [2 * number + (2 if kind == "garbage" else 0)]
    assert rows[at[0]]["position"] == STARTS[number + (kind == "garbage")]


def test_two_damages_are_both_reported(tmp_path: Path) -> None:
    parts = [*PARTS]
    parts[1] = parts[1][:-1] + b"\x00"
    parts[4] = b"XXXX" + parts[4][4:]
    data = samples.log(*parts)
    path = samples.put(tmp_path, data)
    for position in range(0, len(data), 5):
        skipped = SkippedDamage()
        found = cut(path, position, mode=Mode.DROPMALFORMED, skipped=skipped)
        assert found == [6, 7, 10, 11, 12, 13, 16, 17, 18, 19]
        assert [type(error) for error in skipped.errors] == [XlogChecksumError, XlogMagicError]


def test_neighbours_that_are_both_damaged_are_one_part(tmp_path: Path) -> None:
    parts = [*PARTS]
    parts[1], parts[2] = parts[1][:-1] + b"\x00", b"XXXX" + parts[2][4:]
    path = samples.put(tmp_path, samples.log(*parts))
    skipped = SkippedDamage()
    assert samples.lsns(path, mode=Mode.DROPMALFORMED, skipped=skipped) == [6, 7, *range(12, 20)]
    assert (skipped.damaged_parts, skipped.bytes) == (1, len(parts[1]) + len(parts[2]))


@pytest.mark.parametrize("after", [b"\x00", b"garbage", PARTS[0], EOF_MARKER])
def test_bytes_after_the_end_marker_are_an_error(tmp_path: Path, after: bytes) -> None:
    path = samples.put(tmp_path, WHOLE + after)
    for begin in (0, STARTS[3], STARTS[5] + 1):
        with pytest.raises(XlogMagicError, match="end marker") as raised:
            samples.lsns(path, begin)
        assert raised.value.fields["offset"] == len(WHOLE)


def test_a_lenient_mode_reads_on_after_the_end_marker(tmp_path: Path) -> None:
    later = samples.blocks(2, first=30)
    path = samples.put(tmp_path, WHOLE + b"".join(later) + EOF_MARKER)
    for position in range(0, len(WHOLE) + 40, 3):
        skipped = SkippedDamage()
        assert cut(path, position, mode=Mode.DROPMALFORMED, skipped=skipped) == [*LSNS, 30, 31, 32, 33]
        assert skipped.damaged_parts == 1


def test_garbage_to_the_end_is_counted(tmp_path: Path) -> None:
    path = samples.put(tmp_path, samples.log(*PARTS[:2], marker=False) + b"garbage" * 10)
    skipped = SkippedDamage()
    assert samples.lsns(path, mode=Mode.DROPMALFORMED, skipped=skipped) == LSNS[:4]
    assert (skipped.damaged_parts, skipped.bytes) == (1, 70)


def test_an_incomplete_tail_of_a_closed_file_is_counted(tmp_path: Path) -> None:
    path = samples.put(tmp_path, samples.log(*PARTS[:2], PARTS[2][:-5], marker=False))
    skipped = SkippedDamage()
    assert samples.lsns(path, mode=Mode.DROPMALFORMED, skipped=skipped) == LSNS[:4]
    assert skipped.damaged_parts == 0
    assert samples.lsns(path, mode=Mode.DROPMALFORMED, closed=True, skipped=skipped) == LSNS[:4]
    assert (skipped.damaged_parts, skipped.bytes) == (1, len(PARTS[2]) - 5)


def test_a_block_longer_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = samples.put(
        tmp_path, samples.log(*PARTS[:2], encode_block(samples.insert(9, "x" * 300), compress=False))
    )
    with pytest.raises(XlogHeaderError, match="raise the option maxBlockBytes"):
        samples.lsns(path, limits=Limits(max_block_bytes=200))
    assert samples.lsns(path, limits=Limits(max_block_bytes=400)) == [6, 7, 8, 9, 9]


def test_exact_reading_begins_at_a_block_or_fails(path: str) -> None:
    with pytest.raises(XlogMagicError):
        samples.lsns(path, STARTS[2] + 1, at_block_starts=True)


def test_a_mode_counts_nothing_where_all_is_well(path: str) -> None:
    skipped = SkippedDamage()
    assert samples.lsns(path, mode=Mode.PERMISSIVE, closed=True, skipped=skipped) == LSNS
    assert skipped == SkippedDamage()


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bytes_overwritten_anywhere_never_give_wrong_rows(tmp_path: Path, data: st.DataObject) -> None:
    at = data.draw(st.integers(len(samples.HEADER), len(WHOLE) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=40))
    changed = (WHOLE[:at] + junk + WHOLE[at + len(junk) :])[: len(WHOLE)]
    path = samples.put(tmp_path, changed)
    found = samples.lsns(path, mode=Mode.DROPMALFORMED)
    assert [lsn for lsn in LSNS if lsn in found] == found
    try:
        strict = samples.lsns(path, closed=True)
    except XlogError:
        return
    assert strict == LSNS


def false_starts(size: int) -> bytes:
    """Return bytes full of blocks that claim all that follows, and whose checksums are wrong."""
    step = 19
    count = size // step
    found = bytearray()
    for k in range(count):
        left = size - (k + 1) * step
        found += (
            MAGIC_PLAIN.to_bytes(4, "big") + b"\xce" + left.to_bytes(4, "big") + b"\x00\xce\xff\xff\xff\xff"
        )
        found += b"\xa3" + bytes(3)
        found += bytes(step * (k + 1) - len(found))
    return bytes(found)


@pytest.mark.parametrize("mode", [Mode.DROPMALFORMED, Mode.FAILFAST])
def test_false_starts_are_not_proven_without_end(tmp_path: Path, mode: Mode) -> None:
    """To prove each of them takes time by the square of their number."""
    path = samples.put(tmp_path, samples.HEADER + false_starts(1 << 20) + PARTS[0])
    skipped, begin = SkippedDamage(), len(samples.HEADER) + 3
    started = time.perf_counter()
    if mode is Mode.FAILFAST:
        with pytest.raises(XlogMagicError, match="false starts"):
            samples.lsns(path, begin, None, mode=mode, skipped=skipped)
    else:
        samples.lsns(path, begin, None, mode=mode, skipped=skipped)
        assert skipped.reasons["XlogMagicError"] >= 1
        assert skipped.bytes > 1 << 19
    assert time.perf_counter() - started < 2
