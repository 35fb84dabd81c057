"""Adds bytecode to the zips of Python sources that Spark brings: `python setup/compile_pyspark.py`.

Spark starts each of its Python processes (a stream's source, planning, workers) with `pyspark.zip` first on the path.
Python does not cache the bytecode of modules in a zip, so each process would compile them again, which takes 0.5 s.
"""

import importlib.util
import py_compile
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pyspark

LIB = Path(pyspark.__file__).parent / "python" / "lib"


def bytecode(name: str, source: bytes, folder: Path) -> bytes:
    """Return the content of a module's `.pyc` file, which stays valid when the time of its source changes."""
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
    """Yield (name, content) of each file of the new zip: the sources as they are, and bytecode of each module."""
    with tempfile.TemporaryDirectory() as folder:
        for info in zipped.infolist():
            data = zipped.read(info)
            if not info.filename.endswith(".pyc"):
                yield info.filename, data
            if info.filename.endswith(".py"):
                yield f"{info.filename}c", bytecode(info.filename, data, Path(folder))


def is_compiled(path: Path) -> bool:
    """Whether a zip contains bytecode of this version of Python."""
    with ZipFile(path) as zipped:
        names = [name for name in zipped.namelist() if name.endswith(".pyc")]
        return bool(names) and zipped.read(names[0])[:4] == importlib.util.MAGIC_NUMBER


def compile_zip(path: Path) -> None:
    """Replace a zip by one with bytecode, atomically."""
    unfinished = path.with_suffix(".unfinished")
    with ZipFile(path) as old, ZipFile(unfinished, "w", ZIP_DEFLATED) as new:
        for name, data in entries(old):
            new.writestr(name, data)
    unfinished.replace(path)


def main() -> int:
    """Compile the zips that are not compiled yet."""
    for path in sorted(LIB.glob("*.zip")):
        if not is_compiled(path):
            compile_zip(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
