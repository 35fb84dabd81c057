"""Types of values in the configuration: their form in the YAML, and their Python values.

Each is an annotated type for fields of the models; an invalid value raises a `PydanticCustomError` that says what is
allowed.
"""

import re
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from sources.iproto.address import Address, TlsOptions, parse_address

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_INTERVAL = re.compile(r"[1-9]\d* (?:millisecond|second|minute|hour|day)s?")
_DAYS = re.compile(r"([1-9]\d*) days?")
_BYTES = re.compile(r"([1-9]\d*) ?(|[KMGT]i?B|B)")
_POWER_BY_PREFIX = {unit: power for power, unit in enumerate("KMGT", start=1)}
_DECIMAL = re.compile(r"decimal\(38, ?(\d|[12]\d|3[0-8])\)")


class ConfigSection(BaseModel):
    """A mapping in the YAML, as a model: an unknown key is a mistake, and the model is frozen.

    The strings under the fields are the keys' descriptions in the JSON Schema.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def mistake(problem: str, *value_path: str | int) -> PydanticCustomError:
    """Return an error about a value; `value_path` has the keys to it from the model that raises the error."""
    return PydanticCustomError("mistake", "{problem}", {"problem": problem, "value_path": value_path})


def unsupported_values(*values: str | bool, why: str = "is not there yet") -> BeforeValidator:
    """Return a check that rejects values that are planned, or that belong to another section; `why` is the message."""

    def check(value: Any) -> Any:
        if isinstance(value, str | bool) and value in values:
            raise PydanticCustomError(
                "unsupported_value", "{value} {why}", {"value": repr(value), "why": why}
            )
        return value

    return BeforeValidator(check)


def _schema_of_text(pattern: re.Pattern[str] | str) -> WithJsonSchema:
    text = pattern if isinstance(pattern, str) else pattern.pattern
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{text})$"})


def _schema_of_number_or_text(pattern: re.Pattern[str]) -> WithJsonSchema:
    text = {"type": "string", "pattern": f"^(?:{pattern.pattern})$"}
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, text]})


def _check_of_pattern(pattern: str, allowed: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise mistake(f"{value!r} is refused; allowed: {allowed}")
        return value

    return AfterValidator(check)


def _absolute_location(value: str, info: ValidationInfo) -> str:
    if not value.strip():
        raise mistake("is empty; allowed: a path or a URI")
    if _URI.match(value):
        return value.rstrip("/")
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return str((folder / Path(value).expanduser()).resolve())


def _checked_url(value: str) -> str:
    if "@" in value:
        # The message must not show the password.
        raise mistake("holds a user or a password; allowed: an address without them")
    if not re.fullmatch(_URL_PATTERN, value):
        raise mistake(f"{value!r} is refused; allowed: http://… or https://…")
    return value


def _canonical_uuid(value: str) -> str:
    try:
        return str(UUID(value))
    except ValueError:
        raise mistake(f"{value!r} is not a uuid") from None


def _checked_interval(value: str) -> str:
    if not _INTERVAL.fullmatch(value):
        raise mistake(f"{value!r} is not a time; allowed: a number and a unit, like 5 seconds")
    return value


def _parsed_byte_count(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _BYTES.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise mistake(f"{value!r} is not a size; allowed: bytes, or a number and a unit, like 256 MiB")
    unit = match[2]
    base: int = 1024 if "i" in unit else 1000
    return int(match[1]) * int(base ** _POWER_BY_PREFIX.get(unit[:1], 0))


def _parsed_days(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _DAYS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise mistake(f"{value!r} is not a number of days; allowed: a number and the unit, like 90 days")
    return int(match[1])


def _normalized_decimal(value: str) -> str:
    if value != "string" and not _DECIMAL.fullmatch(value):
        raise mistake(f"{value!r} is refused; allowed: string, decimal(38,s) with s from 0 to 38")
    return value.replace(" ", "")


_NAME_PATTERN = r"[a-z][a-z0-9_]{0,62}"
_URL_PATTERN = r"https?://[^\s@/?#]+(/[^\s@?#]*)?"
_LABEL_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
_FUNCTION_PATTERN = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"

SqlName = Annotated[
    str,
    _check_of_pattern(_NAME_PATTERN, "a-z, 0-9 and _, a letter first, up to 63"),
    _schema_of_text(_NAME_PATTERN),
]
"""A name that SQL accepts without quotes."""

Label = Annotated[
    str,
    _check_of_pattern(_LABEL_PATTERN, "letters, digits, _ . -, up to 63"),
    _schema_of_text(_LABEL_PATTERN),
]
"""A name for people, never for SQL."""

Location = Annotated[str, AfterValidator(_absolute_location), _schema_of_text(r".*\S.*")]
"""A path or a URI; a relative path starts at the YAML file's folder."""

Url = Annotated[str, AfterValidator(_checked_url), _schema_of_text(_URL_PATTERN)]
"""The address of a web service."""

Uuid = Annotated[
    str,
    AfterValidator(_canonical_uuid),
    _schema_of_text(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
]
"""A uuid in its canonical text."""

Interval = Annotated[str, AfterValidator(_checked_interval), _schema_of_text(_INTERVAL)]
"""An interval in the notation of Spark's triggers."""

ByteCount = Annotated[int, BeforeValidator(_parsed_byte_count), _schema_of_number_or_text(_BYTES)]
"""A size, in bytes."""

Days = Annotated[int, BeforeValidator(_parsed_days), _schema_of_number_or_text(_DAYS)]
"""A number of days."""

DecimalType = Annotated[
    str, AfterValidator(_normalized_decimal), _schema_of_text(f"string|{_DECIMAL.pattern}")
]
"""`string`, or a Spark decimal type with 38 digits."""

FunctionName = Annotated[
    str, _check_of_pattern(_FUNCTION_PATTERN, "package.module:function"), _schema_of_text(_FUNCTION_PATTERN)
]
"""The name of a function in an importable module."""


def _checked_address(value: str) -> str:
    try:
        parse_address(value)
    except ValueError as error:
        raise mistake(str(error)) from None
    return value


def _checked_port(value: str) -> str:
    user, address = parse_address(_checked_address(value))
    if user is not None or address.path is not None:
        raise mistake(f"{value!r} is refused; allowed: host:port")
    return value


ServerAddress = Annotated[str, AfterValidator(_checked_address)]
"""The address of a server: `user@host:port`, `unix/:/path`."""

HostPort = Annotated[str, AfterValidator(_checked_port)]
"""An address to listen on: `127.0.0.1:8071`."""


class TlsFiles(ConfigSection):
    """The files of a TLS connection, in PEM."""

    ca_file: Location | None = None
    """Certificates of the authority that the other side's certificate must come from."""
    cert_file: Location | None = None
    """The certificate of this side, and its private key."""
    key_file: Location | None = None
    """The certificate of this side, and its private key."""
    server_name: str | None = None
    """The name in the server's certificate, if it differs from the host of the address."""

    def tls_options(self) -> TlsOptions:
        """Return the options with which the client or the relay uses these files."""
        return TlsOptions(**self.model_dump())


def listen_address(text: str | None) -> Address | None:
    """Parse an address to listen on; return None if none is configured."""
    return None if text is None else parse_address(text)[1]
