"""Reads a YAML file as plain data with the line of each value.

Stricter than YAML itself: a repeated key in a mapping is a mistake (YAML loaders silently use the last one), and keys
must be strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from schemas.errors import ConfigurationError

Location = tuple[str | int, ...]
"""Location of a value: keys of mappings and indexes of lists, from the top."""


@dataclass(frozen=True)
class Mistake:
    """One mistake in a document.

    Parameters
    ----------
    where : tuple of str and int
        Its location; empty for the document as a whole.
    what : str
        What is wrong, and what is allowed.

    """

    where: Location
    what: str


@dataclass(frozen=True)
class Document:
    """A parsed file.

    Parameters
    ----------
    file : Path
        The file that was parsed.
    data : object
        Dicts, lists and scalars.
    lines : dict
        1-based line of each location; for values of a mapping, the line of their key.
    repeated : tuple of Mistake
        Repeated keys.

    """

    file: Path
    data: Any
    lines: dict[Location, int]
    repeated: tuple[Mistake, ...]

    def line(self, where: Location) -> int:
        """Return the line of a value; if it is missing, that of the mapping or list around it."""
        while where not in self.lines:
            where = where[:-1]
        return self.lines[where]


def read_document(file: Path) -> Document:
    """Parse a YAML file.

    Raises
    ------
    ConfigurationError
        The file cannot be read, is not UTF-8, or is not one YAML document.

    """
    lines: dict[Location, int] = {(): 1}
    try:
        text = file.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
        repeated = tuple(_walk(node, (), lines)) if node is not None else ()
    except OSError as error:
        raise ConfigurationError(
            f"the configuration cannot be read: {error.strerror}", file=str(file), advice="check its path"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"the configuration is not YAML: {reason}", file=str(file)) from error
    except RecursionError as error:
        raise ConfigurationError("the configuration contains itself (an alias)", file=str(file)) from error
    return Document(file, data, lines, repeated)


def _walk(node: yaml.Node, where: Location, lines: dict[Location, int]) -> Iterator[Mistake]:
    """Add the line of each value below a node to `lines`, and yield a mistake for each repeated key."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*where, key.value)
            line = key.start_mark.line + 1
            if inner in lines:
                yield Mistake(inner, f"appears twice (also in line {lines[inner]})")
            lines[inner] = line
            yield from _walk(value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            lines[(*where, number)] = item.start_mark.line + 1
            yield from _walk(item, (*where, number), lines)


def location_text(where: Location) -> str:
    """Return a location as text: `sources[1].path`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
    return text.removeprefix(".")


def refuse(document: Document, mistakes: list[Mistake]) -> ConfigurationError:
    """Return one error for all mistakes of a document, in the order of their lines.

    If there is only one, the error's fields are `file`, `line` and `path`.
    """
    ordered = sorted(
        mistakes, key=lambda mistake: (document.line(mistake.where), location_text(mistake.where))
    )
    file = str(document.file)
    if len(ordered) == 1:
        where = ordered[0].where
        return ConfigurationError(
            ordered[0].what,
            file=file,
            line=document.line(where),
            path=location_text(where) or "the whole file",
        )
    texts = (f"line {document.line(m.where)}: {location_text(m.where)}: {m.what}" for m in ordered)
    return ConfigurationError(
        "\n  ".join([f"{len(ordered)} mistakes in the configuration", *texts]), file=file
    )
