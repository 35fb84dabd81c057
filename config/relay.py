"""The section `relay` of the configuration, checked like the rest, and as the relay takes it.

Never here: passwords; a variable of the environment or a file is named.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from config.address import Port, Server, TlsFiles
from config.values import Label, Location, Part, mistake
from sources.iproto.address import Password, parse_address
from sources.relay.options import Limits, RelayOptions
from sources.xlog.block import BLOCK_LIMIT


def _is_local(listen: str) -> bool:
    """Return whether only processes of this machine reach an address."""
    address = parse_address(listen)[1]
    return address.path is not None or address.host in ("localhost", "127.0.0.1", "::1")


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


class RelayLimits(Part):
    """What strangers may take of a relay.

    Parameters
    ----------
    connections, per_address : int
        At a time: in all, and from one address.
    strangers : int
        At a time without having authenticated: of more, those that came first are closed.
    subscribers : int
        Instance uuids that are remembered, each of which may hold up the removal of files for `keep.forget`.

    """

    connections: int = Field(default=256, gt=0)
    per_address: int = Field(default=64, gt=0)
    strangers: int = Field(default=64, gt=0)
    subscribers: int = Field(default=64, gt=0)

    def limits(self) -> Limits:
        """Return it as the relay takes it."""
        return Limits(**self.model_dump())


class Relay(Part):
    """The relay.

    Parameters
    ----------
    spools : tuple of ServedSpool
    users : tuple of User
    guest : bool
        Whether who does not authenticate may subscribe.
    tls : TlsFiles or None
        `cert_file` and `key_file` that are shown to subscribers; with `ca_file` each must show one of its own.
    without_tls : bool
        Whether passwords may be proved over TCP without TLS: who listens there can guess them as fast as he computes.
    limits : RelayLimits
    status : str or None
        Where `/metrics` and `/status` are served.

    """

    spools: tuple[ServedSpool, ...]
    users: tuple[User, ...] = ()
    guest: bool = False
    tls: TlsFiles | None = None
    without_tls: bool = False
    limits: RelayLimits = RelayLimits()
    status: Port | None = None

    @model_validator(mode="after")
    def _whole(self) -> Relay:
        if not self.spools:
            raise mistake("names no spool; allowed: a list of one or more", "spools")
        if not self.users and not self.guest:
            raise mistake("nobody may subscribe; allowed: one user or more, or guest: true", "users")
        for number, each in enumerate(self.spools):
            if self.users and self.tls is None and not self.without_tls and not _is_local(each.listen):
                what = "would have passwords proved (chap-sha1) over a network without TLS"
                allowed = "allowed: tls, a local address, or without_tls: true"
                raise mistake(f"{each.listen!r} {what}; {allowed}", "spools", number, "listen")
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
                limits=self.limits.limits(),
                max_block_bytes=max_block_bytes,
            )
            for each in self.spools
        ]
