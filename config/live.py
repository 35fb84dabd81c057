"""What the daemons read of a configuration: the sections `subscribe` and `relay`.

They may stand in the file of the deployment or in one of their own: keys of the other jobs are not looked at here.
"""

from __future__ import annotations

from config.relay import RelayConfig
from config.subscribe import Subscribe
from config.values import ByteCount, Part
from sources.xlog.format.block import BLOCK_LIMIT


class Live(Part):
    """The sections of a file that are for the daemons; others are checked by their own jobs.

    Parameters
    ----------
    subscribe, relay
        See these classes.
    max_block_bytes : int
        As of the deployment: a transaction that takes more bytes is neither written to a spool nor acknowledged, since
        no job with this limit would read it.

    """

    subscribe: Subscribe | None = None
    relay: RelayConfig | None = None
    max_block_bytes: ByteCount = BLOCK_LIMIT
