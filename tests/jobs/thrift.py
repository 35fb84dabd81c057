"""Spark's Thrift server over JDBC, with Spark's own beeline as the client, each in its own process."""

import csv
import io
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.jobs.standalone import free_port
from tests.sources.subscribe.following import await_until

BIN = Path(sys.executable).parent
HERE = "127.0.0.1"


def environment() -> Mapping[str, str]:
    """Return a user's environment, without the variables of the tests' own Spark."""
    kept = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    return {**kept, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


class ThriftServer:
    """The server; a context manager. Its metastore lies in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._port = folder, free_port()
        self._process: psutil.Popen | None = None

    def __enter__(self) -> Self:
        name = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
        settings = {"hive.server2.thrift.port": self._port, "hive.server2.thrift.bind.host": HERE}
        arguments = [word for key, value in settings.items() for word in ("--hiveconf", f"{key}={value}")]
        spark = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
        command = [str(BIN / "spark-submit"), *spark, "--class", name, "spark-internal", *arguments]
        with (self.folder / "said").open("ab") as file:
            self._process = psutil.Popen(
                command,
                cwd=self.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        await_until(self._listens, "the Thrift server", seconds=300)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note((self.folder / "said").read_text(errors="replace")[-3000:])
        if self._process is not None and self._process.is_running():
            for one in [*self._process.children(recursive=True), self._process]:
                one.kill()
            self._process.wait()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        connected = ["-u", f"jdbc:hive2://{HERE}:{self._port}", "-n", "analyst"]
        return subprocess.run(
            [str(BIN / "beeline"), *connected, *words],
            cwd=self.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def ask(self, query: str) -> list[dict[str, str]]:
        """Return the rows of a query from beeline's output, by column."""
        done = self.run("--silent=true", "--outputformat=tsv2", "-e", query)
        assert done.returncode == 0, done.stderr[-3000:]
        # Without a terminal its prompt stands in front of what it prints.
        output = done.stdout.removeprefix(f"0: jdbc:hive2://{HERE}:{self._port}> ")
        return list(csv.DictReader(io.StringIO(output.strip()), delimiter="\t", quoting=csv.QUOTE_NONE))

    def _listens(self) -> bool:
        assert self._process is None or self._process.poll() is None, (self.folder / "said").read_text()[
            -3000:
        ]
        with socket.socket() as one:
            return one.connect_ex((HERE, self._port)) == 0
