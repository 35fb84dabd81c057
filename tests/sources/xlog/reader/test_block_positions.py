"""How far a file is written, and where its blocks start: from headers alone."""

import itertools
from pathlib import Path

import pytest

from schemas.errors import XlogHeaderError, XlogMagicError, XlogMetaIncompleteError, XlogMissingError
from sources.xlog.format.block import EOF_MARKER, encode_block
from sources.xlog.reader import reader
from sources.xlog.reader.reader import SMALL_WINDOW, CompleteBlocksEnd
from tests.sources.xlog import samples

PARTS = samples.blocks(7)
WHOLE = samples.log(*PARTS)
STARTS = [*itertools.accumulate(map(len, PARTS), initial=len(samples.HEADER))]
LARGE = [encode_block(samples.insert(lsn, "x" * size), compress=False) for lsn, size in enumerate(
    (10, 3 * SMALL_WINDOW, 10, 20 * SMALL_WINDOW, SMALL_WINDOW - 60, SMALL_WINDOW, 10), 6
)]  # fmt: skip
LARGE_STARTS = [*itertools.accumulate(map(len, LARGE), initial=len(samples.HEADER))]


def end_of(path: str, begin: int = 0) -> CompleteBlocksEnd:
    return reader.end_of_complete_blocks(*reader.open_fs(path), begin)


def starts_of(path: str, begin: int, end: int | None, every: int) -> list[int]:
    return reader.block_starts(*reader.open_fs(path), begin, end, every)


def test_a_truncated_file_ends_after_its_last_whole_block(tmp_path: Path) -> None:
    for size in range(len(samples.HEADER), len(WHOLE) + 1):
        path = samples.put(tmp_path, WHOLE[:size])
        whole = max(start for start in STARTS if start <= size)
        for begin in (0, len(samples.HEADER), whole):
            assert end_of(path, begin) == (whole, size == len(WHOLE)), size


def test_a_file_that_grows_is_walked_from_where_it_was_left(tmp_path: Path) -> None:
    position, path = 0, ""
    for size in range(len(samples.HEADER), len(WHOLE) + 1, 11):
        path = samples.put(tmp_path, WHOLE[:size])
        position = end_of(path, position).position
    path = samples.put(tmp_path, WHOLE)
    assert end_of(path, position) == (STARTS[-1], True)


def test_long_blocks_are_stepped_over(tmp_path: Path) -> None:
    data = samples.log(*LARGE)
    for size in [len(data), *(start + more for start in LARGE_STARTS[1:] for more in (-1, 0, 3, 18))]:
        path = samples.put(tmp_path, data[:size])
        whole = max(start for start in LARGE_STARTS if start <= min(size, len(data)))
        assert end_of(path) == (whole, size >= len(data))
    assert starts_of(samples.put(tmp_path, data), 0, None, 1) == LARGE_STARTS[:-1]


def test_allocated_space_is_not_written_yet(tmp_path: Path) -> None:
    path = samples.put(tmp_path, samples.log(*PARTS, marker=False) + bytes(100))
    assert end_of(path) == (STARTS[-1], False)


def test_a_file_of_a_header_alone(tmp_path: Path) -> None:
    assert end_of(samples.put(tmp_path, samples.HEADER)) == (len(samples.HEADER), False)
    assert end_of(samples.put(tmp_path, samples.log())) == (len(samples.HEADER), True)
    assert starts_of(samples.put(tmp_path, samples.log()), 0, None, 10) == []


def test_a_header_that_is_being_written_is_too_early(tmp_path: Path) -> None:
    path = samples.put(tmp_path, samples.HEADER[:20])
    with pytest.raises(XlogMetaIncompleteError):
        end_of(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(XlogMissingError, match=r"none\.xlog"):
        end_of(str(tmp_path / "none.xlog"))


@pytest.mark.parametrize(
    ("data", "kind", "offset"),
    [
        (samples.log(*PARTS[:3], b"garbage", *PARTS[3:]), XlogMagicError, STARTS[3]),
        (samples.log(*PARTS[:3], b"\xd5\xba\x0b\xab\xc0", *PARTS[3:]), XlogHeaderError, STARTS[3]),
        (WHOLE + b"x", XlogMagicError, len(WHOLE)),
        (WHOLE + EOF_MARKER, XlogMagicError, len(WHOLE)),
        (samples.log(*PARTS, marker=False) + b"XXXX", XlogMagicError, STARTS[-1]),
    ],
)
def test_garbage_where_a_block_must_start_is_an_error(
    tmp_path: Path, data: bytes, kind: type[Exception], offset: int
) -> None:
    path = samples.put(tmp_path, data)
    for ask in (lambda: end_of(path), lambda: starts_of(path, 0, None, 1)):
        with pytest.raises(kind) as raised:
            ask()
        assert raised.value.fields == {"file": samples.FILE, "offset": offset} | (  # type: ignore[attr-defined]
            {"advice": raised.value.fields["advice"]} if "advice" in raised.value.fields else {}  # type: ignore[attr-defined]
        )


@pytest.mark.parametrize("every", [1, 50, 100, 101, 250, 10_000])
def test_block_starts_have_the_wanted_distance(tmp_path: Path, every: int) -> None:
    path = samples.put(tmp_path, WHOLE)
    found = starts_of(path, 0, None, every)
    assert found[0] == STARTS[0]
    for start, following in itertools.pairwise(found):
        assert following == min(s for s in STARTS if s >= start + every)
    assert all(start < found[-1] + every for start in STARTS[:-1])


def test_starts_before_an_end(tmp_path: Path) -> None:
    path = samples.put(tmp_path, WHOLE)
    for end in range(STARTS[0], len(WHOLE)):
        assert starts_of(path, STARTS[1], end, 1) == [s for s in STARTS[1:-1] if s < end]


def test_a_boundary_is_the_next_start(tmp_path: Path) -> None:
    path = samples.put(tmp_path, WHOLE)
    fs, inner = reader.open_fs(path)
    for near in range(len(WHOLE) + 3):
        expected = next((start for start in STARTS[:-1] if start >= near), len(WHOLE))
        assert reader.first_block_start(fs, inner, near) == expected
        assert reader.first_block_start(fs, inner, near, 0) == expected
        assert reader.first_block_start(fs, inner, near, end=STARTS[5]) == min(expected, STARTS[5])
        assert reader.first_block_start(fs, inner, near, STARTS[0], STARTS[5]) == min(expected, STARTS[5])


def test_a_sound_block_inside_a_tuple_is_no_boundary_along_the_chain(tmp_path: Path) -> None:
    inside = encode_block(samples.insert(99))
    parts = [encode_block(samples.insert(6, inside), compress=False), encode_block(samples.insert(7))]
    path = samples.put(tmp_path, samples.log(*parts))
    fs, inner = reader.open_fs(path)
    near = len(samples.HEADER) + 1
    true = len(samples.HEADER) + len(parts[0])
    assert reader.first_block_start(fs, inner, near, 0) == true
    assert near < reader.first_block_start(fs, inner, near) < true
    assert starts_of(path, 0, None, 1) == [len(samples.HEADER), true]
