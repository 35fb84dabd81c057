"""What a configuration must not hold, and where a relay must not listen: refused when the file is read."""

from pathlib import Path

import pytest

from config.deployment import load_daemon_config
from schemas.errors import ConfigurationError

USERS = "users: [{name: central, password_env: WORD}]"


def relay(listen: str, more: str = USERS) -> str:
    return f"relay: {{spools: [{{name: a, spool: s, listen: '{listen}'}}], {more}}}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "live.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:3301", "10.0.0.7:3301", "relay.example.org:3301", "[2001:db8::1]:3301"]
)
def test_a_relay_does_not_prove_passwords_over_a_network_without_tls(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigurationError, match=r"over a network without TLS.*relay.spools\[0\].listen"):
        load_daemon_config(written(tmp_path, relay(listen)))
    allowed = load_daemon_config(written(tmp_path, relay(listen, f"{USERS}, without_tls: true")))
    assert allowed.relay is not None


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:3301", "[::1]:3301", "localhost:3301", "unix/:/run/relay.sock"]
)
def test_on_this_machine_it_does(tmp_path: Path, listen: str) -> None:
    assert load_daemon_config(written(tmp_path, relay(listen))).relay is not None


def test_an_address_with_a_password_is_refused(tmp_path: Path) -> None:
    text = "subscribe: {replicasets: [{name: a, spool: s, peers: ['user:hidden-word@h:1']}]}"
    with pytest.raises(ConfigurationError, match="no place in an address") as caught:
        load_daemon_config(written(tmp_path, text))
    assert "hidden-word" not in str(caught.value)


def test_nobody_is_a_guest_unless_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nobody may subscribe"):
        load_daemon_config(written(tmp_path, relay("127.0.0.1:3301", "users: []")))
