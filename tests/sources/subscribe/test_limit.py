"""A transaction beyond the block limit stops its replicaset; none of its rows is written or acknowledged."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from config.deployment import load, load_daemon_config
from schemas.errors import TransactionLimitError
from sources.iproto.row_stream import TransactionChunk
from sources.spool.acks import read_acks
from sources.spool.options import SpoolOptions
from sources.spool.spool import Spool
from sources.subscribe.merge import split_by_size
from tests.sources.relay.test_relay import serving
from tests.sources.relay.test_versions import NEW, logs, row, write_snapshot
from tests.sources.subscribe.following import await_until, following, options

LIMIT = 10_000


def append(spool: Spool, size: int) -> None:
    """Append one row of about this many bytes."""
    lsn = (spool.vclock or {}).get(1, 0) + 1
    rows = row(512, [lsn, "x" * size], lsn, 1)
    spool.append(np.frombuffer(rows, np.uint8), {1: lsn})


def test_a_long_transaction_stops_only_its_replicaset(tmp_path: Path) -> None:
    """The daemon follows relays whose limit is larger."""
    how = {"spool": SpoolOptions(max_block_bytes=LIMIT)}
    with Spool(tmp_path / "a") as a, Spool(tmp_path / "b") as b:
        for spool in (a, b):
            write_snapshot(spool, NEW)
            append(spool, 100)
        with (
            serving(tmp_path / "a", tmp_path / "a.sock"),
            serving(tmp_path / "b", tmp_path / "b.sock"),
            following(options(tmp_path / "to_a", f"unix/:{tmp_path}/a.sock", **how)) as to_a,
            following(options(tmp_path / "to_b", f"unix/:{tmp_path}/b.sock", **how)) as to_b,
        ):
            await_until(lambda: (to_a.spool.vclock, to_b.spool.vclock) == ({1: 2}, {1: 2}), "both")
            for size in (LIMIT // 2, 2 * LIMIT, 10):
                append(a, size)
            await_until(lambda: isinstance(to_a.error, TransactionLimitError), "the refusal")
            assert "max_block_bytes" in str(to_a.error)
            streams = to_a.progress.started_streams
            append(b, LIMIT // 2)
            await_until(lambda: to_b.spool.vclock == {1: 3}, "the other replicaset")
            assert to_b.error is None
            name = f"relay-{to_b.spool.instance_uuid}"
            await_until(lambda: read_acks(tmp_path / "b").get(name) is not None, "an acknowledgement")
            await_until(lambda: read_acks(tmp_path / "b")[name].vclock == {1: 3}, "the last one")
            assert (to_a.spool.vclock, dict(to_a.feeds)) == ({1: 3}, {})
            assert to_a.progress.started_streams == streams, (
                "it asks again and again for what it does not take"
            )
            own = read_acks(tmp_path / "a").get(f"relay-{to_a.spool.instance_uuid}")
            assert own is None or own.vclock.get(1, 0) <= 3
        larger = options(tmp_path / "to_a", f"unix/:{tmp_path}/a.sock")
        with (
            serving(tmp_path / "a", tmp_path / "a2.sock"),
            following(options(tmp_path / "to_a", f"unix/:{tmp_path}/a2.sock")) as to_a,
        ):
            assert larger.spool.max_block_bytes > LIMIT
            await_until(lambda: to_a.spool.vclock == a.vclock, "what a larger limit takes")
    assert logs(tmp_path / "to_a") == logs(tmp_path / "a")


def test_a_relay_refuses_larger_blocks(tmp_path: Path) -> None:
    with Spool(tmp_path / "a") as a:
        write_snapshot(a, NEW)
        append(a, 100)
        append(a, 2 * LIMIT)
        with serving(tmp_path / "a", tmp_path / "a.sock", max_block_bytes=LIMIT) as relay:
            await_until(lambda: relay.error is not None, "the refusal")
            assert "max_block_bytes" in str(relay.error)


def chunk(*sizes: int) -> TransactionChunk:
    ends = np.cumsum(np.array(sizes, np.int64))
    lsns = np.arange(1, len(sizes) + 1, dtype=np.int64)
    rows = np.arange(ends[-1], dtype=np.int64).astype(np.uint8)
    return TransactionChunk(rows, ends, lsns.astype(np.float64), np.ones(len(sizes), np.int64), lsns)


@pytest.mark.parametrize("limit", [5, 6, 9, 10, 14, 15, 100])
def test_chunks_are_split_between_transactions(limit: int) -> None:
    whole = chunk(5, 1, 4, 5)
    parts = split_by_size(whole, limit)
    assert all(0 < part.rows.size <= limit and part.ends[-1] == part.rows.size for part in parts)
    assert b"".join(part.rows.tobytes() for part in parts) == whole.rows.tobytes()
    assert [lsn for part in parts for lsn in part.last_lsns.tolist()] == [1, 2, 3, 4]
    assert len(parts) == {5: 3, 6: 3, 9: 2, 10: 2, 14: 2}.get(limit, 1)
    with pytest.raises(TransactionLimitError, match="lsn 1"):
        split_by_size(whole, 4)


@pytest.mark.parametrize(("line", "limit"), [("", 1 << 30), ("max_block_bytes: 2 GiB", 2 << 30)])
def test_one_configuration_key_limits_all_programs(tmp_path: Path, line: str, limit: int) -> None:
    path = tmp_path / "conf.yaml"
    path.write_text(f"""
warehouse: warehouse
checkpoint: checkpoint
sources: [{{name: a, path: spool}}]
subscribe: {{replicasets: [{{name: a, spool: spool, peers: ["unix/:/a"]}}]}}
relay: {{guest: true, spools: [{{name: a, spool: spool, listen: "127.0.0.1:1"}}]}}
{line}
""")
    live = load_daemon_config(path)
    assert live.subscribe is not None
    assert live.relay is not None
    assert load(path).max_block_bytes == live.max_block_bytes == limit
    (options,) = live.subscribe.replicaset_options(max_block_bytes=live.max_block_bytes)
    assert options.spool.max_block_bytes == limit
    assert live.relay.spool_options(live.max_block_bytes)[0].max_block_bytes == limit


def test_a_transaction_takes_a_few_times_its_size_in_memory(tmp_path: Path) -> None:
    """docs/threats.md states the limits of both; they are measured in other processes, minus those without rows."""
    size = 150
    command = [sys.executable, "-m", "tests.sources.relay.memory_case", "daemon", str(size), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    relay, daemon = map(int, done.stdout.split()[-2:])
    assert relay < 350 + 1.5 * size
    assert daemon < 350 + 3.5 * size
