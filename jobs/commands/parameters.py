"""Parameters that several commands have: types of values, options, and the sections of the daemons."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgpack

if TYPE_CHECKING:
    from config.deployment import DaemonConfig


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601; UTC if it has no offset."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time, or fail with a usage error."""
        try:
            found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-11-21T10:00:00Z", param, ctx)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def key_values(_ctx: click.Context, _param: click.Parameter, text: str | None) -> list[Any] | None:
    """Return the values of a key: JSON, or plain text.

    As in printed output, {"base64": ...} represents bytes, and {"ext": 4, "base64": ...} an extension of this type.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    values = value if isinstance(value, list) else [value]
    return [_decoded_value(one) if isinstance(one, dict) and "base64" in one else one for one in values]


def _decoded_value(value: dict[str, Any]) -> Any:
    data = base64.b64decode(value["base64"])
    return data if "ext" not in value else msgpack.ExtType(value["ext"], data)


source_option = click.option("--source", metavar="S", help="A source by its name; default: each of them.")


dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")


DEFAULT_PAGE = "report.html"


page_option = click.option(
    "--page",
    default=DEFAULT_PAGE,
    show_default=True,
    metavar="FILE",
    type=click.Path(),
    help="The HTML page.",
)


def daemon_sections(file: str) -> DaemonConfig:
    """Return the sections `subscribe` and `relay` of a configuration file, checked."""
    from config.deployment import load_daemon_config

    return load_daemon_config(file)
