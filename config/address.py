"""Types that the daemons' sections (`config.subscribe`, `config.relay`) share: addresses and TLS files."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from config.values import Location, Part, mistake
from sources.iproto.address import Address, TlsOptions, parse_address


def _address(value: str) -> str:
    try:
        parse_address(value)
    except ValueError as error:
        raise mistake(str(error)) from None
    return value


def _port(value: str) -> str:
    user, address = parse_address(_address(value))
    if user is not None or address.path is not None:
        raise mistake(f"{value!r} is refused; allowed: host:port")
    return value


Server = Annotated[str, AfterValidator(_address)]
"""The address of a server: `user@host:port`, `unix/:/path`."""

Port = Annotated[str, AfterValidator(_port)]
"""An address to listen on: `127.0.0.1:8071`."""


class TlsFiles(Part):
    """TLS to the peers; all files are PEM."""

    ca_file: Location | None = None
    cert_file: Location | None = None
    key_file: Location | None = None
    server_name: str | None = None

    def tls(self) -> TlsOptions:
        """Return the settings as the client and the relay take them."""
        return TlsOptions(**self.model_dump())


def listen_address(text: str | None) -> Address | None:
    """Parse an address to listen on; None for None."""
    return None if text is None else parse_address(text)[1]
