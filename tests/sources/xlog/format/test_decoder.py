"""Batches: their sizes, their order, blocks that are sound outside and not inside."""

import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
import zstandard

from schemas.errors import XlogCompressionError, XlogError, XlogRowError
from sources.xlog.format.block import FIXED_HEADER_SIZE, checksum, encode_block
from sources.xlog.reader import reader
from sources.xlog.reader.reader import Limits, Mode, SkippedDamage
from tests.sources.xlog import samples


def batches(path: str, limits: Limits, mode: Mode = Mode.FAILFAST) -> list[pa.RecordBatch]:
    return list(reader.read_rows(*reader.open_fs(path), mode=mode, limits=limits))


def block_of(lsns: range, size: int = 10, compress: bool | None = None) -> bytes:
    return encode_block(b"".join(samples.insert(lsn, "x" * size) for lsn in lsns), compress)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize("compress", [False, True])
def test_a_batch_has_no_more_rows(tmp_path: Path, rows: int, compress: bool) -> None:
    path = samples.put(
        tmp_path, samples.log(*(block_of(range(k, k + 10), compress=compress) for k in range(6, 56, 10)))
    )
    found = batches(path, Limits(batch_rows=rows))
    assert [batch.num_rows for batch in found[:-1]] == [rows] * (len(found) - 1)
    assert [lsn for batch in found for lsn in batch["lsn"].to_pylist()] == list(range(6, 56))
    assert [row for batch in found for row in batch["row"].to_pylist()] == list(range(10)) * 5


@pytest.mark.parametrize("size", [1, 30, 100, 5000])
def test_a_batch_has_no_more_bytes_unless_one_row_has(tmp_path: Path, size: int) -> None:
    path = samples.put(
        tmp_path, samples.log(block_of(range(6, 16)), block_of(range(16, 20), 300), block_of(range(20, 30)))
    )
    found = batches(path, Limits(batch_bytes=size))
    for batch in found:
        assert batch.num_rows == 1 or sum(len(value) for value in batch["tuple"].to_pylist()) <= size
    assert [lsn for batch in found for lsn in batch["lsn"].to_pylist()] == list(range(6, 30))
    assert pa.Table.from_batches(found) == samples.table(path).combine_chunks()


def test_a_batch_of_a_small_file_keeps_little_memory(tmp_path: Path) -> None:
    path = samples.put(tmp_path, samples.log(block_of(range(6, 16))))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        found = batches(path, Limits())
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 1
    assert after - before < 4 << 20


def test_plain_and_compressed_blocks_keep_their_order(tmp_path: Path) -> None:
    parts = [block_of(range(k, k + 1 + k % 4), 10 * k, compress=k % 5 in (1, 2)) for k in range(6, 80, 4)]
    path = samples.put(tmp_path, samples.log(*parts))
    expected = [lsn for k in range(6, 80, 4) for lsn in range(k, k + 1 + k % 4)]
    assert samples.lsns(path) == expected


def test_many_large_compressed_blocks_share_the_scratch(tmp_path: Path) -> None:
    parts = [block_of(range(k, k + 5), 60_000, compress=True) for k in range(6, 106, 5)]
    path = samples.put(tmp_path, samples.log(*parts))
    found = samples.table(path)
    assert found["lsn"].to_pylist() == list(range(6, 106))
    assert {len(value) for value in found["tuple"].to_pylist()} == {1 + 1 + 3 + 60_000}


def frame_block(frame: bytes, zstd: bool = True) -> bytes:
    """Return a block of any bytes, with the right checksum."""
    block = encode_block(frame, compress=False)
    return bytes.fromhex("d5ba0bba" if zstd else "d5ba0bab") + block[4:]


def bomb(size: int) -> bytes:
    return frame_block(zstandard.ZstdCompressor(write_content_size=False).compress(bytes(size)))


GOOD = zstandard.ZstdCompressor(write_content_size=False).compress(samples.insert(8, "x" * 100) * 3)
UNSOUND = {
    "bomb": (bomb(3 << 20), XlogCompressionError, "grows beyond"),
    "no frame": (frame_block(b"not zstd at all"), XlogCompressionError, "not one whole zstd frame"),
    "cut frame": (frame_block(GOOD[:-3]), XlogCompressionError, "not one whole zstd frame"),
    "two frames": (frame_block(GOOD + GOOD), XlogCompressionError, "not one whole zstd frame"),
    "damaged frame": (
        frame_block(GOOD[:9] + b"\xff\xff\xff" + GOOD[12:]),
        XlogCompressionError,
        "zstd frame",
    ),
    "no msgpack": (frame_block(b"\xc1", zstd=False), XlogRowError, "header"),
    "cut body": (frame_block(samples.insert(9)[:-1], zstd=False), XlogRowError, "body"),
    "replica 40": (frame_block(samples.insert(8, replica_id=40), zstd=False), XlogRowError, "range"),
}
LIMITS = Limits(max_block_bytes=1 << 20)


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_block_is_an_error_that_says_where(tmp_path: Path, name: str) -> None:
    block, kind, reason = UNSOUND[name]
    before = block_of(range(6, 8))
    path = samples.put(tmp_path, samples.log(before, block, block_of(range(20, 23))))
    with pytest.raises(kind, match=reason) as raised:
        batches(path, LIMITS)
    assert raised.value.fields["file"] == samples.FILE
    assert raised.value.fields["offset"] == len(samples.HEADER) + len(before)


@pytest.mark.parametrize("name", UNSOUND)
@pytest.mark.parametrize("mode", [Mode.DROPMALFORMED, Mode.PERMISSIVE])
@pytest.mark.parametrize("compress", [False, True])
def test_a_lenient_mode_leaves_an_unsound_block_out(
    tmp_path: Path, name: str, mode: Mode, compress: bool
) -> None:
    block, kind, _ = UNSOUND[name]
    parts = [block_of(range(6, 8), compress=compress), block, block_of(range(20, 23), compress=compress)]
    path = samples.put(tmp_path, samples.log(*parts))
    skipped = SkippedDamage()
    found = samples.table(path, mode=mode, limits=LIMITS, skipped=skipped)
    lsns = found["lsn"].to_pylist()
    assert lsns == ([6, 7, None, 20, 21, 22] if mode is Mode.PERMISSIVE else [6, 7, 20, 21, 22])
    size = len(block) - (FIXED_HEADER_SIZE if kind is XlogRowError else 0)
    assert (skipped.damaged_parts, skipped.bytes, dict(skipped.reasons)) == (1, size, {kind.__name__: 1})
    if mode is Mode.PERMISSIVE:
        row = found.to_pylist()[2]
        assert row["position"] == len(samples.HEADER) + len(parts[0])
        assert row["_corrupt_record"] == str(skipped.errors[0])
        assert found["_corrupt_record"].null_count == 5


def test_the_number_of_the_bad_row_is_named(tmp_path: Path) -> None:
    block = frame_block(samples.insert(8) + samples.insert(9) + b"\x05", zstd=False)
    path = samples.put(tmp_path, samples.log(block))
    with pytest.raises(XlogRowError) as raised:
        batches(path, LIMITS)
    assert raised.value.fields["row"] == 2


def row(header: dict[Any, Any], body: object = None) -> bytes:
    """Return a row of any MessagePack; without a body if that is None."""
    packed: bytes = msgpack.packb(header)
    return packed if body is None else packed + msgpack.packb(body)


BODY = {0x10: 512, 0x21: [1]}
BAD_ROWS = {
    "the body is no map": (row({0: 2, 3: 9}, [1, 2]), "body"),
    "the tuple is no array": (row({0: 2, 3: 9}, {0x10: 512, 0x21: "x"}), "body"),
    "the space is text": (row({0: 2, 3: 9}, {0x10: "x", 0x21: [1]}), "body"),
    "a key of the body is text": (row({0: 2, 3: 9}, {"x": 512}), "body"),
    "the space is too large": (row({0: 2, 3: 9}, {0x10: 2**31, 0x21: [1]}), "range"),
    "the replica id is too large": (row({0: 2, 2: 40, 3: 9}, BODY), "range"),
    "the lsn is negative": (row({0: 2, 3: 2**63}, BODY), "range"),
    "the time is no double": (row({0: 2, 3: 9, 4: 5}, BODY), "header"),
    "the time comes before the type": (row({4: 5, 0: 2, 3: 9}, BODY), "header"),
    "a key of the header is text": (row({"x": 1, 0: 2, 3: 9}, BODY), "header"),
    "a NOP, which has no body": (row({0: 12, 2: 40, 3: 9}), "range"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
@pytest.mark.parametrize("mode", [Mode.DROPMALFORMED, Mode.PERMISSIVE])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("bad_index", [0, 2, 389])
def test_a_bad_row_costs_itself_and_no_other_row_of_its_block(
    tmp_path: Path, name: str, mode: Mode, compress: bool, bad_index: int
) -> None:
    bad, reason = BAD_ROWS[name]
    rows = [samples.insert(lsn, "x") for lsn in range(6, 395)]
    rows.insert(bad_index, bad)
    first = block_of(range(3, 6))
    path = samples.put(
        tmp_path, samples.log(first, encode_block(b"".join(rows), compress), block_of(range(400, 402)))
    )
    skipped = SkippedDamage()
    found = samples.table(path, mode=mode, skipped=skipped, limits=Limits(batch_rows=50)).to_pylist()
    read = [row for row in found if row["lsn"] is not None]
    assert [row["lsn"] for row in read] == [*range(3, 395), 400, 401]
    numbers = [row["row"] for row in read if row["position"] == len(samples.HEADER) + len(first)]
    assert numbers == [number for number in range(390) if number != bad_index], "each keeps its number"
    assert (skipped.damaged_parts, skipped.bytes, skipped.errors[0].fields["row"]) == (1, len(bad), bad_index)
    assert reason in str(skipped.errors[0])
    if mode is Mode.PERMISSIVE:
        (index,) = (i for i, row in enumerate(found) if row["_corrupt_record"] is not None)
        assert index == 3 + bad_index, "it stands where the row would stand"
        assert (found[index]["position"], found[index]["row"]) == (
            len(samples.HEADER) + len(first),
            bad_index,
        )
    with pytest.raises(XlogRowError, match=reason):
        samples.table(path)


def test_several_bad_rows_of_a_block_cost_as_many(tmp_path: Path) -> None:
    bad = BAD_ROWS["the tuple is no array"][0]
    path = samples.put(
        tmp_path, samples.log(encode_block(bad + samples.insert(6) + bad + bad + samples.insert(7)))
    )
    skipped = SkippedDamage()
    assert samples.lsns(path, mode=Mode.PERMISSIVE, skipped=skipped) == [None, 6, None, None, 7]
    assert [error.fields["row"] for error in skipped.errors] == [0, 2, 3]


@pytest.mark.parametrize("tail", [b"\xc1", samples.insert(70)[:-1] + b"\xc1", row({"x": 1})])
def test_rows_behind_a_bad_one_without_an_end_are_lost_and_named(tmp_path: Path, tail: bytes) -> None:
    rows = b"".join(samples.insert(lsn) for lsn in range(6, 60))
    block = frame_block(rows + tail + samples.insert(71), zstd=False)
    path = samples.put(tmp_path, samples.log(block, block_of(range(80, 82))))
    skipped = SkippedDamage()
    found = list(
        reader.read_rows(
            *reader.open_fs(path), mode=Mode.DROPMALFORMED, limits=Limits(batch_rows=5), skipped=skipped
        )
    )
    lsns = [lsn for batch in found for lsn in batch["lsn"].to_pylist()]
    assert lsns == [*range(6, 60), 80, 81]
    assert (skipped.damaged_parts, skipped.bytes) == (1, len(tail) + len(samples.insert(71)))
    assert "the rows after it in the block cannot be read" in str(skipped.errors[0])


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_the_limit_of_a_block_is_what_it_says(tmp_path: Path, size: int) -> None:
    overhead = len(samples.insert(8, "x" * size)) - size
    rows = samples.insert(8, "x" * (size - overhead))
    assert len(rows) == size
    path = samples.put(tmp_path, samples.log(encode_block(rows, compress=True)))
    if size <= 1 << 20:
        assert samples.lsns(path, limits=LIMITS) == [8]
    else:
        with pytest.raises(XlogCompressionError, match="raise the option maxBlockBytes"):
            batches(path, LIMITS)


def test_every_flipped_bit_gives_an_error_or_the_same_rows(tmp_path: Path) -> None:
    for compress in (False, True):
        block = block_of(range(6, 8), compress=compress)
        expected = samples.table(samples.put(tmp_path, samples.log(block))).to_pylist()
        for bit in range(8 * len(block)):
            flipped = bytearray(block)
            flipped[bit // 8] ^= 1 << bit % 8
            path = samples.put(tmp_path, samples.log(bytes(flipped)))
            try:
                found = samples.table(path, closed=True).to_pylist()
            except XlogError:
                continue
            assert found == expected, bit


def test_a_flipped_bit_under_a_right_checksum_never_crashes(tmp_path: Path) -> None:
    rows = samples.insert(6, "text", 1.5, [1, {2: 3}]) + samples.insert(7)
    for bit in range(8 * len(rows)):
        flipped = bytearray(rows)
        flipped[bit // 8] ^= 1 << bit % 8
        block = frame_block(bytes(flipped), zstd=False)
        assert int.from_bytes(block[4:FIXED_HEADER_SIZE], "big") != checksum(bytes(flipped))
        path = samples.put(tmp_path, samples.log(block))
        try:
            found = samples.table(path)
        except XlogRowError:
            continue
        assert found.num_rows >= 1


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    block = block_of(range(6, 106), 500)
    limits = Limits(batch_rows=1000, batch_bytes=1 << 19, window_bytes=1 << 18)
    peaks = []
    for count in (40, 400):
        path = samples.put(tmp_path, samples.log(*[block] * count))
        tracemalloc.start()
        assert sum(b.num_rows for b in reader.read_rows(*reader.open_fs(path), limits=limits)) == 100 * count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] < 20 << 20
