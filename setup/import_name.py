"""Puts all packages below one import name, `aggregator`, and changes the names in their modules.

In the repository the packages are folders at the top. Installed like that, they would hide modules `config`, `jobs`
or `schemas` of users, and be hidden by them. So the wheel has them below `aggregator`, and their imports, the names of
modules in texts, and commands such as `python -m jobs.prove` are changed. Lines keep their numbers.
"""

import ast
import io
import re
import shutil
import tokenize
from collections.abc import Collection, Iterator
from pathlib import Path

PACKAGE = "aggregator"

_TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def gather(folder: Path) -> None:
    """Move all packages of a folder below its package `aggregator`, and change the names in their modules."""
    moved = sorted(one.name for one in folder.iterdir() if one.is_dir() and one.name != PACKAGE)
    modules = {".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*.py")}
    modules |= {name.removesuffix(".__init__") for name in modules}
    for name in moved:
        shutil.rmtree(folder / PACKAGE / name, ignore_errors=True)
        (folder / name).rename(folder / PACKAGE / name)
    for path in (folder / PACKAGE).rglob("*.py"):
        text = path.read_text("utf-8")
        path.write_text(rewrite(text, moved, modules), "utf-8")


def rewrite(text: str, packages: Collection[str], modules: Collection[str]) -> str:
    """Return the text of a module with the packages' names below `aggregator`.

    Args:
        text: The module.
        packages: The packages that are moved.
        modules: Dotted names of all modules of these packages: only those are changed in strings and comments.

    Raises:
        ValueError: The module binds a package by `import`, so that other names of its text would be wrong.
    """
    lines = text.split("\n")
    for row, column in sorted({*_imports(text, packages), *_names(text, packages, modules)}, reverse=True):
        line = lines[row - 1]
        lines[row - 1] = f"{line[:column]}{PACKAGE}.{line[column:]}"
    return "\n".join(lines)


def _imports(text: str, packages: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield where the names of packages begin in import statements, as lines and columns."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in packages:
                    raise ValueError(f"line {node.lineno}: import {alias.name}: write `from … import …`")
        elif (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").partition(".")[0] in packages
        ):
            yield node.lineno, node.col_offset + len("from ")


def _names(text: str, packages: Collection[str], modules: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield where names of modules begin in strings and comments, as lines and columns."""
    dotted = re.compile(rf"(?<![\w./-])(?:{'|'.join(packages)})(?:\.\w+)+")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _TEXTS:
            continue
        row, start = token.start
        if token.line.startswith("_PACKAGES = ") and token.string.strip("\"'") in packages:
            yield row, start + 1  # the packages whose sources belong to a kernel (`schemas.compiled`)
        for number, line in enumerate(token.string.split("\n")):
            for found in dotted.finditer(line):
                if any(name in modules for name in _prefixes(found.group())):
                    yield row + number, found.start() + (0 if number else start)


def _prefixes(name: str) -> Iterator[str]:
    """Yield a dotted name and the shorter ones that it begins with, down to two parts."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(len(parts), 1, -1))
