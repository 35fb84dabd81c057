"""Runs the project's commands as child processes, for tests that kill them; none outlives its test.

Each is a process group, so that a Spark job's JVM goes with it. Not here: what is asked of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]


class Command:
    """One command that can be started again; a context manager that starts it and leaves nothing running.

    Parameters
    ----------
    job : str
        `subscribe`, `aggregate`, ...
    config : Path
        The YAML file.
    said : Path
        What it prints is added to this file.
    *options : str
        Further words of the command line.

    """

    def __init__(self, job: str, config: Path, said: Path, *options: str) -> None:
        self.job, self.said = job, said
        self._words = [sys.executable, "-m", f"jobs.{job}", "--config", str(config), *options]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Command:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"{self.job}: {self.said.read_text(errors='replace')[-3000:]}")
        self.kill()

    @property
    def pid(self) -> int:
        """The id of its process."""
        if self._process is None:
            raise RuntimeError("it does not run")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it still runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it."""
        with self.said.open("ab") as file:
            self._process = subprocess.Popen(
                self._words,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it and its children at once, like a crash of the machine."""
        self._end(signal.SIGKILL)

    def stop(self, seconds: float = 120.0) -> int:
        """Send SIGTERM, and return the exit code."""
        process = self._process
        if process is None:
            raise RuntimeError("it does not run")
        process.send_signal(signal.SIGTERM)
        code = process.wait(seconds)
        self.kill()
        return code

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            process.wait()
