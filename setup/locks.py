"""Writes the lock files: packages with versions and the SHA-256 of their archives, for `pip install --require-hashes`.

    python setup/locks.py project          add hashes to requirements.lock, and divide it by use: `USES`
    python setup/locks.py airflow|s3|pipelines|tools    write setup/airflow.lock, …, from the packages in `OTHERS`
    python setup/locks.py packages NAME    print these packages, without what they require

Hashes come from pip's own report (`pip install --report`) of the archives that it takes on this machine: they are valid
for Linux on x86-64 with Python 3.11. For another platform, run `make lock` there.
"""

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
PROJECT = ROOT / "requirements.lock"
USES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "run": (("validation",), "What runs, with validation."),
    "docs": (
        ("docs", "notebook"),
        "What the documentation site and the notebook need besides requirements-run.lock.",
    ),
}
"""The extras of each use, and a sentence about its file `requirements-USE.lock`. All other packages are for tests."""

TESTS = ("test", "What tests and checks need besides requirements-run.lock and requirements-docs.lock.")

OTHERS: Mapping[str, tuple[str, ...]] = {
    "airflow": ("apache-airflow==3.3.2", "apache-airflow-providers-apache-spark==6.3.4"),
    "s3": ("moto[s3]==5.2.5", "flask-cors==6.0.5"),
    "pipelines": ("grpcio==1.85.1", "grpcio-status==1.85.1"),
    "tools": ("uv==0.13.9", "setuptools==84.2.1"),
}
"""Groups of packages outside of requirements.lock: Airflow, the S3 server of the tests, `spark-pipelines`, and what
installs and builds the packages of the other files."""

_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?: --hash=\S+)*(?P<rest>.*)")
_SPACES = re.compile(r"\s+#")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def normalized(name: str) -> str:
    """Return the normalized name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def archives(*arguments: str) -> dict[str, tuple[str, str]]:
    """Return (version, SHA-256 of the archive) by package, for all packages that `pip install` would install."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        command += ["--dry-run", "--ignore-installed", "--report", report.name, *arguments]
        subprocess.run(command, check=True)
        packages = json.loads(Path(report.name).read_text())["install"]
    return {
        normalized(one["metadata"]["name"]): (
            one["metadata"]["version"],
            one["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for one in packages
    }


def with_hashes(lines: Iterable[str], packages: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the lines of a lock file with the hash of each package; exit if a version differs."""
    result = []
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            result.append(line)
            continue
        version, digest = packages[normalized(match["name"])]
        if version != match["version"]:
            sys.exit(f"locks: {match['name']} {match['version']} is locked, pip takes {version}")
        result.append(f"{match['name']}=={version} --hash=sha256:{digest}{_SPACES.sub('  #', match['rest'])}")
    return result


def with_requirements(names: Iterable[str]) -> set[str]:
    """Return the names of packages and of all packages that they require, as installed here."""
    todo, done = [normalized(name) for name in names], set[str]()
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        for one in requires(name) or ():
            required, _, marker = one.partition(";")
            match = _NAME.match(required)
            if match is not None and "extra ==" not in marker and _applies(marker):
                todo.append(normalized(match[0]))
    return done


def _applies(marker: str) -> bool:
    """Return whether a requirement with an environment marker (PEP 508) is needed here."""
    from pip._vendor.packaging.markers import Marker

    return not marker.strip() or bool(Marker(marker.strip()).evaluate())


def lock_project() -> None:
    """Add hashes to `requirements.lock`, and divide it into a file for each use, in which no package is twice."""
    lines = PROJECT.read_text().splitlines()
    locked = with_hashes(lines, archives("--no-deps", "-r", str(PROJECT)))
    PROJECT.write_text("\n".join(locked) + "\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = {
        normalized(match["name"]): line.partition("  #")[0].rstrip()
        for line in locked
        if (match := _LINE.fullmatch(line)) is not None
    }
    wanted, locked_names = project["dependencies"], set(rows)
    for use, (extras, text) in USES.items():
        wanted = wanted + [one for extra in extras for one in project["optional-dependencies"][extra]]
        names = with_requirements(match[0] for match in map(_NAME.match, wanted) if match is not None)
        if lacking := names - locked_names:
            sys.exit(f"locks: not in {PROJECT.name}: {', '.join(sorted(lacking))}")
        write_use(use, text, [rows.pop(name) for name in sorted(names & rows.keys())])
    write_use(*TESTS, list(rows.values()))


def write_use(use: str, text: str, rows: list[str]) -> None:
    """Write the lock file of one use."""
    head = f"# {text} A part of requirements.lock. Made by `make lock`."
    (ROOT / f"requirements-{use}.lock").write_text("\n".join([head, *rows]) + "\n")


def lock_other(name: str) -> None:
    """Write the lock file of one group of `OTHERS`, by its name."""
    head = f"# The environment of {name}, for Python 3.11. Made by `python setup/locks.py {name}`."
    rows = [
        f"{one}=={version} --hash=sha256:{digest}"
        for one, (version, digest) in sorted(archives(*OTHERS[name]).items())
    ]
    (ROOT / "setup" / f"{name}.lock").write_text("\n".join([head, *rows]) + "\n")


def main(name: str, *arguments: str) -> None:
    """Run one of the commands that the module describes."""
    if name == "project":
        lock_project()
    elif name == "packages":
        print(" ".join(OTHERS[arguments[0]]))
    else:
        lock_other(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
