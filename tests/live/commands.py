"""Runs the project's commands as child processes, for tests that kill them.

Each command is a process group, so a kill also ends the JVM of a Spark job.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]


class Command:
    """One command; a context manager that starts it, and kills it at the end. It can be started again.

    Args:
        job: A module of `jobs`: `subscribe`, `aggregate`, ...
        config: The YAML file.
        log: The file to which the output is appended.
        *options: Further words of the command line.
    """

    def __init__(self, job: str, config: Path, log: Path, *options: str) -> None:
        self.job, self.log = job, log
        self._words = [sys.executable, "-m", f"jobs.{job}", "--config", str(config), *options]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"{self.job}: {self.log.read_text(errors='replace')[-3000:]}")
        self.kill()

    @property
    def pid(self) -> int:
        """The process id."""
        if self._process is None:
            raise RuntimeError(f"the command {self.job} does not run")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the command has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(
                self._words,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the command and its children at once, like a crash of the machine."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stop(self, seconds: float = 120.0) -> int:
        """Send SIGTERM, wait for the end, and return the exit code."""
        process = self._process
        if process is None:
            raise RuntimeError(f"the command {self.job} does not run")
        process.send_signal(signal.SIGTERM)
        code = process.wait(seconds)
        self.kill()
        return code
