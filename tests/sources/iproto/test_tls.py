"""TLS to a real master, through a proxy (Debian's 2.6.0 has no TLS), and to the relay."""

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.errors import IprotoError
from sources.iproto.address import TlsOptions
from sources.subscribe.replicaset import ReplicasetSubscription
from tests.live.certificates import CertificateAuthority, CertificateFiles
from tests.live.mesh import Mesh, mesh
from tests.live.proxy import Proxy
from tests.live.spools import read_spool, tuples_of
from tests.sources.relay.test_relay import serving
from tests.sources.subscribe.following import await_until, following, options
from tests.sources.subscribe.test_following import await_all, check, write

pytestmark = pytest.mark.live

HOST = "master.example"


def server_context(pair: CertificateFiles, clients: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context


@contextmanager
def behind_tls(
    folder: Path, tls: TlsOptions, context: ssl.SSLContext, cut: int | None = None
) -> Iterator[tuple[Mesh, ReplicasetSubscription]]:
    """Follow a master behind a TLS proxy that cuts each of its first connections."""
    cuts = iter([] if cut is None else [cut] * 3)
    with ExitStack() as stack:
        masters = stack.enter_context(mesh(folder, 1))
        proxy = stack.enter_context(Proxy(masters[1].socket, lambda: next(cuts, None), context))
        how = options(folder / "spool", proxy.address)
        how = replace(how, peers=tuple(replace(peer, tls=tls) for peer in how.peers))
        yield masters, stack.enter_context(following(how))


@pytest.mark.parametrize("cut", [None, 100, 1000, 3000])
def test_rows_are_received_through_tls(tmp_path: Path, cut: int | None) -> None:
    authority = CertificateAuthority(tmp_path)
    context = server_context(authority.issue(HOST), authority.file)
    own = authority.issue("daemon")
    tls = TlsOptions(authority.file, own.cert, own.key, HOST)
    with behind_tls(tmp_path, tls, context, cut) as (masters, replicaset):
        await_until(lambda: bool(replicaset.feeds), "a stream")
        write(masters, 1, 0, 500)
        await_all(masters, replicaset)
        assert replicaset.progress.repeated_rows == 0
        check(masters, tmp_path / "spool")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("authority", "certificate verify failed: self-signed"),
        ("name", "Hostname mismatch"),
        ("no certificate of its own", "closed the connection"),
    ],
)
def test_a_tls_connection_that_cannot_be_verified_is_refused(tmp_path: Path, wrong: str, why: str) -> None:
    authority, other = CertificateAuthority(tmp_path), CertificateAuthority(tmp_path, "other")
    own = authority.issue("daemon")
    tls = {
        "authority": TlsOptions(other.file, own.cert, own.key, HOST),
        "name": TlsOptions(authority.file, own.cert, own.key, "another.example"),
        "no certificate of its own": TlsOptions(authority.file, server_name=HOST),
    }[wrong]
    context = server_context(authority.issue(HOST), authority.file)
    with behind_tls(tmp_path, tls, context) as (_, replicaset):
        await_until(lambda: replicaset.links[0].error is not None, "the refusal")
        assert isinstance(replicaset.links[0].error, IprotoError)
        assert why in str(replicaset.links[0].error)
        assert replicaset.feeds == {}


@pytest.mark.parametrize("mutual", [False, True])
def test_the_relay_serves_tls(tmp_path: Path, mutual: bool) -> None:
    authority = CertificateAuthority(tmp_path)
    printable = authority.issue("daemon") if mutual else None
    pair, socket = authority.issue(HOST), tmp_path / "relay.sock"
    with mesh(tmp_path, 1) as masters:
        with following(options(tmp_path / "spool", f"unix/:{masters[1].socket}")) as replicaset:
            write(masters, 1, 0, 100)
            await_all(masters, replicaset)
        how = options(tmp_path / "central", f"unix/:{socket}")
        anonymous = TlsOptions(authority.file, server_name=HOST)
        tls = (
            anonymous
            if printable is None
            else TlsOptions(authority.file, printable.cert, printable.key, HOST)
        )
        how = replace(how, peers=tuple(replace(peer, tls=tls) for peer in how.peers))
        with (
            serving(
                tmp_path / "spool",
                socket,
                tls=TlsOptions(authority.file if mutual else None, pair.cert, pair.key),
            ),
            following(how) as central,
        ):
            if mutual:
                peers = tuple(replace(peer, tls=anonymous) for peer in how.peers)
                refused = replace(how, directory=tmp_path / "refused", peers=peers)
                with following(refused) as nobody:
                    await_until(lambda: nobody.links[0].error is not None, "the refusal")
                    assert nobody.spool.vclock is None
            await_until(lambda: central.spool.vclock == masters.vclock(1), "the rows")
        assert read_spool(masters[1], tmp_path / "central")[2] == tuples_of(masters[1])
