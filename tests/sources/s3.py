"""A local S3 store for a test: moto's server, in the environment that `setup.sh with-s3` makes."""

import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import URLError
from urllib.request import Request, urlopen

import pyarrow.fs as pafs
import pytest

from tests.sources.subscribe.following import await_until

PYTHON = Path(__file__).resolve().parents[2] / ".venv" / "s3-server" / "bin" / "python"
HERE = "127.0.0.1"

SERVER = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

application, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

def serve(request, start):
    with one_at_a_time:
        if request.get("HTTP_IF_NONE_MATCH") == "*":
            print("ONLY NEW", request["PATH_INFO"], flush=True)
        return application(request, start)

run_simple(sys.argv[1], int(sys.argv[2]), serve, threaded=True)
"""
"""The lock keeps other requests away between moto's check that an object is missing and its write."""

installed = pytest.mark.skipif(
    not PYTHON.exists(), reason="there is no S3 server here: setup/setup.sh with-s3"
)


class Store:
    """A store with one bucket; a context manager.

    Args:
        folder: What the server prints goes to a file in it.
    """

    def __init__(self, folder: Path, bucket: str = "lake") -> None:
        self.bucket = bucket
        self._said = folder / "s3.log"
        with socket.socket() as one:
            one.bind((HERE, 0))
            self._port: int = one.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{HERE}:{self._port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """Settings by which `pyarrow.fs` and delta-rs find the store."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def hadoop(self) -> Mapping[str, str]:
        """Settings by which Spark finds the store; credentials come from the environment."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }

    def __enter__(self) -> Self:
        command = [str(PYTHON), "-c", SERVER, HERE, str(self._port)]
        with self._said.open("ab") as file:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        await_until(self._makes_the_bucket, "the S3 server")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def fs(self) -> pafs.S3FileSystem:
        """The store as a file system."""
        return pafs.S3FileSystem(
            access_key="key", secret_key="secret", endpoint_override=self.endpoint, region="us-east-1"
        )

    def put(self, folder: Path, key: str) -> str:
        """Copy the files of a folder, and return their location."""
        fs = self.fs
        for file in sorted(folder.iterdir()):
            if file.is_file():
                with fs.open_output_stream(f"{self.bucket}/{key}/{file.name}") as stream:
                    stream.write(file.read_bytes())
        return f"s3://{self.bucket}/{key}"

    def put_tree(self, folder: Path, key: str) -> None:
        """Copy all files below a folder."""
        pafs.copy_files(str(folder), f"{self.bucket}/{key}", destination_filesystem=self.fs)

    def get_tree(self, key: str, folder: Path) -> None:
        """Replace a folder by what the store has under a key."""
        shutil.rmtree(folder)
        folder.mkdir()
        pafs.copy_files(f"{self.bucket}/{key}", str(folder), source_filesystem=self.fs)

    def written_only_if_new(self) -> set[str]:
        """Return the keys that were written with `If-None-Match: *`, so only if there was no object."""
        lines = self._said.read_text().splitlines()
        begin = f"ONLY NEW /{self.bucket}/"
        return {line.removeprefix(begin) for line in lines if line.startswith(begin)}

    def _makes_the_bucket(self) -> bool:
        request = Request(f"{self.endpoint}/{self.bucket}", method="PUT")
        try:
            with urlopen(request, timeout=10) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False
