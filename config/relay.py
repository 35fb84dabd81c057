"""The section `relay` of the configuration, and its conversion to the relay's options.

It never holds a password, only the name of an environment variable or of a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, model_validator

from config.values import (
    ConfigSection,
    HostPort,
    Interval,
    Label,
    Location,
    ServerAddress,
    SqlName,
    TlsFiles,
    mistake,
)
from sources.iproto.address import PasswordSource, parse_address
from sources.relay.options import ClientLimits, RelayOptions
from sources.xlog.format.block import BLOCK_LIMIT


def _is_local(listen: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    address = parse_address(listen)[1]
    return address.path is not None or address.host in ("localhost", "127.0.0.1", "::1")


class User(ConfigSection):
    """A user who may subscribe to a relay; its password is in an environment variable, or the first line of a file."""

    name: str
    password_env: str | None = None
    password_file: Location | None = None

    @model_validator(mode="after")
    def _check_password(self) -> User:
        if (self.password_env is None) == (self.password_file is None):
            raise mistake("names no password, or two; allowed: one of password_env, password_file")
        return self


class ServedSpool(ConfigSection):
    """One spool that a relay serves, on a port of its own."""

    name: Label
    """Name in messages."""
    spool: Location
    """A local directory that the subscription daemon fills."""
    listen: ServerAddress
    """`host:port` or `unix/:/path`."""


class SubscriberUserConfig(ConfigSection):
    """A user that `relay --aggregated` creates on the Tarantool servers that follow it; these servers are read-only."""

    name: str
    """Name of the user; `guest` is anyone without authentication and has no password."""
    password_env: str | None = None
    """The environment variable with the password, or the file whose first line is the password."""
    password_file: Location | None = None
    """The environment variable with the password, or the file whose first line is the password."""
    executes: bool = False
    """Whether the user may also execute: call functions and evaluate code; every user may read."""

    @model_validator(mode="after")
    def _check_password(self) -> SubscriberUserConfig:
        named = (self.password_env is not None) + (self.password_file is not None)
        if named != (self.name != "guest"):
            raise mistake("allowed: one of password_env, password_file; for guest none")
        if self.name in ("admin", "public", "replication", "super"):
            raise mistake(f"{self.name!r} exists on each server already; allowed: another name", "name")
        return self

    def password(self) -> PasswordSource | None:
        """Return the environment variable or the file with the password; None for guest."""
        return None if self.name == "guest" else PasswordSource(self.password_env, self.password_file)


class AggregatedRelay(ConfigSection):
    """Settings of `relay --aggregated`, which serves the decided tables as one replicaset.

    The decided tables are the tables of all spaces, whose rows are the versions that the policies chose.
    """

    warehouse: Location
    """Warehouse and database of the deployment; opened without Spark."""
    database: SqlName = "aggregator"
    """Warehouse and database of the deployment; opened without Spark."""
    spool: Location
    """A local directory that only the relay uses."""
    listen: ServerAddress
    """`host:port` or `unix/:/path`."""
    poll: Interval = "1 second"
    """Time between two polls of `_epochs`."""
    forget: Interval = "1 day"
    """How long files are kept for a subscriber that no longer acknowledges."""
    readers: tuple[SubscriberUserConfig, ...] = ()
    """Users that the relay creates on the Tarantool servers that follow it."""


class RelayLimits(ConfigSection):
    """Limits on the clients of a relay."""

    connections: int = Field(default=256, gt=0)
    """Greatest number of open connections: in all, and from one address."""
    per_address: int = Field(default=64, gt=0)
    """Greatest number of open connections: in all, and from one address."""
    strangers: int = Field(default=64, gt=0)
    """Greatest number of connections without authentication; beyond it, the oldest ones are closed."""
    subscribers: int = Field(default=64, gt=0)
    """Number of subscribers' instance uuids to remember; each may delay the removal of files by
    `subscribe.keep.forget`."""

    def client_limits(self) -> ClientLimits:
        """Return these limits as the relay's option `limits`."""
        return ClientLimits(
            max_connections=self.connections,
            max_connections_per_address=self.per_address,
            max_unauthenticated=self.strangers,
            max_subscribers=self.subscribers,
        )


class RelayConfig(ConfigSection):
    """The relay, which serves spools and the tables of all spaces to subscribers."""

    spools: tuple[ServedSpool, ...] = ()
    aggregated: AggregatedRelay | None = None
    """Settings of `relay --aggregated`."""
    users: tuple[User, ...] = ()
    guest: bool = False
    """Whether clients may subscribe without authentication."""
    tls: TlsFiles | None = None
    """`cert_file` and `key_file` of the relay; with `ca_file`, subscribers need certificates of that authority."""
    without_tls: bool = False
    """Whether password authentication over TCP without TLS is allowed; an eavesdropper can then guess offline."""
    limits: RelayLimits = RelayLimits()
    status: HostPort | None = None
    """Address on which `/metrics` and `/status` are served."""

    @model_validator(mode="after")
    def _check_keys(self) -> RelayConfig:
        if not self.spools and self.aggregated is None:
            raise mistake("names no spool; allowed: a list of one or more, or aggregated", "spools")
        if not self.users and not self.guest:
            raise mistake("nobody may subscribe; allowed: one user or more, or guest: true", "users")
        served: list[tuple[str, tuple[str | int, ...]]] = [
            (each.listen, ("spools", number)) for number, each in enumerate(self.spools)
        ]
        if self.aggregated is not None:
            served.append((self.aggregated.listen, ("aggregated",)))
        for listen, where in served:
            if self.users and self.tls is None and not self.without_tls and not _is_local(listen):
                what = "would use password authentication (chap-sha1) over a network without TLS"
                allowed = "allowed: tls, a local address, or without_tls: true"
                raise mistake(f"{listen!r} {what}; {allowed}", *where, "listen")
        return self

    def spool_options(self, max_block_bytes: int = BLOCK_LIMIT) -> list[RelayOptions]:
        """Return the options for serving each spool; the YAML has `max_block_bytes` outside of this section."""
        spools = [(each.name, each.spool, each.listen) for each in self.spools]
        return self._relay_options(spools, max_block_bytes)

    def aggregated_options(self, max_block_bytes: int = BLOCK_LIMIT) -> list[RelayOptions]:
        """Return the options for serving the aggregated tables: a list of one, or empty without `aggregated`."""
        section = self.aggregated
        spools = [] if section is None else [("aggregated", section.spool, section.listen)]
        return self._relay_options(spools, max_block_bytes)

    def _relay_options(
        self, spools: Sequence[tuple[str, str, str]], max_block_bytes: int
    ) -> list[RelayOptions]:
        """Return the options for serving spools, each given as (name, directory, address to listen on)."""
        users = {user.name: PasswordSource(user.password_env, user.password_file) for user in self.users}
        readers = () if self.aggregated is None else self.aggregated.readers
        tls = None if self.tls is None else self.tls.tls_options()
        return [
            RelayOptions(
                *(name, Path(directory), parse_address(listen)[1], users),
                users_of_servers=frozenset(reader.name for reader in readers) - users.keys(),
                allows_guest=self.guest,
                tls=tls,
                limits=self.limits.client_limits(),
                max_block_bytes=max_block_bytes,
            )
            for name, directory, listen in spools
        ]
