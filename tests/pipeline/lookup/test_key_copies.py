"""Key copies: what they return, and that no damage of their folder changes more than the time of a lookup."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.lookup import key_copies
from pipeline.lookup.copy_folder import KEPT_FREE_BYTES, stored_bytes
from pipeline.lookup.key_copies import KeyCopies
from pipeline.lookup.key_copy import CopyName, KeyCopy
from udfs.keys.key_index import WantedKeys

ROWS = 5_000
COLUMNS = ("_key", "_tuple", "_replicaset_id")
NAME = CopyName("file:///w.db/accounts", "part-1.parquet", 4711, "_key", COLUMNS)


def rows_of(seed: int = 1) -> pa.Table:
    chance = random.Random(seed)
    keys = [f"key {number:06}".encode() for number in range(ROWS)]
    return pa.table(
        {
            "_key": pa.array(keys, pa.binary()),
            "_tuple": pa.array([chance.randbytes(chance.randrange(40)) for _ in keys], pa.binary()),
            "_replicaset_id": pa.array([1] * ROWS, pa.int32()),
        }
    )


@pytest.fixture(autouse=True)
def _store_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_copies, "SMALL_BYTES", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "copies"


def assert_right(copy: KeyCopy | None, rows: pa.Table) -> None:
    assert copy is not None
    asked = [7, 4_999, 0]
    keys = rows["_key"].take(pa.array(asked)).combine_chunks()
    found_keys, found_rows = copy.find(WantedKeys.of(keys, copy.seeds))
    assert dict(zip(found_keys.tolist(), found_rows.tolist(), strict=True)) == dict(enumerate(asked))
    taken = copy.take(np.array(asked, np.int64), ["_tuple", "_replicaset_id", "_key"])
    assert taken.equals(rows.select(["_tuple", "_replicaset_id", "_key"]).take(pa.array(asked)))


def stored(folder: Path) -> Path:
    (found,) = folder.glob("*.keys")
    return found


def test_another_process_uses_a_stored_copy(folder: Path) -> None:
    assert_right(KeyCopies(folder).add(NAME, rows_of()), rows_of())
    other = KeyCopies(folder)
    assert_right(other.get(NAME), rows_of())
    assert (other.counts.used, other.counts.made) == (1, 0)


def test_a_copy_of_another_file_is_not_used(folder: Path) -> None:
    copies = KeyCopies(folder)
    copies.add(NAME, rows_of())
    for other in (
        CopyName("file:///v.db/accounts", NAME.path, NAME.size, NAME.key, COLUMNS),
        CopyName(NAME.table, NAME.path, NAME.size + 1, NAME.key, COLUMNS),
        CopyName(NAME.table, NAME.path, NAME.size, NAME.key, COLUMNS[:2]),
    ):
        assert copies.get(other) is None


def _flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _truncate(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: chance.randrange(len(content))])


def _swap(path: Path, chance: random.Random) -> None:
    other = KeyCopies(path.parent / "other")
    other.add(CopyName(NAME.table, f"part-{chance.random()}", 1, "_key", COLUMNS), rows_of(2))
    path.unlink()
    stored(path.parent / "other").rename(path)


@pytest.mark.parametrize("damage", [_flip, _truncate, _swap])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_damaged_copy_is_never_believed(
    folder: Path, damage: Callable[[Path, random.Random], None], is_open: bool
) -> None:
    chance = random.Random(5)
    for _ in range(30):
        copies = KeyCopies(folder)
        copies.add(NAME, rows_of())
        damage(stored(folder), chance)
        reader = copies if is_open else KeyCopies(folder)
        assert reader.get(NAME) is None
        assert reader.counts.refused == 1
        assert not list(folder.glob("*.keys"))


def test_a_removed_copy_stays_open_and_is_made_again(folder: Path) -> None:
    copies = KeyCopies(folder)
    copies.add(NAME, rows_of())
    stored(folder).unlink()
    assert_right(copies.get(NAME), rows_of())
    assert KeyCopies(folder).get(NAME) is None


def test_a_folder_that_cannot_be_written_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    copies = KeyCopies(tmp_path / "file" / "copies")
    assert copies.add(NAME, rows_of()) is None
    assert copies.get(NAME) is None
    assert copies.add(NAME, rows_of()) is None
    assert (copies.counts.failed, len(caplog.records)) == (2, 1)
    assert "lookups take longer" in caplog.text


def test_the_least_recently_used_copies_go_first(folder: Path) -> None:
    names = [CopyName(NAME.table, f"part-{number}", 1, "_key", COLUMNS) for number in range(6)]
    KeyCopies(folder).add(names[0], rows_of())
    size = stored(folder).stat().st_size
    copies = KeyCopies(folder, limit_bytes=int(size * 4.5))
    for number, name in enumerate(names[1:4], 1):
        copies.add(name, rows_of())
        os.utime(folder / key_copies._file_name(name), ns=(number, number))
    os.utime(folder / key_copies._file_name(names[1]), ns=(10**18, 1))
    copies.add(names[4], rows_of())
    copies.add(names[5], rows_of())
    assert stored_bytes(copies.folder) <= copies.limit_bytes
    left = [KeyCopies(folder).get(name) is not None for name in names]
    assert left[2] is False
    assert left[1] is left[4] is left[5] is True


def test_small_copies_stay_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_copies, "SMALL_BYTES", 1 << 30)
    copies = KeyCopies(folder)
    assert_right(copies.add(NAME, rows_of()), rows_of())
    assert_right(copies.get(NAME), rows_of())
    assert not folder.exists()
    monkeypatch.setattr(key_copies, "MEMORY_BYTES", 1)
    copies.add(CopyName(NAME.table, "part-2", 1, "_key", COLUMNS), rows_of())
    assert copies.get(NAME) is None


def test_an_empty_file_and_one_key_have_copies(folder: Path) -> None:
    copies = KeyCopies(folder)
    for count in (0, 1):
        rows = rows_of().slice(0, count)
        copies.add(NAME, rows)
        copy = KeyCopies(folder).get(NAME)
        assert copy is not None
        wanted = WantedKeys.of(rows_of()["_key"].combine_chunks().slice(0, 3), copy.seeds)
        assert copy.find(wanted)[1].tolist() == list(range(count))
        assert copy.take(np.arange(count), COLUMNS).equals(rows)


def test_copies_do_not_fill_their_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    KeyCopies(folder).add(NAME, rows_of())
    size = stored(folder).stat().st_size
    free = [KEPT_FREE_BYTES + size // 2]
    monkeypatch.setattr(key_copies, "free_bytes", lambda _: free[0])
    other = CopyName(NAME.table, "part-2", 1, "_key", COLUMNS)
    copies = KeyCopies(folder)
    assert_right(copies.add(other, rows_of()), rows_of())
    assert KeyCopies(folder).get(NAME) is None, "the older copy made room"
    free[0] = KEPT_FREE_BYTES - 2 * size
    assert copies.add(NAME, rows_of()) is None
    assert copies.counts.failed == 1
    assert "No space left on device" in caplog.text
