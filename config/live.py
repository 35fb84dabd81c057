"""The sections of a configuration that the daemons read: `subscribe` and `relay`.

They may be in the file of the deployment or in a file of their own; other keys of the deployment are ignored.
"""

from __future__ import annotations

from config.relay import RelayConfig
from config.subscribe import Subscribe
from config.values import ByteCount, Part
from sources.xlog.format.block import BLOCK_LIMIT


class Live(Part):
    """The sections of the daemons; the jobs of the other sections check those.

    Parameters
    ----------
    subscribe, relay
        Described in their classes.
    max_block_bytes : int
        As in the deployment: a larger transaction is neither written to a spool nor acknowledged, because no job with
        this limit would read it.

    """

    subscribe: Subscribe | None = None
    relay: RelayConfig | None = None
    max_block_bytes: ByteCount = BLOCK_LIMIT
