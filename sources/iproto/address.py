"""The address of a server, and the user and password to connect with.

    host:port    [::1]:port    unix/:/path    user@host:port

A password is never part of an address: it comes from the environment or a file. No I/O except reading that file.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import ConfigurationError

logger = logging.getLogger(__name__)

_TCP = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:/@\s]+)):(?P<port>\d{1,5})")
_UNIX = re.compile(r"unix/:(?P<path>/.+)")


@dataclass(frozen=True)
class Address:
    """A TCP port or a unix socket.

    Parameters
    ----------
    host : str or None
        None for a unix socket.
    port : int
        0 for a unix socket.
    path : str or None
        The unix socket's.

    """

    host: str | None = None
    port: int = 0
    path: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix/:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in (self.host or "") else f"{self.host}:{self.port}"


def parse_address(text: str) -> tuple[str | None, Address]:
    """Return (user or None, address).

    Raises
    ------
    ValueError
        The text has another form; the error lists the allowed ones.

    """
    user, at, rest = text.rpartition("@")
    if ":" in user:
        raise ValueError("a password has no place in an address: use password_env or password_file")
    match = _UNIX.fullmatch(rest)
    if match:
        return (user if at else None), Address(path=match["path"])
    match = _TCP.fullmatch(rest)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        raise ValueError(f"{text!r} is not an address; allowed: host:port, unix/:/path, user@ before either")
    return (user if at else None), Address(match["six"] or match["host"], int(match["port"]))


@dataclass(frozen=True)
class PasswordSource:
    """The source of a password; the password is read at each use, and never shown.

    Parameters
    ----------
    env : str or None
        Name of an environment variable.
    file : str or None
        Path of a file with the password in its first line.

    """

    env: str | None = None
    file: str | None = None

    def read(self) -> str:
        """Return the password; empty if no source is named.

        A file that others can write is refused; one that others can read causes one warning.

        Raises
        ------
        ConfigurationError
            The variable or the file is missing, or empty.

        """
        if self.env is not None:
            if self.env not in os.environ:
                raise ConfigurationError(f"the environment has no variable {self.env}", advice="set it")
            return _require_password(os.environ[self.env], variable=self.env)
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


def _require_password(password: str, **where: str) -> str:
    if not password:
        raise ConfigurationError(
            "the password is empty", advice="set one: an empty one protects nothing", **where
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
    """How to use TLS with a server that supports it (Tarantool Enterprise, or a proxy).

    Parameters
    ----------
    ca_file : str or None
        Certificates to check the server's with; None: the system's.
    cert_file, key_file : str or None
        The client's own, if the server requires one.
    server_name : str or None
        The name in the server's certificate, if it is not the host of the address.

    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return a context that checks the server's certificate.

        Raises
        ------
        ConfigurationError
            A file cannot be read or is not a certificate.

        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"the TLS files cannot be used: {error}", file=self.ca_file) from error
        return context


@dataclass(frozen=True)
class Peer:
    """One server of the configuration.

    Parameters
    ----------
    name : str
        Shown in messages: the address.
    address : Address
    user : str or None
        None: guest.
    password : PasswordSource
    tls : TlsOptions or None

    """

    name: str
    address: Address
    user: str | None = None
    password: PasswordSource = field(default_factory=PasswordSource)
    tls: TlsOptions | None = None
