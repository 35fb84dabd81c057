"""Puts compiled code beside the sources in Spark's zips of Python: `python setup/compile_pyspark.py`.

Spark starts each of its Python processes (a stream's source, planning, workers) with `pyspark.zip` in front of what
is installed. Python keeps no compiled code of what it finds in a zip: each process compiles it again, for 0.5 s.
"""

from __future__ import annotations

import importlib.util
import py_compile
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pyspark

LIB = Path(pyspark.__file__).parent / "python" / "lib"


def compiled(name: str, source: bytes, folder: Path) -> bytes:
    """Return the compiled code of a module; it holds whatever becomes of the source's time."""
    file, code = folder / "module.py", folder / "module.pyc"
    file.write_bytes(source)
    py_compile.compile(
        str(file),
        str(code),
        dfile=name,
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    return code.read_bytes()


def entries(zipped: ZipFile) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of what a zip is to hold: its own files, and the compiled code of its modules."""
    with tempfile.TemporaryDirectory() as folder:
        for info in zipped.infolist():
            data = zipped.read(info)
            if not info.filename.endswith(".pyc"):
                yield info.filename, data
            if info.filename.endswith(".py"):
                yield f"{info.filename}c", compiled(info.filename, data, Path(folder))


def is_compiled(path: Path) -> bool:
    """Whether a zip holds code that was compiled by this Python."""
    with ZipFile(path) as zipped:
        found = [name for name in zipped.namelist() if name.endswith(".pyc")]
        return bool(found) and zipped.read(found[0])[:4] == importlib.util.MAGIC_NUMBER


def compile_zip(path: Path) -> None:
    """Write a zip again with compiled code, in one step."""
    unfinished = path.with_suffix(".unfinished")
    with ZipFile(path) as old, ZipFile(unfinished, "w", ZIP_DEFLATED) as new:
        for name, data in entries(old):
            new.writestr(name, data)
    unfinished.replace(path)


def main() -> int:
    """Compile what is not yet compiled."""
    for path in sorted(LIB.glob("*.zip")):
        if not is_compiled(path):
            compile_zip(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
