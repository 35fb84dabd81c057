"""Runs the child processes of the demonstration, each in its own process group; all end with the demonstration.

With groups of their own, Ctrl-C on the terminal reaches only the demonstration, which then stops the children in order.
If the demonstration is killed, the kernel ends them, because `setpriv --pdeathsig` of util-linux starts them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.errors import AggregatorError

STOP_SECONDS = 60.0
SHOWN_BYTES = 2000
"""Length of the end of a child's output that an error shows."""


class DemonstrationError(AggregatorError):
    """A part of the demonstration cannot start, or has ended by itself."""


def ending_with_parent(words: Sequence[str]) -> list[str]:
    """Return a command line whose process gets SIGTERM when this process ends; unchanged without `setpriv`."""
    setpriv = shutil.which("setpriv")
    return list(words) if setpriv is None else [setpriv, "--pdeathsig", "TERM", *words]


class Child:
    """One child process.

    Parameters
    ----------
    name : str
        Name in messages.
    words : sequence of str
        The command line.
    log : Path
        The file to which the output is appended.
    environment : mapping of str to str, optional
        Variables to add to those of this process.

    """

    def __init__(
        self, name: str, words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.log = name, log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                ending_with_parent(words),
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raise `DemonstrationError` with the end of the output if the process has ended."""
        if not self.is_running:
            last = self.log.read_bytes()[-SHOWN_BYTES:].decode(errors="replace")
            raise DemonstrationError(
                f"{self.name} has ended with code {self._process.returncode}: {last}", file=str(self.log)
            )

    def terminate(self) -> None:
        """Send SIGTERM if the process runs; do not wait for its end."""
        if self.is_running:
            self._process.terminate()

    def stop(self) -> None:
        """Send SIGTERM, wait for the end of the process, and kill the rest of its group."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its group at once, as a crash of the machine would."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
