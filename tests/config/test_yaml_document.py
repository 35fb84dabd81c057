"""YAML with the lines of its values; anything but one valid document is refused."""

from pathlib import Path

import pytest

from config.yaml_document import Mistake, ValuePath, configuration_error, path_text, read_document
from schemas.errors import ConfigurationError

TEXT = """\
a: 1
b:
  - x
  - {c: 2,
     d: [3]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.yaml"


def test_data_and_lines(file: Path) -> None:
    file.write_text(TEXT)
    document = read_document(file)
    assert document.data == {"a": 1, "b": ["x", {"c": 2, "d": [3]}]}
    locations: list[ValuePath] = [(), ("a",), ("b",), ("b", 0), ("b", 1), ("b", 1, "c"), ("b", 1, "d", 0)]
    assert [document.line(where) for where in locations] == [1, 1, 2, 3, 4, 4, 5]


def test_a_missing_value_has_the_line_of_its_parent(file: Path) -> None:
    file.write_text(TEXT)
    assert read_document(file).line(("b", 1, "missing", 7)) == 4


def test_a_repeated_key(file: Path) -> None:
    file.write_text("a: {x: 1, x: 2}\nb: 1\na: 3\n")
    assert read_document(file).repeated_keys == (
        Mistake(("a", "x"), "appears twice (also in line 1)"),
        Mistake(("a",), "appears twice (also in line 1)"),
    )


def test_anchors_and_merges_are_yaml_as_usual(file: Path) -> None:
    file.write_text("base: &base {x: 1}\nmore: {<<: *base, y: 2}\n")
    document = read_document(file)
    assert document.data["more"] == {"x": 1, "y": 2}
    assert document.repeated_keys == ()


def test_an_empty_file_is_nothing(file: Path) -> None:
    file.write_text("# only a comment\n")
    assert read_document(file).data is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: b: c\n", "not YAML: mapping values are not allowed here"),
        (b"a: [1\n", "not YAML"),
        (b"a: 1\n---\nb: 2\n", "not YAML: expected a single document"),
        (b"a: !!python/object/apply:os.getcwd []\n", "not YAML: could not determine a constructor"),
        (b"{[1]: 2}\n", "not YAML: .*unhashable"),
        (b"\xff\xfe\xff", "not YAML: 'utf-8' codec"),
        (b"a: &a [*a]\n", "contains itself"),
    ],
)
def test_unreadable_documents_are_refused(file: Path, content: bytes, reason: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        read_document(file)
    assert caught.value.fields["file"] == str(file)


def test_a_missing_file_is_an_error(file: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read: No such file.*: check its path"):
        read_document(file)


def test_locations_as_text() -> None:
    assert path_text(()) == ""
    assert path_text(("a", 0, "b")) == "a[0].b"


def test_a_mistake_of_the_whole_file(file: Path) -> None:
    file.write_text("[]")
    error = configuration_error(read_document(file), [Mistake((), "is no mapping")])
    assert str(error) == f"is no mapping (file {file}, line 1, path the whole file)"
