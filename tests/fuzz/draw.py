"""What cases are made of: MessagePack that is sound, odd or damaged, system tuples, and changes of bytes."""

import random
import struct
from collections.abc import Sequence
from typing import Any

import msgpack

from schemas.field_types import FIELD_TYPES
from schemas.space import Field, KeyPart, Space

TYPES = (*FIELD_TYPES, "uint8", "int32", "float32")
KEY_TYPES = tuple(name for name, one in FIELD_TYPES.items() if one.is_indexable)
NUMBERS = (
    *(
        0,
        1,
        -1,
        31,
        127,
        128,
        255,
        256,
        -32,
        -33,
        -128,
        -129,
        65535,
        65536,
        2**31 - 1,
        2**31,
        -(2**31),
        2**32 - 1,
    ),
    *(2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1),
)
FLOATS = (
    0.0,
    -0.0,
    0.1,
    1.5,
    1e15,
    1e22,
    1e23,
    5e-324,
    1.7976931348623157e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)
TEXTS = (
    "",
    "a",
    "id",
    "name",
    "value",
    "x" * 31,
    "x" * 32,
    "y" * 300,
    "ключ",
    "\udcff",
    "a\0b",
    "𝄞",
    "\ue000",
)


class Draw(random.Random):
    """A source of random choices, the same ones for the same seed.

    Attributes:
        made: About how many bytes were made of the choices: those of numbers, texts and random bytes. What is long by
            another way is added by who makes it.
    """

    made = 0

    def chance(self, one_in: int) -> bool:
        """Return true once in so many times."""
        return self.randrange(one_in) == 0

    def size(self, most: int) -> int:
        """Return a number from 0 on, mostly small."""
        return int(most ** (self.random() ** 3)) - (1 if self.chance(2) else 0)

    def text(self) -> str:
        """Return a text; surrogates represent bytes that are not UTF-8."""
        found = self.choice(TEXTS) if self.chance(2) else "".join(self.choices("ab_.[]é0", k=self.size(40)))
        self.made += len(found)
        return found

    def number(self) -> int:
        """Return an integer that MessagePack holds."""
        self.made += 9
        return (
            self.choice(NUMBERS)
            if self.chance(2)
            else self.randrange(-(1 << self.randrange(1, 64)), 1 << self.randrange(1, 65))
        )

    def float(self) -> float:
        self.made += 9
        if self.chance(2):
            return self.choice(FLOATS)
        found: float = struct.unpack("<d", self.randbytes(8))[0]
        return found

    def randbytes(self, n: int) -> bytes:
        self.made += n
        return super().randbytes(n)


def packed(value: Any) -> bytes:
    data: bytes = msgpack.packb(value, unicode_errors="surrogateescape", strict_types=False)
    return data


def extension(code: int, content: bytes) -> bytes:
    """Return an extension with its length in one byte, as servers write most of them."""
    short = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}.get(len(content))
    return bytes([short, code]) + content if short else bytes([0xC7, len(content), code]) + content


def integer(draw: Draw, value: int) -> bytes:
    """Return an integer in any of its encodings."""
    forms = [packed(value)]
    for head, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
        if 0 <= value < 1 << 8 * size:
            forms.append(bytes([head]) + value.to_bytes(size, "big"))
    for head, size in ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)):
        if -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1):
            forms.append(bytes([head]) + value.to_bytes(size, "big", signed=True))
    return draw.choice(forms)


def decimal(draw: Draw) -> bytes:
    """Return a decimal, of up to 80 digits and of any scale, mostly one that a server takes."""
    scale = (
        draw.choice((0, 1, 2, 18, 37, 38, -1, -38, draw.number()))
        if draw.chance(2)
        else draw.randrange(-5, 20)
    )
    digits = "".join(
        draw.choices("0123456789", k=draw.choice((1, 2, 15, 16, 19, 20, 38, 39, draw.size(80) + 1)))
    )
    sign = draw.choice("abcdef" if draw.chance(2) else "cd")
    text = digits + sign
    content = bytes.fromhex(text if len(text) % 2 == 0 else "0" + text)
    if draw.chance(20):
        content = draw.randbytes(draw.size(12))
    return extension(1, integer(draw, scale) + content)


def interval(draw: Draw) -> bytes:
    pairs = draw.randrange(9)
    fields = (
        draw.sample(range(9), pairs) if not draw.chance(10) else [draw.randrange(12) for _ in range(pairs)]
    )
    body = b"".join(bytes([one]) + integer(draw, draw.number()) for one in fields)
    return extension(6, bytes([pairs if not draw.chance(20) else draw.randrange(256)]) + body)


def datetime(draw: Draw) -> bytes:
    seconds = struct.pack(
        "<q", draw.choice((0, 1, -62135596801, 253402300800, 2**63 - 1, draw.randrange(-(2**40), 2**40)))
    )
    rest = struct.pack(
        "<ihh", draw.choice((0, 1, 1000, 999999999, 1000000000, -1)), draw.randrange(-720, 840), 0
    )
    return extension(4, seconds + (rest if draw.chance(2) else b""))


def scalar(draw: Draw) -> bytes:
    """Return any value but an array or a map."""
    kind = draw.randrange(12)
    if kind < 3:
        return integer(draw, draw.number())
    if kind == 3:
        return packed(draw.text())
    if kind == 4:
        return packed(draw.randbytes(draw.size(300)))
    if kind == 5:
        value = draw.float()
        return (
            b"\xca" + struct.pack(">f", value if abs(value) < 3e38 else 0.5)
            if draw.chance(3)
            else packed(value)
        )
    if kind == 6:
        return draw.choice((b"\xc0", b"\xc2", b"\xc3"))
    if kind == 7:
        return decimal(draw)
    if kind == 8:
        return extension(2, draw.randbytes(16 if not draw.chance(20) else draw.size(20)))
    if kind == 9:
        return datetime(draw)
    if kind == 10:
        return interval(draw)
    return extension(draw.choice((0, 3, 5, 7, 127, 255)), draw.randbytes(draw.size(40)))


def value(draw: Draw, depth: int = 4) -> bytes:
    """Return any value, of some depth at most."""
    if depth == 0 or not draw.chance(4):
        return scalar(draw)
    if draw.chance(30):  # deeper than a variant is
        levels = draw.randrange(90, 130)
        return draw.choice((b"\x91" * levels, b"\x81\xa1a" * levels)) + scalar(draw)
    if draw.chance(2):
        count = draw.size(20)
        return array(draw, [value(draw, depth - 1) for _ in range(count)])
    count = draw.size(20)
    pairs = [map_key(draw) + value(draw, depth - 1) for _ in range(count)]
    head = bytes([0x80 | count]) if count < 16 and not draw.chance(8) else b"\xde" + count.to_bytes(2, "big")
    return head + b"".join(pairs)


def map_key(draw: Draw) -> bytes:
    """Return a map's key: mostly a text, sometimes any value."""
    if draw.chance(10):
        return value(draw, 1)
    return packed(draw.text()) if draw.chance(2) else packed(draw.choice("abcdefgh"))


def array(draw: Draw, items: Sequence[bytes]) -> bytes:
    """Return an array with a head of any size."""
    count = len(items)
    if count < 16 and not draw.chance(8):
        head = bytes([0x90 | count])
    else:
        head = b"\xdc" + count.to_bytes(2, "big") if draw.chance(2) else b"\xdd" + count.to_bytes(4, "big")
    return head + b"".join(items)


def of_type(draw: Draw, kind: str) -> bytes:
    """Return a value that a field of a type mostly takes."""
    if draw.chance(8):
        return value(draw)
    family = {"uint8": "unsigned", "int32": "integer", "float32": "double"}.get(kind, kind)
    if family == "unsigned":
        return integer(draw, draw.number() & (2**64 - 1))
    if family == "integer":
        return integer(draw, draw.number())
    if family in ("number", "double"):
        return draw.choice(
            (lambda: packed(draw.float()), lambda: integer(draw, draw.number()), lambda: decimal(draw))
        )()
    found = {"decimal": decimal, "datetime": datetime, "interval": interval, "scalar": scalar}.get(family)
    if found is not None:
        return found(draw)
    if family == "string":
        return packed(draw.text())
    if family == "varbinary":
        return packed(draw.randbytes(draw.size(300)))
    if family == "boolean":
        return draw.choice((b"\xc2", b"\xc3"))
    if family == "uuid":
        return extension(2, draw.randbytes(16))
    return value(draw)


def mutated(draw: Draw, data: bytes, times: int | None = None) -> bytes:
    """Return bytes with some changes: bits, bytes, cuts, repeats, and numbers at an edge."""
    found = bytearray(data)
    for _ in range(draw.randrange(1, 4) if times is None else times):
        index = draw.randrange(len(found) + 1)
        kind = draw.randrange(7)
        if kind == 0 and found:
            found[index % len(found)] ^= 1 << draw.randrange(8)
        elif kind == 1 and found:
            found[index % len(found)] = draw.choice(
                (0, 0x7F, 0x80, 0x90, 0xC1, 0xC7, 0xC9, 0xD4, 0xDB, 0xDD, 0xDF, 0xFF)
            )
        elif kind == 2:
            del found[index : index + draw.size(20)]
        elif kind == 3:
            found[index:index] = draw.randbytes(draw.size(12))
        elif kind == 4:
            found[index:index] = found[index : index + draw.size(60)]
        elif kind == 5:
            edge = draw.choice((0, 2**31 - 1, 2**31, 2**32 - 1, 1 << 16))
            found[index : index + 4] = edge.to_bytes(4, "big")
        else:
            del found[draw.randrange(len(found) + 1) :]
    return bytes(found)


def odd(draw: Draw) -> Any:
    """Return a value that stands where another one belongs."""
    return draw.choice(
        (
            *(
                None,
                True,
                -1,
                0,
                2**31,
                2**63,
                2**64 - 1,
                0.5,
                float("nan"),
                "",
                "x",
                "\udcff",
                b"",
                b"\xff",
                [],
                {},
            ),
            *(
                [[]],
                [None],
                {"a": 1},
                {1: 2},
                "y" * 300,
                ["name", "string"],
                {"name": 1},
                {"field": -1},
                {"field": "x"},
            ),
        )
    )


def mixed_up(draw: Draw, tree: Any) -> Any:
    """Return a tree of lists and maps in which something was changed, left out, repeated or put elsewhere."""
    if isinstance(tree, list) and tree and not draw.chance(4):
        found = list(tree)
        index = draw.randrange(len(found))
        kind = draw.randrange(6)
        if kind == 0:
            del found[index]
        elif kind == 1:
            found.insert(index, found[index])
        elif kind == 2:
            found[index] = odd(draw)
        elif kind == 3:
            found[index], found[0] = found[0], found[index]
        else:
            found[index] = mixed_up(draw, found[index])
        return found
    if isinstance(tree, dict) and tree and not draw.chance(4):
        changed = dict(tree)
        key = draw.choice(list(changed))
        kind = draw.randrange(4)
        if kind == 0:
            del changed[key]
        elif kind == 1:
            changed[draw.choice(("x", 7, "\udcff", -1))] = changed.pop(key)
        else:
            changed[key] = mixed_up(draw, changed[key]) if draw.chance(2) else odd(draw)
        return changed
    return odd(draw)


def fields(draw: Draw, most: int = 12) -> tuple[Field, ...]:
    count = draw.size(most) + 1
    return tuple(Field(f"f{i}", draw.choice(TYPES), draw.chance(2)) for i in range(count))


def space(draw: Draw) -> Space:
    """Return a sound space with a primary key."""
    own = fields(draw)
    numbers = draw.sample(range(16), draw.randrange(1, 5))
    parts = [
        KeyPart(n, draw.choice(KEY_TYPES), draw.choice(("", "", "", ".a", "[1]", ".a.b", '["b"][1].c')))
        for n in numbers
    ]
    return Space(512, 1, "s", draw.choice(("memtx", "vinyl")), own, tuple(parts))


def tuple_of(draw: Draw, form: Sequence[Field]) -> bytes:
    """Return a tuple that mostly fits a format."""
    count = len(form) if not draw.chance(6) else draw.size(2 * len(form))
    kinds = [one.type for one in form] + ["any"] * (count + 1)
    return array(
        draw, [of_type(draw, kind) for kind in kinds[: count + (draw.size(4) if draw.chance(4) else 0)]]
    )


def space_row(draw: Draw) -> list[Any]:
    own = [
        draw.choice(
            ({"name": f"f{i}", "type": draw.choice(TYPES), "is_nullable": draw.chance(2)}, [f"f{i}", "any"])
        )
        for i in range(draw.size(10))
    ]
    name = draw.choice(("s", "odd", "accounts", draw.text()))
    return [
        draw.choice((512, 513, 600)),
        1,
        name,
        draw.choice(("memtx", "vinyl", "blackhole")),
        0,
        {"group_id": draw.randrange(2)},
        own,
    ]


def index_row(draw: Draw) -> list[Any]:
    parts: list[Any] = [
        draw.choice(
            (
                {"field": i, "type": draw.choice(KEY_TYPES), "path": draw.choice(("", ".a"))},
                [i, draw.choice(KEY_TYPES)],
            )
        )
        for i in draw.sample(range(6), draw.randrange(1, 4))
    ]
    return [draw.choice((512, 513, 600)), draw.choice((0, 0, 0, 1)), "pk", "tree", {"unique": True}, parts]


def cluster_row(draw: Draw) -> list[Any]:
    return [draw.randrange(1, 32), f"a0000000-0000-4000-8000-0000000000{draw.randrange(10, 99)}"]
