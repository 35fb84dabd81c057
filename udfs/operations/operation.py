"""Decodes and checks an operation of an UPDATE or UPSERT, in the log `[name, field, argument, ...]`.

Source: `xrow_update_op_decode` and `xrow_update_read_arg_*` in `src/box/xrow_update_field.c`. Errors found here do not
depend on the tuple: the server refuses the request, even an UPSERT. `udfs.operations.operations` applies operations.
"""

from typing import Any

from schemas.errors import TupleError
from udfs.operations.arithmetic import OperationArguments, argument_type_error, read_int32
from udfs.operations.json_path import END, ER_UPDATE_FIELD, NUMBER, STRING, Lexer, Token, path_text
from udfs.operations.msgpack_kinds import ARRAY, INT, KIND, STR, UINT
from udfs.operations.msgpack_walk import raise_broken, read_header, read_integer, skip, string_bounds
from udfs.operations.scalars import SCALAR_OPERATIONS
from udfs.operations.tuple_format import TupleFormat

ER_ILLEGAL_PARAMS, ER_UNKNOWN_UPDATE_OP, ER_NO_SUCH_FIELD_NO, ER_NO_SUCH_FIELD_NAME = 1, 28, 37, 201
"""Tarantool's error codes."""

OPERATIONS_MAX = 4000
"""Greatest number of operations of a request (`BOX_UPDATE_OP_CNT_MAX`)."""

_ITEM_COUNTS = {"=": 3, "!": 3, "#": 3} | {code: one.item_count for code, one in SCALAR_OPERATIONS.items()}
"""Number of items of each operation: its code, its field, and its arguments."""


class Operation:
    """A decoded operation, and how far its path has been followed into a tuple.

    Args:
        code: `=`, `!`, `#`, or the code of a scalar operation (`udfs.operations.scalars`).
        lexer: The path, positioned after the first token; None if the field is given by number.
        index: Field number, 0-based, or negative from the end.
        data: The bytes of all operations; `value` is the slice `data[start:end]`.

    Attributes:
        token: The current token of the path.
        is_consumed: Whether the current token has been followed, so that `advance` returns the next one.
        is_from_end: Whether the field is counted from the end of the tuple.
        is_root: Whether the operation changes a whole field.
        start, end: Where the argument of `=` and `!` is in `data`.
        count: The argument of `#`: how many fields to remove.
        argument: The argument of a scalar operation, as `ScalarOperation.read` returns it.
    """

    __slots__ = (
        *("argument", "code", "count", "data", "end", "is_consumed", "is_from_end", "is_root"),
        *("lexer", "start", "token"),
    )

    def __init__(self, code: str, lexer: Lexer | None, index: int, data: bytes) -> None:
        self.code, self.lexer, self.data = code, lexer, data
        self.token, self.is_consumed = Token(NUMBER, index), False
        self.is_from_end = index < 0
        self.is_root = lexer is None or lexer.at_end
        self.start = self.end = self.count = 0
        self.argument: Any = None

    @property
    def is_terminal(self) -> bool:
        """Whether the current token is the last one of the path."""
        return self.lexer is None or self.lexer.at_end

    @property
    def value(self) -> bytes:
        """The argument of `=` and `!`, in the encoding of the log."""
        return self.data[self.start : self.end]

    @property
    def field(self) -> str:
        """The field as the server's errors name it."""
        if self.lexer is not None:
            return f"'{path_text(self.lexer.path)}'"
        return str(self.token.index + (self.token.index >= 0))

    def advance(self) -> Token:
        """Return the next token of the path if the current one was consumed, else the current one."""
        if self.is_consumed:
            token = self.lexer.next() if self.lexer is not None else Token(END)
            if token.kind == END:
                raise self.no_such_field()
            self.token, self.is_consumed = token, False
        return self.token

    def no_such_field(self) -> TupleError:
        """Return the error for a field that the tuple lacks."""
        if self.lexer is None:
            return TupleError(f"Field {self.field} was not found in the tuple", code=ER_NO_SUCH_FIELD_NO)
        return TupleError(f"Field '{self.field}' was not found in the tuple", code=ER_NO_SUCH_FIELD_NAME)

    def update_error(self, reason: str) -> TupleError:
        """Return `ER_UPDATE_FIELD`: the operation does not fit the value."""
        return TupleError(f"Field {self.field} UPDATE error: {reason}", code=ER_UPDATE_FIELD)


def operations_by_request(data: bytes) -> list[bytes]:
    """Return the operations of each request that a row has; the operations of one request are a MessagePack array.

    Only an UPSERT of a vinyl run has several requests in one row. Its operations are an array of groups, and each group
    is the array of operations of one request (since 2.7, `src/box/vy_upsert.c`).
    """
    if not data or KIND[data[0]] != ARRAY:
        return [data]
    count, pos = read_header(data, 0)
    groups = []
    for _ in range(count):
        if not _is_group(data, pos):
            return [data]
        end = skip(data, pos)
        groups.append(data[pos:end])
        pos = end
    return groups or [data]


def _is_group(data: bytes, pos: int) -> bool:
    """Return whether the value at a position is an array of arrays; an operation begins with a string."""
    if pos >= len(data) or KIND[data[pos]] != ARRAY:
        return False
    count, pos = read_header(data, pos)
    return count > 0 and pos < len(data) and KIND[data[pos]] == ARRAY


def decode_operations(data: bytes, index_base: int, fmt: TupleFormat) -> list[Operation]:
    """Return the operations of a request.

    Args:
        index_base: Number of the first field, and of a string's first byte: 0 or 1.

    Raises:
        TupleError: The server refuses the request for every tuple.
    """
    if not data or KIND[data[0]] != ARRAY:
        raise_broken("operations must be a MessagePack array")
    count, pos = read_header(data, 0)
    if count > OPERATIONS_MAX:
        raise TupleError("too many operations for update", code=ER_ILLEGAL_PARAMS)
    if skip(data, 0) != len(data):
        raise_broken("bytes follow the operations")
    operations = []
    for ordinal in range(1, count + 1):
        operations.append(_decode(data, pos, ordinal, index_base, fmt))
        pos = skip(data, pos)
    return operations


def _unknown_operation(ordinal: int, problem: str) -> TupleError:
    return TupleError(f"Unknown UPDATE operation #{ordinal}: {problem}", code=ER_UNKNOWN_UPDATE_OP)


def _illegal_parameters(reason: str) -> TupleError:
    return TupleError(f"Illegal parameters, {reason}", code=ER_ILLEGAL_PARAMS)


def _decode(data: bytes, pos: int, ordinal: int, index_base: int, fmt: TupleFormat) -> Operation:
    if KIND[data[pos]] != ARRAY:
        raise _illegal_parameters("update operation must be an array {op,..}")
    count, pos = read_header(data, pos)
    if count < 1:
        raise _illegal_parameters("update operation must be an array {op,..}, got empty array")
    if KIND[data[pos]] != STR:
        raise _illegal_parameters("update operation name must be a string")
    start, end = string_bounds(data, pos)
    code = data[start:end].decode("latin-1")
    if code not in _ITEM_COUNTS:
        raise _unknown_operation(ordinal, f'"{path_text(data[start:end])}"')
    if count != _ITEM_COUNTS[code]:
        raise _unknown_operation(
            ordinal, f"wrong number of arguments, expected {_ITEM_COUNTS[code]}, got {count}"
        )
    op = _decode_field(code, data, end, index_base, fmt)
    pos = skip(data, end)
    if code in SCALAR_OPERATIONS:
        arguments = OperationArguments(code, op.field, data, pos, index_base, fmt.rules)
        op.argument = SCALAR_OPERATIONS[code].read(arguments)
    elif code == "#":
        _decode_count(op, pos)
    else:
        op.start, op.end = pos, skip(data, pos)
    return op


def _decode_field(code: str, data: bytes, pos: int, index_base: int, fmt: TupleFormat) -> Operation:
    """Return an operation with its field, which is at `pos`, and without its argument."""
    kind = KIND[data[pos]]
    if kind in (UINT, INT):
        number = read_int32(data, pos, fmt.rules)
        if number is None:
            raise argument_type_error(code, "1", "an integer")
        if 0 <= number < index_base:
            raise TupleError(f"Field {number} was not found in the tuple", code=ER_NO_SUCH_FIELD_NO)
        return Operation(code, None, number - index_base if number >= 0 else number, data)
    if kind != STR:
        raise _illegal_parameters("field id must be a number or a string")
    start, end = string_bounds(data, pos)
    path = data[start:end]
    if (number := fmt.number_by_name.get(path)) is not None:
        return Operation(code, Lexer(path, len(path)), number, data)
    lexer = Lexer(path)
    token = lexer.next()
    index = (
        token.index
        if token.kind == NUMBER
        else fmt.number_by_name.get(token.key)
        if token.kind == STRING
        else None
    )
    if index is None:
        raise TupleError(f"Field '{path_text(path)}' was not found in the tuple", code=ER_NO_SUCH_FIELD_NAME)
    return Operation(code, lexer, index, data)


def _decode_count(op: Operation, pos: int) -> None:
    if KIND[op.data[pos]] != UINT:
        raise argument_type_error(op.code, op.field, "a positive integer")
    op.count = read_integer(op.data, pos)[0] & 0xFFFFFFFF
    if op.count == 0:
        raise op.update_error("cannot delete 0 fields")
