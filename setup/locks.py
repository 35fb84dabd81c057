"""The lock files: every package with its version and the SHA-256 of its archive, for `pip install --require-hashes`.

    python setup/locks.py project          requirements.lock (hashes), requirements-run.lock (what runs, without tests)
    python setup/locks.py airflow|s3|pipelines    setup/airflow.lock, setup/s3.lock, …, from the packages named here
    python setup/locks.py packages NAME    print the packages that one of these begins with

Hashes come from the reports of pip itself (`pip install --report`), which name the archive that pip takes on this
machine: they hold for Linux on x86-64 with Python 3.11. On another platform run `make lock` there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import requires
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT, RUN = ROOT / "requirements.lock", ROOT / "requirements-run.lock"
OTHERS: Mapping[str, tuple[str, ...]] = {
    "airflow": ("apache-airflow==3.3.2", "apache-airflow-providers-apache-spark==6.3.4"),
    "s3": ("moto[s3]==5.2.5", "flask-cors==6.0.5"),
    "pipelines": ("grpcio==1.85.1", "grpcio-status==1.85.1"),
}
"""Environments of their own: Airflow's, and that of the S3 server of the tests; and what `spark-pipelines` needs."""

_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?: --hash=\S+)*(?P<rest>.*)")
_SPACES = re.compile(r"\s+#")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def normal(name: str) -> str:
    """Return a package's name as all of its spellings are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def archives(*arguments: str) -> dict[str, tuple[str, str]]:
    """Return version and SHA-256 of what pip would install, by package."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        command += ["--dry-run", "--ignore-installed", "--report", report.name, *arguments]
        subprocess.run(command, check=True)
        found = json.loads(Path(report.name).read_text())["install"]
    return {
        normal(one["metadata"]["name"]): (
            one["metadata"]["version"],
            one["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for one in found
    }


def with_hashes(lines: Iterable[str], found: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the lines of a lock file with the hash of each package."""
    result = []
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            result.append(line)
            continue
        version, digest = found[normal(match["name"])]
        if version != match["version"]:
            sys.exit(f"locks: {match['name']} {match['version']} is locked, pip takes {version}")
        result.append(f"{match['name']}=={version} --hash=sha256:{digest}{_SPACES.sub('  #', match['rest'])}")
    return result


def needed(names: Iterable[str]) -> set[str]:
    """Return packages and all that they need, by what is installed."""
    todo, found = [normal(name) for name in names], set[str]()
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        for one in requires(name) or ():
            own, _, marker = one.partition(";")
            match = _NAME.match(own)
            if match is not None and "extra ==" not in marker and _applies(marker):
                todo.append(normal(match[0]))
    return found


def _applies(marker: str) -> bool:
    from pip._vendor.packaging.markers import Marker

    return not marker.strip() or bool(Marker(marker.strip()).evaluate())


def lock_project() -> None:
    """Give `requirements.lock` its hashes, and write the part of it that runs."""
    lines = PROJECT.read_text().splitlines()
    found = with_hashes(lines, archives("--no-deps", "-r", str(PROJECT)))
    PROJECT.write_text("\n".join(found) + "\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = needed(match[0] for match in map(_NAME.match, project["dependencies"]) if match is not None)
    rows = [line for line in found if (m := _LINE.fullmatch(line)) is not None and normal(m["name"]) in names]
    lacking = names - {normal(line.partition("==")[0]) for line in rows}
    if lacking:
        sys.exit(f"locks: not in {PROJECT.name}: {', '.join(sorted(lacking))}")
    head = "# What runs: requirements.lock without the packages of tests and validation. Made by `make lock`."
    RUN.write_text("\n".join([head, *(line.partition("  #")[0].rstrip() for line in rows)]) + "\n")


def lock_other(name: str) -> None:
    """Write the lock file of another environment."""
    found = archives(*OTHERS[name])
    head = f"# The environment of {name}, for Python 3.11. Made by `python setup/locks.py {name}`."
    rows = [f"{one}=={version} --hash=sha256:{digest}" for one, (version, digest) in sorted(found.items())]
    (ROOT / "setup" / f"{name}.lock").write_text("\n".join([head, *rows]) + "\n")


def main(name: str, *arguments: str) -> None:
    """Run, as the module says."""
    if name == "project":
        lock_project()
    elif name == "packages":
        print(" ".join(OTHERS[arguments[0]]))
    else:
        lock_other(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
