"""The section `relay` of the configuration, checked like the rest, and as the relay takes it.

Never here: passwords; a variable of the environment or a file is named.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from config.address import Port, Server, TlsFiles
from config.values import Label, Location, Part, mistake
from sources.iproto.address import Password, parse_address
from sources.relay.options import RelayOptions
from sources.xlog.block import BLOCK_LIMIT


class User(Part):
    """Who may subscribe at a relay; its password is in a variable of the environment, or a file's first line."""

    name: str
    password_env: str | None = None
    password_file: Location | None = None

    @model_validator(mode="after")
    def _one(self) -> User:
        if (self.password_env is None) == (self.password_file is None):
            raise mistake("names no password, or two; allowed: one of password_env, password_file")
        return self


class ServedSpool(Part):
    """One spool that a relay serves, on a port of its own.

    Parameters
    ----------
    name : str
        Shown in messages.
    spool : str
        A local directory that the subscription daemon fills.
    listen : str
        `host:port` or `unix/:/path`.

    """

    name: Label
    spool: Location
    listen: Server


class Relay(Part):
    """The relay.

    Parameters
    ----------
    spools : tuple of ServedSpool
    users : tuple of User
    guest : bool
        Whether who does not authenticate may subscribe.
    tls : TlsFiles or None
        `cert_file` and `key_file` that are shown to subscribers.
    status : str or None
        Where `/metrics` and `/status` are served.

    """

    spools: tuple[ServedSpool, ...]
    users: tuple[User, ...] = ()
    guest: bool = False
    tls: TlsFiles | None = None
    status: Port | None = None

    @model_validator(mode="after")
    def _whole(self) -> Relay:
        if not self.spools:
            raise mistake("names no spool; allowed: a list of one or more", "spools")
        if not self.users and not self.guest:
            raise mistake("nobody may subscribe; allowed: one user or more, or guest: true", "users")
        return self

    def options(self, max_block_bytes: int = BLOCK_LIMIT) -> list[RelayOptions]:
        """Return each spool as the relay takes it; `max_block_bytes` is of the whole file (`config.live.Live`)."""
        users = {user.name: Password(user.password_env, user.password_file) for user in self.users}
        tls = None if self.tls is None else self.tls.tls()
        return [
            RelayOptions(
                *(each.name, Path(each.spool), parse_address(each.listen)[1], users),
                guest=self.guest,
                tls=tls,
                max_block_bytes=max_block_bytes,
            )
            for each in self.spools
        ]
