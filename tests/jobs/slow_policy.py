"""A policy of a user that takes longer than any service manager waits."""

import sys
import time
from typing import Any

ASLEEP = "the policy is asleep"
SECONDS = 300.0


def wait(_old: Any, new: Any, _change: Any) -> Any:
    """Sleep, and let the new version win."""
    print(ASLEEP, file=sys.stderr, flush=True)
    time.sleep(SECONDS)
    return new
