"""Child processes of the demonstration: each in a group of its own, all ended with the demonstration.

A group of its own, so that Ctrl-C on the terminal reaches the demonstration alone, which then stops the others in
order. Where the demonstration is killed, the system ends them: `setpriv --pdeathsig` of util-linux asks it to.
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
LAST_BYTES = 2000


class DemonstrationError(AggregatorError):
    """A part of the demonstration does not start, or ends by itself."""


def ending_with_parent(words: Sequence[str]) -> list[str]:
    """Return a command line whose process gets SIGTERM when this process ends, where the system has the means."""
    setpriv = shutil.which("setpriv")
    return list(words) if setpriv is None else [setpriv, "--pdeathsig", "TERM", *words]


class Child:
    """One child process; what it prints goes to a file.

    Parameters
    ----------
    name : str
        Shown in messages.
    words : sequence of str
        Its command line.
    said : Path
        Gets its output.
    environment : mapping of str to str, optional
        Added to this process's.

    """

    def __init__(
        self, name: str, words: Sequence[str], said: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.said = name, said
        with said.open("ab") as file:
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
        """Raise where the process has ended by itself.

        Raises
        ------
        DemonstrationError
            With the end of its output.

        """
        if not self.is_running:
            last = self.said.read_bytes()[-LAST_BYTES:].decode(errors="replace")
            raise DemonstrationError(
                f"{self.name} has ended with code {self._process.returncode}: {last}", file=str(self.said)
            )

    def ask_to_stop(self) -> None:
        """Send SIGTERM, and return at once."""
        if self.is_running:
            self._process.terminate()

    def stop(self) -> None:
        """Send SIGTERM, wait until the process has ended, and kill what is left of its group."""
        self.ask_to_stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its group at once, as a crash of the machine would."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
