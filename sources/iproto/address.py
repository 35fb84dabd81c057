"""Addresses of servers, and what is needed to connect to one: user, password, TLS.

An address has one of these forms:

    host:port    [::1]:port    unix/:/path    user@host:port

A password is never part of an address: it comes from an environment variable or a file. The only I/O of this module
reads this file and the TLS files.
"""

import logging
import os
import re
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import ConfigurationError

logger = logging.getLogger(__name__)

_TCP_PATTERN = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:/@\s]+)):(?P<port>\d{1,5})")
_UNIX_PATTERN = re.compile(r"unix/:(?P<path>/.+)")


@dataclass(frozen=True)
class Address:
    """Where a server listens: a TCP port or a unix socket."""

    host: str | None = None
    """Host name or IP address; None for a unix socket."""
    port: int = 0
    """0 for a unix socket."""
    path: str | None = None
    """Path of the unix socket; None for TCP."""

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix/:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in (self.host or "") else f"{self.host}:{self.port}"


def parse_address(text: str) -> tuple[str | None, Address]:
    """Return (user or None, address) of a text such as `guest@host:3301`; a ValueError lists the forms."""
    user, at, rest = text.rpartition("@")
    if ":" in user:
        raise ValueError("a password has no place in an address: use password_env or password_file")
    match = _UNIX_PATTERN.fullmatch(rest)
    if match:
        return (user if at else None), Address(path=match["path"])
    match = _TCP_PATTERN.fullmatch(rest)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        raise ValueError(f"{text!r} is not an address; allowed: host:port, unix/:/path, user@ before either")
    return (user if at else None), Address(match["six"] or match["host"], int(match["port"]))


@dataclass(frozen=True)
class PasswordSource:
    """Names the environment variable or the file with a password, which is read at each use and never shown."""

    env_variable: str | None = None
    file: str | None = None
    """Path of a file with the password in its first line."""

    def read(self) -> str:
        """Return the password, or an empty text if neither a variable nor a file is named.

        If other users of the machine may read the file, a warning is logged once.

        Raises:
            ConfigurationError: The variable or the file is missing or empty, or other users of the machine may write
                the file.
        """
        if self.env_variable is not None:
            if self.env_variable not in os.environ:
                raise ConfigurationError(
                    f"the environment has no variable {self.env_variable}", advice="set it"
                )
            return _require_password(os.environ[self.env_variable], variable=self.env_variable)
        if self.file is None:
            return ""
        try:
            with Path(self.file).open(encoding="utf-8") as file:
                _check_file_mode(self.file, os.fstat(file.fileno()).st_mode)
                return _require_password(file.readline().removesuffix("\n"), file=self.file)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigurationError(
                f"the password's file cannot be read: {reason}", file=self.file
            ) from error


def _require_password(password: str, **error_fields: str) -> str:
    if not password:
        raise ConfigurationError(
            "the password is empty", advice="set one: an empty one protects nothing", **error_fields
        )
    return password


_warned_paths: set[str] = set()


def _check_file_mode(path: str, mode: int) -> None:
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError("others may change the password's file", file=path, advice="chmod 600")
    if mode & (stat.S_IRGRP | stat.S_IROTH) and path not in _warned_paths:
        _warned_paths.add(path)
        logger.warning("%s: others may read this password: chmod 600", path)


@dataclass(frozen=True)
class TlsOptions:
    """TLS files and the expected server name, for a server with TLS (Tarantool Enterprise, or one behind a proxy)."""

    ca_file: str | None = None
    """File with the CA certificates that verify the server's certificate; None: the CA certificates of the system."""
    cert_file: str | None = None
    key_file: str | None = None
    """Files with the certificate and the private key of this side; a client needs them if the server requires it."""
    server_name: str | None = None
    """The name in the server's certificate, if it differs from the host of the address."""

    def client_context(self) -> ssl.SSLContext:
        """Return a client's SSL context, which verifies the server's certificate."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"the TLS files cannot be used: {error}", file=self.ca_file) from error
        return context


@dataclass(frozen=True)
class Peer:
    """A server to connect to, and how to authenticate there."""

    name: str
    """Name in messages: the address as text."""
    address: Address
    user: str | None = None
    """User name; None: the user `guest`, without authentication."""
    password: PasswordSource = field(default_factory=PasswordSource)
    tls: TlsOptions | None = None
