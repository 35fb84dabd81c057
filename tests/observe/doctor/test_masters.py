"""Faults of masters and of the connection to them: `doctor` reports each one under its name, on real servers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from config.subscribe import Subscribe
from observe.doctor.findings import Finding, Level
from observe.doctor.masters import check_masters, gather_masters
from sources.xlog.format.block import BLOCK_LIMIT
from tests.live.certificates import CertificateAuthority
from tests.live.server import Tarantool, find_servers

pytestmark = pytest.mark.live

USERS = """
    box.schema.user.create('good', {password = 'right', if_not_exists = true})
    box.schema.user.grant('good', 'replication', nil, nil, {if_not_exists = true})
    box.schema.user.create('weak', {password = 'right', if_not_exists = true})
    box.schema.user.grant('weak', 'read', 'space', '_schema', {if_not_exists = true})
    box.schema.user.create('none', {password = 'right', if_not_exists = true})
"""


@pytest.fixture(scope="module", params=find_servers())
def master(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tarantool]:
    with Tarantool(tmp_path_factory.mktemp("master"), lua=USERS, binary=request.param) as server:
        yield server


def findings_at(folder: Path, *addresses: str, **settings: Any) -> list[Finding]:
    (folder / "password").write_text(settings.pop("password", "right"))
    (folder / "password").chmod(0o600)
    whole = {"password_file": str(folder / "password"), **settings}
    replicaset = {"name": "a", "spool": str(folder / "spool"), "peers": list(addresses), **whole}
    section = Subscribe.model_validate({"replicasets": [replicaset], "answer": "5 seconds"})
    return check_masters(gather_masters(section, BLOCK_LIMIT))


def names(findings: list[Finding]) -> list[str]:
    return [one.name for one in findings if one.level is not Level.OK]


def test_a_user_who_may_replicate(master: Tarantool, tmp_path: Path) -> None:
    registered = master.eval("return #box.space._cluster:select()")
    findings = findings_at(tmp_path, f"good@unix/:{master.socket}")
    assert names(findings) == []
    assert master.eval("return box.info.uuid") in findings[0].text
    assert master.eval("return #box.space._cluster:select()") == registered
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize(
    ("user", "password", "fault"),
    [
        ("good", "wrong", "wrong_password"),
        # From 2.11 on a server does not say whether the user or the password is wrong.
        ("nobody", "right", "no_such_user"),
        ("weak", "right", "no_right_to_replicate"),
        ("none", "right", "no_right_to_replicate"),
    ],
)
def test_a_user_who_may_not_replicate(
    master: Tarantool, tmp_path: Path, user: str, password: str, fault: str
) -> None:
    findings = findings_at(tmp_path, f"{user}@unix/:{master.socket}", password=password)
    is_old = str(master.eval("return _TARANTOOL")).startswith("2.6.")
    hidden = {} if is_old else {"no_such_user": "wrong_password"}
    assert names(findings) == [hidden.get(fault, fault)]
    assert all(one.advice for one in findings if one.level is Level.FAIL)


def test_no_password(master: Tarantool, tmp_path: Path) -> None:
    settings = {"password_file": None, "password_env": "NO_SUCH_VARIABLE"}
    assert names(findings_at(tmp_path, f"good@unix/:{master.socket}", **settings)) == ["password_missing"]


def test_nothing_listens_at_the_address(master: Tarantool, tmp_path: Path) -> None:
    gone = f"unix/:{tmp_path}/none"
    assert names(findings_at(tmp_path, f"good@{gone}")) == ["peer_unreachable"]
    both = findings_at(tmp_path, f"good@{gone}", f"good@unix/:{master.socket}")
    assert [(one.name, one.level) for one in both][:2] == [
        ("peer_unreachable", Level.WARN),
        ("peer", Level.OK),
    ]


def test_the_server_is_not_a_tarantool(tmp_path: Path) -> None:
    with listening(tmp_path, b"SSH-2.0-OpenSSH_9.2\r\n" + b" " * 128) as address:
        assert names(findings_at(tmp_path, f"good@{address}")) == ["not_tarantool"]


def test_a_port_without_tls(master: Tarantool, tmp_path: Path) -> None:
    tls = {"ca_file": CertificateAuthority(tmp_path).file}
    assert names(findings_at(tmp_path, f"good@unix/:{master.socket}", tls=tls)) == ["peer_tls"]


def test_peers_of_two_replicasets_under_one_name(master: Tarantool, tmp_path: Path) -> None:
    with Tarantool(tmp_path / "other", lua=USERS) as other:
        addresses = (f"good@unix/:{one.socket}" for one in (master, other))
        assert names(findings_at(tmp_path, *addresses)) == ["mixed_peers"]


@contextmanager
def listening(folder: Path, greeting: bytes) -> Iterator[str]:
    """Yield the address of a service that sends a text to each client."""
    path = str(folder / "service")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(greeting)
                connection.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"unix/:{path}"
        finally:
            thread.join(10)
