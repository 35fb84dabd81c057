"""What a command that writes nothing leaves as it is."""

from pathlib import Path


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return each file below a folder with its size and time."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}
