"""The kinds of cases: each takes a source of random choices, makes an input, and reads it as the product does.

A case may end by one of the project's errors. Where an independent decoder can say what the result must be, it is
asked, and a difference is an AssertionError.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.deployment import load
from schemas.errors import AggregatorError
from schemas.iproto import RequestType
from sources.spool.acks import read_acks
from sources.spool.state import read_state, remove_incomplete_files, spool_files
from sources.xlog.directory.offset import from_text
from sources.xlog.format.block import EOF_MARKER, MAGIC_PLAIN, MAGIC_ZSTD, checksum, encode_block
from sources.xlog.format.encode import encode_row
from sources.xlog.format.meta import Meta, format_meta, parse_meta
from sources.xlog.reader import reader
from sources.xlog.reader.reader import Limits, Mode, SkippedDamage
from tests.bodies import encode_body
from tests.fuzz import draw as made
from tests.fuzz.costly import costly
from tests.fuzz.draw import Draw
from tests.fuzz.value_targets import (
    bodies,
    control,
    extremes,
    formats,
    is_sound,
    keys,
    limbo,
    operation_list,
    operations,
    sequences,
    system_tuples,
    tuples,
    variants,
    vylog,
)
from tests.fuzz.wire_targets import answers, clients, greetings, streams
from udfs.rid.value import parse_rid

Target = Callable[[Draw], None]

# Files.

_INSTANCE = "aaaaaaaa-0000-4000-8000-0000000000a1"


def _log_row(draw: Draw, lsn: int) -> bytes:
    kind = draw.choice((*([RequestType.INSERT] * 4), *RequestType, 17, 19, 33, 200))
    body = b""
    if kind not in (RequestType.NOP, RequestType.OK):
        body = encode_body(
            space_id=draw.choice((512, 280, 0, 2**31 - 1)),
            tuple_=None if draw.chance(4) else made.tuple_of(draw, made.fields(draw, 4)),
            key=made.array(draw, [made.scalar(draw)]) if draw.chance(3) else None,
            operations=operation_list(draw) if draw.chance(5) else None,
            is_update=kind == RequestType.UPDATE,
        )
    time = draw.choice((1.7e9, 0.0, draw.float()))
    return encode_row(kind, body, replica_id=draw.choice((1, 2, 31, 40)), lsn=lsn, timestamp=time)


def _block(draw: Draw, rows: bytes) -> bytes:
    """Return a block whose checksum is right, whatever its rows, its frame or its header are."""
    data = encode_block(rows, compress=draw.chance(2))
    if not draw.chance(3):
        return data
    header, content = data[:19], data[19:]
    content = made.mutated(draw, content) if draw.chance(2) else content
    magic = header[:4] if not draw.chance(6) else draw.choice((MAGIC_PLAIN, MAGIC_ZSTD)).to_bytes(4, "big")
    size = (
        len(content)
        if not draw.chance(8)
        else draw.choice((0, len(content) - 1, len(content) + 1, 2**32 - 1))
    )
    fixed = (
        magic + b"\xce" + max(size, 0).to_bytes(4, "big") + b"\x00\xce" + checksum(content).to_bytes(4, "big")
    )
    return fixed + b"\xa4" + bytes(4) + content


def _meta(draw: Draw, filetype: str = "XLOG") -> bytes:
    data = format_meta(Meta(filetype, "0.13", _INSTANCE, {1: 5}, {}, {"Version": "2.6.0"}))
    return made.mutated(draw, data) if draw.chance(8) else data


def _file(draw: Draw) -> tuple[bytes, list[bytes]]:
    """Return a file, and the rows of its blocks as they were before anything was changed."""
    parts, sound, lsn = [_meta(draw)], [], 6
    for _ in range(draw.size(6) + 1):
        rows = [_log_row(draw, lsn + k) for k in range(draw.size(6) + 1)]
        lsn += len(rows)
        joined = b"".join(rows)
        parts.append(_block(draw, made.mutated(draw, joined) if draw.chance(3) else joined))
        sound += rows
    if draw.chance(2):
        parts.append(EOF_MARKER)
    data = b"".join(parts)
    return (made.mutated(draw, data) if draw.chance(5) else data), sound


def xlog(draw: Draw) -> None:
    """Log files with right checksums, in all modes and cuts; header-only reads agree with whole ones."""
    data, _ = _file(draw)
    mode = draw.choice((Mode.FAILFAST, Mode.DROPMALFORMED, Mode.PERMISSIVE))
    limits = Limits(
        batch_rows=draw.choice((1, 3, 100)),
        batch_bytes=draw.choice((16, 4096)),
        window_bytes=draw.choice((64, 1 << 16)),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "00000000000000000005.xlog"
        path.write_bytes(data)
        fs, name = reader.open_fs(str(path))
        begin = draw.randrange(len(data) + 1) if draw.chance(3) else 0
        options: dict[str, Any] = {"mode": mode, "limits": limits, "closed": draw.chance(2)}
        rows = 0
        for batch in reader.read_rows(fs, name, begin, None, skipped=SkippedDamage(), **options):
            batch.validate(full=True)
            rows += batch.num_rows
            for packed in (
                *batch["tuple"].to_pylist(),
                *batch["key"].to_pylist(),
                *batch["operations"].to_pylist(),
            ):
                assert packed is None or is_sound(packed), f"{packed.hex()} is no MessagePack"
        if mode is Mode.FAILFAST and begin == 0:
            reader.end_of_complete_blocks(fs, name)
            count = sum(len(one.lsn) for one in reader.read_headers(fs, name, limits=limits))
            assert options["closed"] or count == rows, f"{count} headers, {rows} rows"


def meta(draw: Draw) -> None:
    """Headers of log files."""
    data = format_meta(Meta("XLOG", "0.13", _INSTANCE, {1: 5, 2: 7}, {1: 1}, {"Version": "2.6.0"}))
    parse_meta(made.mutated(draw, data), "x.xlog")


def spool(draw: Draw) -> None:
    """Open a spool's folder with files of any content."""
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder)
        for lsn in draw.sample(range(1, 9), draw.randrange(3) + 1):
            name = (
                f"{lsn:020}{draw.choice(('.xlog', '.snap', '.xlog.inprogress', '.snap.inprogress', '.txt'))}"
            )
            parts = [_meta(draw, draw.choice(("XLOG", "SNAP"))), _block(draw, _log_row(draw, lsn + 1))]
            data = b"".join(parts) + (EOF_MARKER if draw.chance(2) else b"")
            (own / name).write_bytes(made.mutated(draw, data) if draw.chance(2) else data)
        (own / "acks").mkdir()
        ack = json.dumps(made.mixed_up(draw, {"vclock": {"1": 5, "2": draw.number()}}), default=repr)
        (own / "acks" / "reader.json").write_bytes(
            made.mutated(draw, ack.encode()) if draw.chance(2) else ack.encode()
        )
        for step in (
            lambda: read_acks(own),
            lambda: remove_incomplete_files(own),
            lambda: read_state(own),
            lambda: spool_files(own, ".xlog"),
        ):
            try:
                step()
            except AggregatorError:
                continue


# Texts.


def offsets(draw: Draw) -> None:
    """Offsets of a stream, as Spark's checkpoint gives them back."""
    from sources.xlog.directory.offset import OffsetEntry, to_text

    entry = OffsetEntry("a1", "00000000000000000005.xlog", 300, {1: 5}, checksum=7)
    document: Any = json.loads(to_text({_INSTANCE: entry}))
    for _ in range(draw.randrange(3)):
        document = made.mixed_up(draw, document)
    text = json.dumps(document, default=repr)
    if draw.chance(2):
        text = made.mutated(draw, text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    found = from_text(text)
    assert from_text(to_text(found)) == found


def rids(draw: Draw) -> None:
    """Replication ids."""
    text = ":".join(["01ARZ3NDEKTSV4RRFFQ69G5FAV"] * 5 + ["1", "0", "0", "0", "3"])
    parts = [
        draw.choice((one, "", "0" * 26, draw.text())) if draw.chance(20) else one for one in text.split(":")
    ]
    text = ":".join(parts)
    if draw.chance(2):
        text = made.mutated(draw, text.encode("utf-8", "surrogatepass"), 1).decode("utf-8", "replace")
    found = parse_rid(text)
    assert parse_rid(str(found)) == found


_YAML = """warehouse: /data/warehouse
checkpoint: /data/checkpoint
trigger: 5 seconds
sources:
  - {name: a1, path: /var/lib/tarantool/a1}
  - {name: b1, path: "s3a://logs/b1", origins: [aaaaaaaa-0000-4000-8000-0000000000a1]}
policies:
  default: {policy: last_write_wins, deletes: own}
  spaces: {accounts: {policy: last_write_wins, sequence: [updated]}}
types: {unsigned: precise, decimal: "decimal(38,18)"}
spaces: {include: ["*"], exclude: [], rename: {a: b}}
local_bytes: 256 MiB
"""


def configuration(draw: Draw) -> None:
    """Load configurations: each mistake is named, and nothing else happens."""
    data = _YAML.encode()
    lines = data.splitlines(keepends=True)
    if draw.chance(2):
        draw.shuffle(lines)
    if draw.chance(2):
        lines.insert(
            draw.randrange(len(lines)),
            json.dumps({draw.text(): made.odd(draw)}, default=repr).encode() + b"\n",
        )
    data = b"".join(lines)
    data = made.mutated(draw, data, 1) if draw.chance(2) else data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conf.yaml"
        path.write_bytes(data)
        load(path)


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        *(
            tuples,
            variants,
            keys,
            sequences,
            operations,
            formats,
            control,
            limbo,
            vylog,
            bodies,
            system_tuples,
        ),
        *(
            costly,
            extremes,
            xlog,
            meta,
            spool,
            offsets,
            rids,
            configuration,
            greetings,
            streams,
            answers,
            clients,
        ),
    )
}
"""All kinds of cases."""
