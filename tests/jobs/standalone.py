"""A Spark standalone cluster on this machine: a master, workers and a driver in separate processes.

Workers start in empty folders, with a Python that has the packages that the project requires, but not the project: only
a submitted job brings the project's code to the executors.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from tests.sources.subscribe.following import await_until

ROOT = Path(__file__).resolve().parents[2]
HERE = "127.0.0.1"
BIN = Path(sys.executable).parent


def free_port() -> int:
    """Return a port of this machine on which no process listens now."""
    with socket.socket() as one:
        one.bind((HERE, 0))
        port: int = one.getsockname()[1]
    return port


def environment(folder: Path) -> dict[str, str]:
    """Return the environment for a Spark process, without variables that name the repository or the tests' Spark."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK_", "PYTHON"))}
    return {
        **kept,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "SPARK_LOCAL_IP": HERE,
        "SPARK_LOCAL_DIRS": str(folder / "blocks"),
        "SPARK_DAEMON_MEMORY": "512m",
    }


def python_without_project(folder: Path) -> Path:
    """Make a venv with the packages of this one except the project, and return its interpreter."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True, timeout=60)
    own = sysconfig.get_path("purelib")
    there = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    # Python does not read the .pth files of a folder that a .pth names, and one of them links to the project.
    Path(there, "packages.pth").write_text(f"{own}\n")
    return folder / "bin" / "python"


def pack_project(folder: Path) -> Path:
    """Make the zip for `--py-files` by `make dist`, and return it."""
    subprocess.run(
        ["make", "--silent", "dist", f"DIST={folder}"],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")},
        check=True,
        capture_output=True,
        timeout=300,
    )
    (found,) = folder.glob("*.zip")
    return found


def fetch_json(url: str) -> Any:
    """Return the JSON at a URL, or None if it cannot be read."""
    try:
        with urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except (URLError, OSError, ValueError):
        return None


class Standalone:
    """A master and some workers with one core each; a context manager that ends all processes.

    Args:
        folder: An empty folder, for the folders and outputs of the processes.
        workers: Number of workers.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self._count = workers
        self._port, self._page, self._driver_page = free_port(), free_port(), free_port()
        self._workers: list[psutil.Popen] = []
        self._started = ExitStack()

    @property
    def master(self) -> str:
        return f"spark://{HERE}:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self._started.close()
            raise
        return self

    def _start_all(self) -> None:
        ports = ["--port", str(self._port), "--webui-port", str(self._page)]
        self._class("master", "org.apache.spark.deploy.master.Master", "--host", HERE, *ports)
        for number in range(self._count):
            sizes = ["--cores", "1", "--memory", "1536m", "--webui-port", str(free_port())]
            options = [*sizes, "--host", HERE, "--work-dir", str(self.folder / f"worker{number}" / "work")]
            name = "org.apache.spark.deploy.worker.Worker"
            self._workers.append(self._class(f"worker{number}", name, *options, self.master))
        await_until(lambda: len(self._alive()) == self._count, "a worker", seconds=180)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.close()

    def submit(self, python: Path, packages: Path, job: str, *options: str) -> psutil.Popen:
        """Start a driver that runs a job of the project, from a folder with only a copy of the job's script.

        Args:
            python: The interpreter of driver and executors.
            packages: The zip for `--py-files`.
            job: A module of `jobs`.
            *options: Options of the job.
        """
        folder = self._folder("driver")
        script = shutil.copy(packages.with_name("jobs") / f"{job}.py", folder)
        settings = {
            "spark.pyspark.python": python,
            "spark.driver.host": HERE,
            "spark.driver.memory": "1g",
            "spark.executor.memory": "1g",
            "spark.ui.port": self._driver_page,
        }
        conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command = ["--master", self.master, *conf, "--py-files", str(packages), str(script), *options]
        return self._start(folder, [str(BIN / "spark-submit"), *command])

    def executors(self) -> list[dict[str, Any]]:
        """Return the driver's executors from Spark's REST API; empty while no driver runs."""
        base = f"http://{HERE}:{self._driver_page}/api/v1/applications"
        applications = fetch_json(base) or []
        found = [fetch_json(f"{base}/{one['id']}/executors") or [] for one in applications]
        return [one for executors in found for one in executors if one["id"] != "driver"]

    def kill_worker_of(self, executor: str) -> None:
        """Kill the worker of an executor and all its children, like a crash of its machine."""
        for worker in self._workers:
            children = worker.children(recursive=True) if worker.is_running() else []
            if any(_is_executor(one, executor) for one in children):
                _kill([worker, *children])
                return
        raise AssertionError(f"no worker runs executor {executor}")

    def output_of(self, name: str) -> str:
        """Return what a process has printed: `driver`, `master`, `worker0` and so on."""
        return (self.folder / name / "output").read_text(errors="replace")

    def _alive(self) -> list[Any]:
        state = fetch_json(f"http://{HERE}:{self._page}/json/") or {"workers": []}
        return [one for one in state["workers"] if one["state"] == "ALIVE"]

    def _folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _class(self, name: str, class_: str, *options: str) -> psutil.Popen:
        return self._start(self._folder(name), [str(BIN / "spark-class"), class_, *options])

    def _start(self, folder: Path, command: Sequence[str]) -> psutil.Popen:
        with (folder / "output").open("ab") as file:
            process = psutil.Popen(
                command,
                cwd=folder,
                env=environment(folder),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._started.callback(_end, process)
        return process


def _is_executor(process: psutil.Process, executor: str) -> bool:
    try:
        words: list[str] = process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return False
    return "--executor-id" in words and words[words.index("--executor-id") + 1] == executor


def _end(process: psutil.Popen) -> None:
    if process.is_running():
        _kill([process, *process.children(recursive=True)])


def _kill(processes: Sequence[psutil.Process]) -> None:
    for one in processes:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=30)
