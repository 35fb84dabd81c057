"""Parses the SQL expressions of the configuration: filters and computed columns of a space's table.

A small part of SQL, with Spark's meaning: columns (plain, or in backquotes), numbers, strings in single quotes, TRUE,
FALSE, NULL; `OR`, `AND`, `NOT`; `=`, `<>`, `!=`, `<`, `<=`, `>`, `>=`; `IS [NOT] NULL`, `[NOT] IN (…)`, `[NOT] BETWEEN
… AND …`, `[NOT] LIKE '…'`; `+`, `-`, `*`, `/`, `%`, `||`; `CASE WHEN … THEN … [ELSE …] END`; `CAST(… AS type)`; the
functions of `FUNCTIONS`. An expression uses one row alone: no sub-query, no aggregate, nothing that depends on the time
or on chance.

Pure data; `udfs.expressions` evaluates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from schemas.errors import ExpressionError

FUNCTIONS = {
    "lower": (1, 1),
    "upper": (1, 1),
    "trim": (1, 1),
    "length": (1, 1),
    "substring": (2, 3),
    "coalesce": (1, 99),
    "abs": (1, 1),
    "round": (1, 2),
    "floor": (1, 1),
    "ceil": (1, 1),
    "date": (1, 1),
    "year": (1, 1),
    "month": (1, 1),
    "day": (1, 1),
    "hour": (1, 1),
    "json_value": (2, 2),
}
"""The least and the greatest number of arguments of each function."""

TYPES = ("string", "bigint", "int", "double", "boolean", "date", "timestamp", "decimal", "binary")
"""Types of `CAST`; a decimal may have digits: `decimal(12, 2)`."""

DEPTH_MAX = 100


@dataclass(frozen=True)
class Term:
    """One operation of an expression, with its operands."""

    operation: str
    """`column`, `literal`, `case`, `cast`, the name of a function in lower case, or an operator in upper case."""
    operands: tuple[Term, ...] = ()
    value: Any = None
    """The name of a column, the value of a literal, the type of a cast, the pattern of LIKE."""


@dataclass(frozen=True)
class Expression:
    """A parsed expression."""

    text: str
    root: Term

    @property
    def columns(self) -> frozenset[str]:
        """The names of the columns that it uses."""
        return frozenset(node.value for node in _nodes(self.root) if node.operation == "column")


def _nodes(node: Term) -> Iterator[Term]:
    yield node
    for operand in node.operands:
        yield from _nodes(operand)


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<string>'(?:[^']|'')*')
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<word>[^\W\d]\w*)
    |(?P<operator><>|!=|<=|>=|\|\||[=<>+\-*/%(),])
    )""",
    re.VERBOSE,
)
_KEYWORDS = frozenset(
    (
        *("AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "LIKE", "TRUE", "FALSE"),
        *("CASE", "WHEN", "THEN", "ELSE", "END", "CAST", "AS"),
    )
)
_COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")


def parse(text: str) -> Expression:
    """Parse an expression; an ExpressionError says where it is wrong."""
    parser = _Parser(text)
    root = parser.disjunction()
    if parser.kind != "end":
        raise parser.error("an operator or the end")
    return Expression(text, root)


class _Parser:
    """Reads an expression from left to right; each method reads one level of precedence."""

    def __init__(self, text: str) -> None:
        self._text, self._next, self._depth = text, 0, 0
        self.kind, self.token, self._start = "end", "", 0
        self._advance()

    def error(self, wanted: str) -> ExpressionError:
        """Return an error about the current token."""
        found = repr(self._text[self._start : self._start + 20]) if self.kind != "end" else "the end"
        return ExpressionError(f"{found} at character {self._start + 1}; wanted: {wanted}")

    def _advance(self) -> None:
        rest = self._text[self._next :]
        self._start = self._next + len(rest) - len(rest.lstrip())
        if not rest.strip():
            self.kind, self.token = "end", ""
            return
        match = _TOKEN.match(self._text, self._next)
        if match is None:
            self.kind = "unknown"
            raise self.error("an expression")
        self.kind, self.token, self._next = str(match.lastgroup), match[str(match.lastgroup)], match.end()
        if self.kind == "word" and self.token.upper() in _KEYWORDS:
            self.kind, self.token = "keyword", self.token.upper()

    def _accept(self, *tokens: str) -> str | None:
        if self.kind in ("operator", "keyword") and self.token in tokens:
            token = self.token
            self._advance()
            return token
        return None

    def _expect(self, token: str) -> None:
        if self._accept(token) is None:
            raise self.error(token)

    def disjunction(self) -> Term:
        """Read an expression of any form."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ExpressionError(f"is nested deeper than {DEPTH_MAX} levels")
        node = self._conjunction()
        while self._accept("OR"):
            node = Term("OR", (node, self._conjunction()))
        self._depth -= 1
        return node

    def _conjunction(self) -> Term:
        node = self._negation()
        while self._accept("AND"):
            node = Term("AND", (node, self._negation()))
        return node

    def _negation(self) -> Term:
        count = 0
        while self._accept("NOT"):
            count += 1
        node = self._comparison()
        return Term("NOT", (node,)) if count % 2 else node

    def _comparison(self) -> Term:
        node = self._sum()
        operator = self._accept(*_COMPARISONS)
        if operator is not None:
            return Term("<>" if operator == "!=" else operator, (node, self._sum()))
        if self._accept("IS"):
            is_negative = self._accept("NOT") is not None
            self._expect("NULL")
            return _negated(Term("IS NULL", (node,)), is_negative)
        is_negative = self._accept("NOT") is not None
        if self._accept("IN"):
            self._expect("(")
            return _negated(Term("IN", (node, *self._arguments())), is_negative)
        if self._accept("BETWEEN"):
            least = self._sum()
            self._expect("AND")
            both = (Term(">=", (node, least)), Term("<=", (node, self._sum())))
            return _negated(Term("AND", both), is_negative)
        if self._accept("LIKE"):
            if self.kind != "string":
                raise self.error("a pattern in single quotes")
            pattern = self._string()
            return _negated(Term("LIKE", (node,), pattern), is_negative)
        if is_negative:
            raise self.error("IN, BETWEEN or LIKE")
        return node

    def _sum(self) -> Term:
        node = self._product()
        while operator := self._accept("+", "-", "||"):
            node = Term(operator, (node, self._product()))
        return node

    def _product(self) -> Term:
        node = self._signed()
        while operator := self._accept("*", "/", "%"):
            node = Term(operator, (node, self._signed()))
        return node

    def _signed(self) -> Term:
        is_negative = False
        while sign := self._accept("-", "+"):
            is_negative ^= sign == "-"
        node = self._primary()
        return Term("-", (Term("literal", value=0), node)) if is_negative else node

    def _primary(self) -> Term:
        if self.kind == "number":
            text = self.token
            self._advance()
            return Term("literal", value=_number(text))
        if self.kind == "string":
            return Term("literal", value=self._string())
        if self.kind == "quoted":
            name = self.token[1:-1].replace("``", "`")
            self._advance()
            return Term("column", value=name)
        return self._name() if self.kind == "word" else self._other_primary()

    def _other_primary(self) -> Term:
        """Read an operand that begins with a keyword or a parenthesis."""
        word = self._accept("(", "TRUE", "FALSE", "NULL", "CASE", "CAST")
        if word == "(":
            node = self.disjunction()
            self._expect(")")
            return node
        if word == "CASE":
            return self._case()
        if word == "CAST":
            return self._cast()
        if word is None:
            raise self.error("a column, a value or a function")
        return Term("literal", value={"TRUE": True, "FALSE": False, "NULL": None}[word])

    def _string(self) -> str:
        text = self.token[1:-1].replace("''", "'")
        self._advance()
        return text

    def _name(self) -> Term:
        name = self.token
        self._advance()
        if not self._accept("("):
            return Term("column", value=name)
        function = name.lower()
        if function not in FUNCTIONS:
            raise ExpressionError(f"{name} is not a function here; allowed: {', '.join(sorted(FUNCTIONS))}")
        arguments = self._arguments()
        least, most = FUNCTIONS[function]
        if not least <= len(arguments) <= most:
            raise ExpressionError(f"{name} with {len(arguments)} arguments; wanted: {least} to {most}")
        return Term(function, arguments)

    def _arguments(self) -> tuple[Term, ...]:
        found = [self.disjunction()]
        while self._accept(","):
            found.append(self.disjunction())
        self._expect(")")
        return tuple(found)

    def _case(self) -> Term:
        operands: list[Term] = []
        while self._accept("WHEN"):
            operands.append(self.disjunction())
            self._expect("THEN")
            operands.append(self.disjunction())
        if not operands:
            raise self.error("WHEN")
        operands.append(self.disjunction() if self._accept("ELSE") else Term("literal"))
        self._expect("END")
        return Term("case", tuple(operands))

    def _cast(self) -> Term:
        self._expect("(")
        node = self.disjunction()
        self._expect("AS")
        kind = self.token.lower()
        if self.kind != "word" or kind not in TYPES:
            raise self.error(f"a type: {', '.join(TYPES)}")
        self._advance()
        digits: list[int] = []
        if kind == "decimal" and self._accept("("):
            while self.kind == "number" and self.token.isdecimal():
                digits.append(int(self.token))
                self._advance()
                if self._accept(",") is None:
                    break
            self._expect(")")
        self._expect(")")
        precision, scale = (digits + [38, 18][len(digits) :]) if digits != [] else (38, 18)
        if kind == "decimal" and len(digits) == 1:
            scale = 0
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise ExpressionError(f"decimal({precision},{scale}) is not a type")
        return Term("cast", (node,), (kind, precision, scale) if kind == "decimal" else (kind,))


def _negated(node: Term, is_negative: bool) -> Term:
    return Term("NOT", (node,)) if is_negative else node


def _number(text: str) -> int | Decimal | float:
    if "e" in text.lower():
        return float(text)
    return Decimal(text) if "." in text else int(text)
