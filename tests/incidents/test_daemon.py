"""Incidents of the daemon: each is told by its status, its metrics and its log alike, and is over when it is mended."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.conditions import CONDITIONS, Job
from sources.iproto.address import PasswordSource, Peer, parse_address
from sources.subscribe.daemon import DaemonMetrics, daemon_status, replicaset_status
from sources.subscribe.options import ReplicasetOptions
from sources.subscribe.replicaset import ReplicasetSubscription
from tests.incidents.pair import Pair, master_and_replica
from tests.live.server import find_servers, version_of
from tests.sources.subscribe.following import QUICK, await_until, following

pytestmark = pytest.mark.live

SEEN_SECONDS = 4 * QUICK.answer_seconds
"""An incident is seen after `answer_seconds`; the rest is for a busy machine."""

GAUGES = {"subscribe_failed": "subscribe_failed", "subscribe_spool_full": "subscribe_spool_full"}
"""Conditions with a gauge of their own, which the alert uses."""


def servers() -> Iterator[Any]:
    """Yield the programs of all servers; the suite takes the first, the others are part of the soak."""
    for number, binary in enumerate(find_servers() or [""]):
        marks = [pytest.mark.soak] if number else []
        yield pytest.param(binary, marks=marks, id=version_of(binary).partition("-")[0] if binary else "none")


@pytest.fixture(params=servers())
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with master_and_replica(tmp_path, request.param) as found:
        yield found


@contextmanager
def daemon(pair: Pair, folder: Path, password: str = "right") -> Iterator[ReplicasetSubscription]:
    file = folder / "password"
    file.write_text(password)
    file.chmod(0o600)
    peers = tuple(
        Peer(address, parse_address(address)[1], "replicator", PasswordSource(None, str(file)))
        for address in pair.addresses
    )
    with following(ReplicasetOptions("a", folder / "spool", peers, timing=QUICK)) as replicaset:
        yield replicaset


def told(replicaset: ReplicasetSubscription) -> dict[str, str]:
    """Return {condition: text} of what the status tells; the metrics must tell the same."""
    status = daemon_status([replicaset])
    metrics = {one.name: one for one in DaemonMetrics([replicaset]).collect()}
    found = {one["condition"]: one["text"] for one in status["problems"]}
    if daemon_status([replicaset])["problems"] == status["problems"]:  # nothing changed meanwhile
        assert {s.labels["condition"] for s in metrics["subscribe_condition"].samples} == found.keys()
        for condition, gauge in GAUGES.items():
            assert (metrics[gauge].samples[0].value == 1) == (condition in found), condition
    assert all(CONDITIONS[name].job is Job.DAEMON for name in found)
    return found


def await_told(replicaset: ReplicasetSubscription, *conditions: str) -> dict[str, str]:
    """Wait until exactly these conditions are told, and return their texts."""
    try:
        await_until(lambda: told(replicaset).keys() == set(conditions), str(conditions), SEEN_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {replicaset_status(replicaset)}, {told(replicaset)}") from None
    return told(replicaset)


def is_fed(replicaset: ReplicasetSubscription) -> bool:
    return bool(replicaset.feeds) and not told(replicaset)


def test_the_read_only_replica_feeds_when_the_master_is_killed(pair: Pair, tmp_path: Path) -> None:
    with daemon(pair, tmp_path) as replicaset:
        pair.write()
        await_until(lambda: is_fed(replicaset), "a stream")
        await_until(pair.is_replicated, "replication")
        vclock = pair.replica.eval("return box.info.vclock[1]")
        pair.master.kill()
        replica = replicaset.links[1]
        await_until(lambda: replica.uuid in replicaset.feeds, "the stream of the replica", SEEN_SECONDS)
        texts = await_told(replicaset, "subscribe_peer_gone")
        assert "no rows of replicaset a are taken from it" in texts["subscribe_peer_gone"]
        assert (replicaset.spool.vclock or {})[1] == vclock
        pair.master.start()
        await_told(replicaset)


@pytest.mark.parametrize("act", ["killed", "stopped", "partitioned"])
def test_nobody_feeds(pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture, act: str) -> None:
    with daemon(pair, tmp_path) as replicaset, caplog.at_level(logging.INFO):
        pair.write()
        await_until(lambda: is_fed(replicaset), "a stream")
        cause(pair, act)
        caused_at = time.time()
        try:
            texts = await_told(replicaset, "subscribe_failed", "subscribe_peer_gone")
            # The daemon counts a peer's silence from its last answer.
            since = [
                replicaset.unfed_since,
                *(link.left_out.since if link.left_out else None for link in replicaset.links),
            ]
            assert all(one is not None and one < caused_at + QUICK.answer_seconds / 2 for one in since)
            assert "no peer feeds it" in texts["subscribe_failed"]
            assert all(address in texts["subscribe_failed"] for address in pair.addresses)
            await_until(lambda: max(replicaset.progress.lag_seconds({}).values()) > QUICK.answer_seconds)
        finally:
            mend(pair, act)
        await_told(replicaset)
        pair.write()
        await_until(
            lambda: set(replicaset.progress.lag_seconds(replicaset.spool.vclock or {}).values()) == {0.0}
        )
        # Logged by the next look of the daemon, which may follow the rows.
        await_until(lambda: "rows are received again" in caplog.text)
    assert "no peer feeds it" in caplog.text


def cause(pair: Pair, act: str) -> None:
    for server, proxy in zip((pair.master, pair.replica), pair.proxies, strict=True):
        if act == "killed":
            server.kill()
        elif act == "stopped":
            os.kill(server.pid, signal.SIGSTOP)
        else:
            proxy.partition(True)


def mend(pair: Pair, act: str) -> None:
    for server, proxy in zip((pair.master, pair.replica), pair.proxies, strict=True):
        if act == "killed":
            server.start()
        elif act == "stopped":
            os.kill(server.pid, signal.SIGCONT)
        else:
            proxy.partition(False)


def test_a_wrong_password_at_all_peers(pair: Pair, tmp_path: Path) -> None:
    with daemon(pair, tmp_path, "wrong") as replicaset:
        texts = await_told(replicaset, "subscribe_failed", "subscribe_peer_gone")
        assert "assword" in texts["subscribe_failed"]
        assert replicaset_status(replicaset)["error"] == texts["subscribe_failed"]
        pair.master.eval("box.schema.user.passwd('replicator', 'wrong')")
        await_told(replicaset)


def test_no_right_to_replicate(pair: Pair, tmp_path: Path) -> None:
    pair.master.eval("box.schema.user.revoke('replicator', 'replication')")
    await_until(pair.is_replicated, "replication")
    with daemon(pair, tmp_path) as replicaset:
        texts = await_told(replicaset, "subscribe_failed", "subscribe_peer_gone")
        assert "denied" in texts["subscribe_failed"]
        pair.master.eval("box.session.su('admin', box.schema.user.grant, 'replicator', 'replication')")
        await_told(replicaset)


def test_a_full_disk_and_what_the_spool_lacks(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with daemon(pair, tmp_path) as replicaset, caplog.at_level(logging.INFO):
        pair.write()
        await_until(lambda: is_fed(replicaset), "a stream")
        patch = pytest.MonkeyPatch()
        try:
            patch.setattr(os, "write", _no_room(os.write, str(tmp_path / "spool")))
            pair.write(300)
            texts = await_told(replicaset, "subscribe_failed", "subscribe_spool_full")
            assert str(tmp_path / "spool") in texts["subscribe_spool_full"]
            vclock = replicaset.spool.durable_vclock or {}
            await_until(lambda: sum(replicaset.progress.lag_rows(vclock).values()) >= 300, "the lag in rows")
            time.sleep(0.5)
            assert max(replicaset.progress.lag_seconds(vclock).values()) > 0.4
        finally:
            patch.undo()
        await_told(replicaset)
    assert f"there is room in {tmp_path / 'spool'} again" in caplog.text


def _no_room(write: Callable[[int, Any], int], folder: str) -> Callable[[int, Any], int]:
    """Return a function like `os.write` that finds no room in a folder."""

    def refuse(file: int, data: Any) -> int:
        try:
            path = str(Path(f"/proc/self/fd/{file}").readlink())
        except OSError:
            path = ""
        if path.startswith(folder):
            raise OSError(28, os.strerror(28), path)
        return write(file, data)

    return refuse
