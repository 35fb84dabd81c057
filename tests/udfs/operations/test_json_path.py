"""The lexer of operations' paths; a real server accepts and refuses the same (`cases.NAMES`)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import TupleError, UnsupportedError
from tests.udfs.generated import steady
from udfs.operations.json_path import ANY, END, NUMBER, STRING, Lexer, Token


def tokens(path: str | bytes, base: int = 1) -> list[Token]:
    lexer = Lexer(path if isinstance(path, bytes) else path.encode(), base=base)
    found = []
    while (token := lexer.next()).kind != END:
        found.append(token)
    return found


def number(index: int) -> Token:
    return Token(NUMBER, index)


def name(text: str) -> Token:
    return Token(STRING, key=text.encode())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", []),
        ("a", [name("a")]),
        (".a", [name("a")]),
        ("a.b[3].c", [name("a"), name("b"), number(2), name("c")]),
        ("[1][22]", [number(0), number(21)]),
        ("['x y']", [name("x y")]),
        ('["it\'s.]"]', [name("it's.]")]),
        ("_a1.ключ.été", [name("_a1"), name("ключ"), name("été")]),
        ("ⅷ".join(["a", "b"]), [name("aⅷb")]),
        ("a[*]", [name("a"), Token(ANY)]),
        ("[4294967297]", [number(0)]),
        ("[007]", [number(6)]),
    ],
)
def test_tokens(path: str, expected: list[Token]) -> None:
    assert tokens(path) == expected


@pytest.mark.parametrize(
    ("path", "position"),
    [
        ("[", 1),
        ("[2", 3),
        ("[2x]", 3),
        ("[]", 2),
        ("[-1]", 2),
        ("[0]", 2),
        ("['a", 4),
        ("['a'", 5),
        ("['']", 3),
        (".", 2),
        ("a.", 3),
        ("a..b", 3),
        ("1a", 1),
        ("a-b", 2),
        ("[1]a", 4),
        (" a", 1),
        ("[2147483648]", 2),
        ("ключ.1", 6),
        (b"\xff", 1),
        (b"a\xff", 2),
        (b"['\xd0", 3),
    ],
)
def test_faults_and_their_position(path: str | bytes, position: int) -> None:
    with pytest.raises(TupleError) as caught:
        tokens(path)
    assert caught.value.reason.endswith(f"UPDATE error: invalid JSON in position {position}")
    assert caught.value.fields == {"code": 29}


def test_a_fault_appears_only_when_it_is_reached() -> None:
    lexer = Lexer(b"a.b[x")
    assert [lexer.next(), lexer.next()] == [name("a"), name("b")]
    with pytest.raises(TupleError):
        lexer.next()


def test_base_0_reads_indexes_as_they_are() -> None:
    assert tokens("[0][2]", base=0) == [number(0), number(2)]


def test_a_bare_name_that_only_icu_can_judge_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="bare name"):
        tokens("e\u0301")
    assert tokens("['e\u0301']") == [name("e\u0301")]


@steady
@given(st.lists(st.one_of(st.integers(1, 2**31 - 1), st.text(min_size=1).filter(lambda t: '"' not in t))))
def test_any_path_in_brackets_reads_back(steps: list[int | str]) -> None:
    path = "".join(f"[{step}]" if isinstance(step, int) else f'["{step}"]' for step in steps)
    expected = [number(step - 1) if isinstance(step, int) else name(step) for step in steps]
    assert tokens(path.encode("utf-8", "surrogatepass")) == expected


@steady
@given(st.binary(max_size=12))
def test_any_bytes_are_tokens_or_an_error(path: bytes) -> None:
    try:
        found = tokens(path)
    except (TupleError, UnsupportedError):
        return
    assert len(found) <= len(path)
