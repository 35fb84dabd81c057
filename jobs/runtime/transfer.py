"""Progress of a copy: on a terminal a bar of bytes, elsewhere plain lines."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import NoReturn

from tqdm import tqdm

from udfs.rid.value import Rid
from warehouse.copy.sync import SyncOptions


class Transfer:
    """Shows the progress of a sync."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._copied = 0
        self._bar: tqdm[NoReturn] = tqdm(
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
            desc="sync",
        )

    def __enter__(self) -> Transfer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        if error is None:
            seconds = time.monotonic() - self._began
            print(f"{self._copied} bytes copied in {seconds:.1f} s", file=sys.stderr)

    def options(self, discard: Rid | None, *, check_all: bool) -> SyncOptions:
        """Return the options of the sync to show."""
        return SyncOptions(discard, check_all=check_all, planned=self._planned, copied=self._moved)

    def _planned(self, total: int) -> None:
        self._bar.reset(total)
        if not sys.stderr.isatty():
            print(f"{total} bytes to copy", file=sys.stderr)

    def _moved(self, count: int) -> None:
        self._copied += count
        self._bar.update(count)
