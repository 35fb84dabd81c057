"""What the daemons read of a configuration: the sections `subscribe` and `relay`.

They may stand in the file of the deployment or in one of their own: keys of the other jobs are not looked at here.
"""

from __future__ import annotations

from config.relay import Relay
from config.subscribe import Subscribe
from config.values import Part


class Live(Part):
    """The sections of a file that are for the daemons; others are checked by their own jobs."""

    subscribe: Subscribe | None = None
    relay: Relay | None = None
