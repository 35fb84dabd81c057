"""Small directories of real servers that show rules of theirs, with what each server held at the end.

Each folder of `rules` is a server's directory, and `truth.jsonl` in it has a line for each space: its `name` and the
exact MessagePack of its tuples (`rows`), all in base64.
"""

import base64
import json
from pathlib import Path

RECORDED = Path(__file__).parent / "rules"


def directory(name: str) -> Path:
    """Return the recorded server's directory."""
    return RECORDED / name


def truth(name: str) -> dict[str, list[bytes]]:
    """Return the sorted tuples of each space, by its name."""
    lines = (RECORDED / name / "truth.jsonl").read_text(encoding="ascii").splitlines()
    spaces = [json.loads(line) for line in lines]
    return {
        base64.b64decode(one["name"]).decode(): sorted(map(base64.b64decode, one["rows"])) for one in spaces
    }
