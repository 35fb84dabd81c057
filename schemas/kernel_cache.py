"""Where the machine code of kernels is stored on disk: read from several folders, written to the first that accepts it.

Numba itself looks for one folder that it can write to, when a module is imported, and raises an error if there is
none. But machine code that was installed with the package can be used by those who may not write there: a service
whose user owns nothing, or a container with a read-only file system. So it is looked for in all of these folders, in
this order, and written to the first one that accepts it:

1. the folder that `NUMBA_CACHE_DIR` names,
2. `__pycache__` beside the source,
3. the folders that `CACHE_DIRECTORY` names, as systemd does for a unit with `CacheDirectory=`,
4. the user's cache folder, `XDG_CACHE_HOME` or `~/.cache`.

If none accepts it, each process compiles what it calls, and a warning says so once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from numba import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

log = logging.getLogger(__name__)

USER_FOLDER = "tarantool-aggregator-kernels"
"""Name of the folder in a cache folder that others use as well."""

_refusing: dict[Path, OSError] = {}
"""Folders to which this process could not write, with the reason."""


def kernel_folders(source: str) -> Sequence[Path]:
    """Return the folders that may have the machine code of a source file, in the order in which they are used."""
    path = Path(source)
    return [
        path.parent / "__pycache__" if shared is None else shared / _folder_name(path.parent)
        for shared in _cache_folders()
    ]


@lru_cache
def _cache_folders() -> Sequence[Path | None]:
    """Return the folders for machine code of all sources; None stands for the one beside each source."""
    named = [Path(config.CACHE_DIR)] if config.CACHE_DIR else []
    service = [Path(name) for name in os.environ.get("CACHE_DIRECTORY", "").split(":") if name]
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  Path.home() may raise
    return [*named, None, *(folder / USER_FOLDER for folder in (*service, Path(user)))]


@lru_cache
def _folder_name(folder: Path) -> str:
    """Return the name that stands for the folder of a source inside a shared cache folder."""
    return str(_CacheLocator.get_suitable_cache_subpath(str(folder / "source.py")))


class KernelCache(FunctionCache):  # type: ignore[misc]
    """Reads and writes the machine code of one function."""

    def __init__(self, function: Any, stamp: Callable[[], bytes]) -> None:
        class Storage(CompileResultCacheImpl):  # type: ignore[misc]
            _locator_classes = (_locator_class(stamp),)

        self._impl_class = Storage
        super().__init__(function)
        folders = kernel_folders(function.__code__.co_filename)
        self._cache_file: Any = KernelFiles(folders, self._impl.filename_base, stamp())


def _locator_class(stamp: Callable[[], bytes]) -> type:
    class Locator(_CacheLocator):  # type: ignore[misc]
        """Tells Numba the folder beside the source, without looking whether it can be written to."""

        def __init__(self, function: Any, file: str) -> None:
            self._folder = str(Path(file).parent / "__pycache__")
            self._line = str(function.__code__.co_firstlineno)

        def ensure_cache_path(self) -> None:
            pass

        def get_cache_path(self) -> str:
            return self._folder

        def get_source_stamp(self) -> bytes:
            return stamp()

        def get_disambiguator(self) -> str:
            return self._line

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Locator:
            return cls(py_func, py_file)

    return Locator


class KernelFiles:
    """The files of one function's machine code, in several folders."""

    def __init__(self, folders: Sequence[Path], base_name: str, stamp: bytes) -> None:
        self._folders = folders
        self._base_name = base_name
        self._stamp = stamp

    def _files(self) -> Iterator[tuple[Path, IndexDataCacheFile]]:
        for folder in self._folders:
            yield folder, IndexDataCacheFile(str(folder), self._base_name, self._stamp)

    def has_any(self) -> bool:
        """Return whether one of the folders has machine code of the current sources."""
        return any(_read_or_none(file._load_index) for _folder, file in self._files())

    def load(self, key: Any) -> Any:
        """Return the machine code that is stored for a signature, or None."""
        loaded = (_read_or_none(file.load, key) for _folder, file in self._files())
        return next((code for code in loaded if code is not None), None)

    def save(self, key: Any, code: Any) -> None:
        """Store machine code in the first folder that accepts it."""
        for folder, file in self._files():
            if folder in _refusing:
                continue
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if not _read_or_none(file._load_index):
                    file.flush()  # an index that cannot be read is replaced
                file.save(key, code)
            except OSError as error:
                _refusing[folder] = error
            else:
                return
        _warn_once(str(next(iter(_refusing.values()), "")))

    def flush(self) -> None:
        """Forget the machine code that this process may remove."""
        for folder, file in self._files():
            if folder not in _refusing and folder.is_dir():
                file.flush()


@lru_cache
def _warn_once(reason: str) -> None:
    log.warning(
        "compiled kernels cannot be stored, so each start compiles them, for up to a minute (%s): run "
        "`aggregator setup` as the owner of the package, or name a folder in NUMBA_CACHE_DIR",
        reason,
    )


def _read_or_none(read: Callable[..., Any], *key: Any) -> Any:
    """Return what `read` returns, or None if the file is damaged or cannot be read."""
    try:
        return read(*key)
    except Exception as error:  # pickle may raise anything for a damaged file
        log.debug("cached machine code cannot be read and is compiled again: %s", error)
        return None
